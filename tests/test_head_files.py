"""Head files: what loads, what is refused and in which words, and that saving round-trips."""

from __future__ import annotations

import json
import logging
import pickle
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fuzz_files import malicious_pickle
from head_files import DRAFT_VOCAB, Folder, outputs
from models import head_config, random_head, tiny_target
from safetensors.torch import load_file, save_file
from torch.torch_version import TorchVersion

from dart_core import json_file
from dart_core.drafters.autoregressive import AutoregressiveDrafter
from dart_core.drafters.eagle3 import Eagle3Drafter
from dart_core.errors import ArenaError
from dart_core.heads import (
    Eagle3Head,
    HeadConfig,
    load_dart_head,
    load_eagle3_head,
    save_head,
)
from dart_core.heads.config import read_aux_layers, read_rope
from dart_core.heads.layers import rope_table
from dart_core.packing import pack_linears

ATTENTION_KEYS = {f"midlayer.self_attn.{part}_proj.weight" for part in "qkvo"}
MLP_KEYS = {f"midlayer.mlp.{part}_proj.weight" for part in ("gate", "up", "down")}
NORM_KEYS = {
    f"midlayer.{part}.weight"
    for part in ("hidden_norm", "input_layernorm", "post_attention_layernorm")
}
PUBLISHED_KEYS = (
    {"fc.weight", "norm.weight", "lm_head.weight", "d2t", "t2d"}
    | ATTENTION_KEYS
    | MLP_KEYS
    | NORM_KEYS
)


@pytest.fixture(scope="module")
def target():
    return tiny_target()


@pytest.fixture(params=["dart", "eagle3"])
def folder(request, tmp_path, target) -> Folder:
    return Folder(tmp_path / "head", target, request.param)


@pytest.fixture
def eagle3(tmp_path, target) -> Folder:
    return Folder(tmp_path / "head", target, "eagle3")


@pytest.fixture
def dart(tmp_path, target) -> Folder:
    return Folder(tmp_path / "head", target, "dart")


# -- what loads ---------------------------------------------------------------------------------


def test_round_trip_in_published_keys(folder):
    extra = {"midlayer.mask_rep"} if folder.kind == "dart" else set()
    assert set(folder.tensors) == PUBLISHED_KEYS | extra
    assert folder.tensors["d2t"].dtype == torch.int64
    assert folder.tensors["t2d"].dtype == torch.bool
    loaded = folder.load()
    assert loaded.config == folder.head.config
    for name, tensor in folder.head.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name
    assert not any(parameter.requires_grad for parameter in loaded.parameters())
    if folder.kind == "dart":
        assert folder.config["draft_length"] == 7
        assert folder.config["architectures"] == ["LlamaForCausalLMDart"]


def test_loads_pickled_weights(folder):
    (folder.path / "model.safetensors").unlink()
    torch.save(folder.tensors, folder.path / "pytorch_model.bin")
    loader = load_dart_head if folder.kind == "dart" else load_eagle3_head
    loaded = loader(
        folder.path, dtype=torch.float32, device="cpu", target_config=folder.target.config
    )
    assert torch.equal(loaded.fc.weight, folder.head.fc.weight)


def test_a_pickle_that_is_not_plain_weights_is_refused(eagle3):
    (eagle3.path / "model.safetensors").unlink()
    torch.save({"fc.weight": Path("code")}, eagle3.path / "pytorch_model.bin")
    with pytest.raises(ArenaError, match=r"pytorch_model\.bin is damaged or not a weight file"):
        load_eagle3_head(
            eagle3.path, dtype=torch.float32, device="cpu", target_config=eagle3.target.config
        )


def pickled(folder: Folder) -> Path:
    (folder.path / "model.safetensors").unlink()
    return folder.path / "pytorch_model.bin"


def refused_file(folder: Folder) -> str:
    """The one-line error of loading what lies in the folder."""
    with pytest.raises(ArenaError) as caught:
        load_eagle3_head(
            folder.path, dtype=torch.float32, device="cpu", target_config=folder.target.config
        )
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_torch_that_reads_pickles_unsafely_reads_none(eagle3, monkeypatch):
    torch.save(eagle3.tensors, pickled(eagle3))
    monkeypatch.setattr(torch, "__version__", TorchVersion("2.9.1"))
    assert "torch 2.9.1 does not read pytorch_model.bin safely" in refused_file(eagle3)


@pytest.mark.parametrize("archived", [True, False])
def test_a_pickle_is_never_run(eagle3, tmp_path, archived):
    path, marker = pickled(eagle3), tmp_path / "was run"
    malicious_pickle(path, marker, archived=archived)
    assert "pytorch_model.bin is damaged or not a weight file" in refused_file(eagle3)
    assert not marker.exists()
    with path.open("rb") as file:  # it would have been
        pickle.loads(zipfile.ZipFile(file).read("archive/data.pkl") if archived else file.read())
    assert marker.exists()


def test_weights_may_not_unpack_to_more_than_the_file(eagle3):
    path = pickled(eagle3)
    torch.save({"fc.weight": torch.zeros(2**22)}, path)
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    assert path.stat().st_size < 2**17
    assert "unpacks to more" in refused_file(eagle3)


def test_a_tensor_may_not_repeat_a_value_without_end(eagle3):
    path = pickled(eagle3)
    torch.save(eagle3.tensors | {"norm.weight": torch.ones(1).expand(2**40)}, path)
    assert "'norm.weight' is empty or larger than the file" in refused_file(eagle3)


def test_only_plain_tensors(eagle3):
    path = pickled(eagle3)
    for odd in (torch.ones(3, 3).to_sparse(), torch.empty(4, device="meta")):
        torch.save(eagle3.tensors | {"norm.weight": odd}, path)
        assert "'norm.weight' is no plain tensor" in refused_file(eagle3)


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64, torch.float8_e4m3fn, torch.bool])
def test_values_must_be_floats_that_a_head_can_have(eagle3, dtype):
    """An integer would load and fail in the middle of a run."""
    eagle3.tensors["fc.weight"] = torch.ones(64, 192).to(dtype)
    assert f"fc.weight is {dtype}" in eagle3.refused()


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("[" * 100_000, "nested too deeply"),
        ('{"vocab_size": ' + "9" * 5000 + "}", "not valid JSON"),
        (" " * (json_file.MAX_BYTES + 1), "more than 64 MB"),
        ("[1]", "expected a JSON object, found a list"),
        ("\ud83c", "not valid JSON"),
    ],
)
def test_a_config_from_an_enemy(eagle3, content, told):
    (eagle3.path / "config.json").write_text(content, encoding="utf-8", errors="surrogatepass")
    assert told in refused_file(eagle3)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_size", [64]), ("hidden_size", "64"), ("hidden_size", True), ("vocab_size", 1e308),
        ("num_attention_heads", float("nan")), ("num_key_value_heads", -2), ("head_dim", 2**40),
        ("rope_theta", float("inf")), ("rope_theta", 0), ("rope_theta", "x"), ("rope_scaling", [1]),
        ("rope_scaling", {"rope_theta": "x"}), ("rms_norm_eps", float("nan")), ("rms_norm_eps", -1),
        ("draft_length", 10**9), ("num_hidden_layers", {}), ("max_position_embeddings", "many"),
    ],
)  # fmt: skip
def test_config_values_of_the_wrong_kind_are_named(folder, key, value):
    folder.config[key] = value
    named = next(iter(value), key) if isinstance(value, dict) else key
    assert f"makes no sense: {named} is" in folder.refused()


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "none of these"}, {"rope_type": ["x"]}, {"rope_type": "linear"},
        {"rope_type": "yarn", "factor": "x"}, {"rope_type": "linear", "factor": 0},
    ],
)  # fmt: skip
def test_scaled_rope_that_cannot_be_computed(folder, scaling):
    folder.config["rope_scaling"] = scaling
    assert "rope_scaling" in folder.refused()


def test_names_from_a_file_stay_on_one_line(eagle3):
    eagle3.tensors |= {f"\x1b[2J\n{number}": torch.ones(1) for number in range(50)}
    message = eagle3.refused()
    assert "\x1b" not in message and "\\x1b" in message
    assert "and 42 more" in message


def test_other_spellings_of_the_names(eagle3):
    eagle3.tensors = {
        "model." + name.replace("midlayer.", "layers.0."): tensor
        for name, tensor in eagle3.tensors.items()
    }
    eagle3.tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
    assert torch.equal(eagle3.load().fc.weight, eagle3.head.fc.weight)


def test_tie_flag_is_ignored(folder):
    folder.config["tie_word_embeddings"] = True
    assert torch.equal(folder.load().lm_head.weight, folder.head.lm_head.weight)


def test_sizes_come_from_the_tensors(folder, caplog):
    folder.config |= {"head_dim": 80, "intermediate_size": 7, "draft_vocab_size": 99}
    del folder.config["vocab_size"]
    with caplog.at_level(logging.WARNING):
        head = folder.load()
    assert (head.config.head_dim, head.config.intermediate_size) == (16, 96)
    assert (head.config.draft_vocab_size, head.config.vocab_size) == (DRAFT_VOCAB, 512)
    for words in (
        "head_dim 80, the tensors say 16",
        "intermediate_size 7, the tensors say 96",
        "draft_vocab_size 99, the tensors say 128",
    ):
        assert words in caplog.text
        assert any(words in note for note in head.notes)


def test_heads_may_be_wider_than_the_hidden_size(tmp_path, target):
    """heads * head_dim != hidden: real 4B, 32B and 30B-A3B heads; the config may not say so."""
    config = replace(
        head_config(target, draft_length=None, draft_vocab_size=DRAFT_VOCAB), head_dim=32
    )
    save_head(random_head(Eagle3Head, config, seed=2), tmp_path)
    raw = json.loads((tmp_path / "config.json").read_text())
    del raw["head_dim"]
    (tmp_path / "config.json").write_text(json.dumps(raw))
    head = load_eagle3_head(
        tmp_path, dtype=torch.float32, device="cpu", target_config=target.config
    )
    assert head.config.head_dim == 32


def test_missing_draft_length_is_the_published_one(dart, caplog):
    del dart.config["draft_length"]
    assert dart.load().config.draft_length == 7
    assert "config lacks draft_length" in caplog.text


def test_missing_t2d_is_derived(folder):
    expected = folder.tensors.pop("t2d")
    assert torch.equal(folder.load().t2d, expected)


def test_whole_vocabulary_needs_no_map(tmp_path, target):
    config = head_config(target, draft_length=None, draft_vocab_size=target.vocab_size)
    save_head(random_head(Eagle3Head, config, seed=3), tmp_path)
    assert "d2t" not in load_file(tmp_path / "model.safetensors")
    head = load_eagle3_head(
        tmp_path, dtype=torch.float32, device="cpu", target_config=target.config
    )
    ids = torch.tensor([0, 5, 511])
    assert torch.equal(head.target_ids(ids), ids)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"rope_theta": 5e5, "rope_parameters": {"rope_theta": 1.0}}, 5e5),
        ({"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}}, 1e6),
        ({"rope_scaling": {"rope_theta": 2e6, "type": "default"}}, 2e6),
        ({"rope_theta": None, "rope_scaling": None}, 1e4),
        ({}, 1e4),
    ],
)
def test_rope_base(keys, expected):
    assert read_rope(keys) == (expected, None)


def test_rope_base_override_is_used_and_reported(folder):
    head = folder.load(rope_theta=123.0)
    assert head.config.rope_theta == 123.0
    assert any("123 (overridden)" in note for note in head.notes)
    cosines, _ = rope_table(head.config, 3, dtype=torch.float32, device="cpu")
    assert cosines[2, 1].item() == pytest.approx(
        torch.cos(torch.tensor(2 * 123.0 ** (-2 / 16))).item()
    )


def test_scaled_rope_is_transformers_own():
    scaling = {"rope_type": "linear", "factor": 4.0}
    config = HeadConfig(64, 96, 4, 2, 16, 512, 512, 64, rope_scaling=scaling)
    plain = replace(config, rope_scaling=None)
    scaled, _ = rope_table(config, 9, dtype=torch.float32, device="cpu")
    unscaled, _ = rope_table(plain, 9, dtype=torch.float32, device="cpu")
    torch.testing.assert_close(scaled[8], unscaled[2])
    assert read_rope({"rope_scaling": scaling}) == (1e4, scaling)


@pytest.mark.parametrize("stored", [torch.float16, torch.float32])
def test_cast_to_the_targets_dtype(folder, stored):
    """Stored fp16 or fp32, target bf16."""
    folder.tensors = {
        name: tensor.to(stored) if tensor.is_floating_point() else tensor
        for name, tensor in folder.tensors.items()
    }
    head = folder.load(dtype=torch.bfloat16)
    assert head.dtype == torch.bfloat16
    assert head.d2t.dtype == torch.int64
    assert f"stored as {stored}, cast to torch.bfloat16" in head.notes


def test_dart_ignores_an_embedding_in_its_file(dart):
    dart.tensors["embed_tokens.weight"] = torch.full((512, 64), 7.0)
    head = dart.load()
    assert "embed_tokens.weight" not in head.state_dict()
    assert any("embedding is ignored" in note for note in head.notes)


def test_eagle3_keeps_its_own_embedding(eagle3):
    eagle3.tensors["embed_tokens.weight"] = torch.full((512, 64), 7.0)
    head = eagle3.load()
    drafter = Eagle3Drafter(head, eagle3.target.embed)
    assert torch.equal(drafter.embed(torch.tensor([3])), torch.full((1, 64), 7.0))


# -- tapped layers ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "inputs", "convention"),
    [
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}}, (2, 3, 4), "output"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 3, 4]}}, (2, 3, 4), "input"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}, (2, 3, 4), "output"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 3, 4]}, (2, 3, 4), "input"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [3, 4, 5]}}, (4, 5, 6), "output"),
        ({"eagle_aux_hidden_state_layer_ids": [3, 4, 5]}, (3, 4, 5), "input"),
        (
            {
                "eagle_aux_hidden_state_layer_ids": [2, 3, 4],
                "aux_hidden_state_convention": "output",
            },
            (3, 4, 5),
            "output",
        ),
    ],
)
def test_numbering_of_tapped_layers(config, inputs, convention):
    notes: list[str] = []
    assert read_aux_layers(config, notes.append) == inputs
    assert f"layer {convention}s" in notes[0]


def test_tapped_layers_in_either_numbering_are_the_same_states(eagle3):
    """Both configs tap the same states, and index i is transformers' ``hidden_states[i]``."""
    model = eagle3.target.model
    prompt = torch.tensor([5, 9, 23])
    with torch.inference_mode():
        states = model(prompt[None], output_hidden_states=True, use_cache=False).hidden_states
    for ids in ([1, 2, 3], [2, 3, 4]):
        eagle3.config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": ids}
        head = eagle3.load()
        cache = eagle3.target.new_cache(len(prompt))
        hidden = eagle3.target.prefill(prompt, cache, taps=head.config.taps).hidden
        expected = torch.cat([states[index][0] for index in (2, 3, 4)], dim=-1)
        torch.testing.assert_close(hidden, expected, rtol=1e-4, atol=1e-4)


def test_default_taps(folder):
    assert folder.load().config.taps == (2, 3, 4)  # 7 layers: 2, L // 2, L - 3


def test_configured_taps_round_trip(tmp_path, target):
    for taps in ((3, 4, 5), (2, 3, 4), (0, 1, 6)):
        config = replace(
            head_config(target, draft_length=None, draft_vocab_size=DRAFT_VOCAB), aux_layers=taps
        )
        save_head(random_head(Eagle3Head, config, seed=4), tmp_path)
        head = load_eagle3_head(
            tmp_path, dtype=torch.float32, device="cpu", target_config=target.config
        )
        assert head.config.taps == taps


def test_taps_beyond_the_target_are_refused(eagle3):
    eagle3.config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [1, 3, 9]}
    assert "tapped layers [2, 4, 10] lie outside" in eagle3.refused()


# -- what is refused ----------------------------------------------------------------------------


def test_missing_unexpected_and_misshaped_are_one_error(folder):
    del folder.tensors["midlayer.mlp.up_proj.weight"]
    del folder.tensors["midlayer.input_layernorm.weight"]
    folder.tensors["fc.bias"] = torch.zeros(64)
    folder.tensors["midlayer.mlp.down_proj.weight"] = torch.zeros(64, 95)
    message = folder.refused()
    assert (
        "missing tensors: midlayer.input_layernorm.weight, midlayer.mlp.up_proj.weight" in message
    )
    assert "unexpected tensors: fc.bias" in message
    assert "midlayer.mlp.down_proj.weight is [64, 95] instead of [64, 96]" in message


def test_every_missing_tensor_is_named(folder):
    for name in sorted(folder.tensors.keys() - {"t2d", "midlayer.mask_rep"}):
        tensor = folder.tensors.pop(name)
        assert name in folder.refused()
        folder.tensors[name] = tensor


def test_reduced_vocabulary_without_a_map(folder):
    del folder.tensors["d2t"], folder.tensors["t2d"]
    message = folder.refused()
    assert "d2t and t2d missing" in message
    assert "128 of 512" in message


@pytest.mark.parametrize("offset", [-1, 512])
def test_map_outside_the_vocabulary(folder, offset):
    folder.tensors["d2t"][3] = offset - 3
    message = folder.refused()
    assert "d2t maps draft ids to tokens" in message
    assert "vocabulary of 512" in message


def test_map_of_the_wrong_type(folder):
    folder.tensors["d2t"] = folder.tensors["d2t"].float()
    assert "integers [128] were expected" in folder.refused()


def eagle1_folder(path: Path, *, draft_vocab: bool) -> Path:
    path.mkdir()
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_hidden_layers": 1,
        "vocab_size": 512,
    }
    if draft_vocab:
        config["draft_vocab_size"] = 512
    (path / "config.json").write_text(json.dumps(config))
    tensors = {
        "fc.weight": torch.zeros(64, 128),
        "fc.bias": torch.zeros(64),
        "embed_tokens.weight": torch.zeros(512, 64),
        "layers.0.post_attention_layernorm.weight": torch.ones(64),
    }
    for part in "qkvo":
        tensors[f"layers.0.self_attn.{part}_proj.weight"] = torch.zeros(64, 64)
    for part, shape in (("gate", (96, 64)), ("up", (96, 64)), ("down", (64, 96))):
        tensors[f"layers.0.mlp.{part}_proj.weight"] = torch.zeros(shape)
    save_file(tensors, path / "model.safetensors")
    return path


@pytest.mark.parametrize("loader", [load_dart_head, load_eagle3_head])
@pytest.mark.parametrize("draft_vocab", [False, True])
def test_eagle1_is_recognised(tmp_path, target, loader, draft_vocab):
    path = eagle1_folder(tmp_path / "head", draft_vocab=draft_vocab)
    with pytest.raises(ArenaError, match=r"looks like an EAGLE-1/EAGLE-2 head; .* was expected"):
        loader(path, dtype=torch.float32, device="cpu", target_config=target.config)


def test_dart_is_not_eagle3_and_the_reverse(folder):
    other = "eagle3" if folder.kind == "dart" else "dart"
    names = {"dart": "a DART head", "eagle3": "an EAGLE3 head"}
    message = folder.refused(other)
    assert f"looks like {names[folder.kind]}; {names[other]} was expected" in message


def test_a_whole_model_is_not_a_head(tmp_path, target):
    target.model.save_pretrained(tmp_path)
    with pytest.raises(ArenaError, match="looks like a whole language model"):
        load_dart_head(tmp_path, dtype=torch.float32, device="cpu", target_config=target.config)


@pytest.mark.parametrize(
    ("config", "tensors", "words"),
    [
        ({"norm_before_residual": True}, {}, "norm_before_residual"),
        ({"eagle_config": {"fc_norm": True}}, {}, "fc_norm"),
        ({}, {"fc_norm.0.weight": (64,)}, "fc_norm"),
        ({"norm_before_fc": True}, {}, "norm_before_fc"),
        ({}, {"input_norm.weight": (192,)}, "norm_before_fc"),
        ({}, {"midlayer.self_attn.q_norm.weight": (16,)}, "q_norm and k_norm"),
        ({}, {"layers.1.mlp.up_proj.weight": (96, 64)}, "more than one layer"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, {}, "use_aux_hidden_state"),
        ({"hidden_act": "gelu"}, {}, "hidden_act 'gelu'"),
        ({"norm_output": True}, {}, "norm_output"),
    ],
)
def test_unsupported_variants_are_named(eagle3, config, tensors, words):
    eagle3.config |= config
    eagle3.tensors |= {name: torch.ones(shape) for name, shape in tensors.items()}
    message = eagle3.refused()
    assert words in message
    assert "not supported" in message


def test_more_than_three_tapped_layers(eagle3):
    eagle3.config["target_layer_ids"] = [1, 2, 3, 4, 5]
    assert "lists 5 target layers" in eagle3.refused()
    del eagle3.config["target_layer_ids"]
    eagle3.tensors["fc.weight"] = torch.zeros(64, 5 * 64)
    assert "5 target states of 64" in eagle3.refused()


def test_head_of_another_target(folder, target):
    folder.target = tiny_target(vocab_size=640)
    assert "vocabulary: the head expects 512, the target has 640" in folder.refused()
    folder.target = tiny_target(hidden_size=32)
    assert "hidden size: the head expects 64, the target has 32" in folder.refused()


def test_narrow_head_needs_its_own_embedding(tmp_path, target):
    config = replace(
        head_config(target, draft_length=None, draft_vocab_size=DRAFT_VOCAB),
        hidden_size=32,
        own_embedding=True,
    )
    save_head(random_head(Eagle3Head, config, seed=5), tmp_path)
    options = {"dtype": torch.float32, "device": "cpu", "target_config": target.config}
    head = load_eagle3_head(tmp_path, **options)
    assert outputs(target, Eagle3Drafter(head, target.embed)) == outputs(
        target, AutoregressiveDrafter()
    )
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["embed_tokens.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ArenaError, match=r"needs its own embed_tokens\.weight"):
        load_eagle3_head(tmp_path, **options)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_must_be_finite(folder, value):
    folder.tensors["midlayer.mlp.up_proj.weight"][3, 5] = value
    assert "NaN or infinite values in: midlayer.mlp.up_proj.weight" in folder.refused()


def test_attention_sizes_that_fit_nothing(folder):
    folder.config |= {"num_attention_heads": 5, "num_key_value_heads": 3, "head_dim": 7}
    assert "attention sizes do not fit: q_proj has 64 rows, k_proj 32" in folder.refused()


@pytest.mark.parametrize(
    "changes", [{"rms_norm_eps": "small"}, {"num_attention_heads": 0, "head_dim": None}]
)
def test_config_values_that_make_no_sense(folder, changes):
    folder.config |= changes
    assert "value that makes no sense" in folder.refused()


def test_damaged_files(folder, tmp_path):
    options = {"dtype": torch.float32, "device": "cpu", "target_config": folder.target.config}
    loader = load_dart_head if folder.kind == "dart" else load_eagle3_head
    with pytest.raises(FileNotFoundError, match=r"no config\.json"):
        loader(tmp_path / "nowhere", **options)
    weights = folder.path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ArenaError, match=r"model\.safetensors is damaged"):
        loader(folder.path, **options)
    weights.unlink()
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors and pytorch_model\.bin"):
        loader(folder.path, **options)
    (folder.path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ArenaError, match="sharded"):
        loader(folder.path, **options)
    (folder.path / "config.json").write_text("{")
    with pytest.raises(ArenaError, match="not valid JSON"):
        loader(folder.path, **options)


def test_a_packed_head_is_not_saved(folder, tmp_path):
    assert pack_linears(folder.head) == 9
    with pytest.raises(ValueError, match="before packing"):
        save_head(folder.head, tmp_path / "packed")
