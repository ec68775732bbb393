"""Room on disk and in memory: asked before a download and before loading, told when it runs out."""

from __future__ import annotations

import asyncio
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
import torch

from app.race import in_words
from dart_core import room
from dart_core.engine import Engine, GenerationSettings
from dart_core.errors import ArenaError
from dart_core.memory import GIB, OutOfMemory, gib, is_out_of_memory, memory_told
from dart_core.ngram import converted_path, open_published
from dart_core.ngram_convert import disk_needed, parts_folder
from dart_core.presets import DEMO_TARGET, get_preset
from dart_core.room import Part, caches_of, check_room, devices_for, needs_spreading, part_of
from dart_core.server import Run
from dart_core.target import Target
from dart_core.weights import cache_dir

GOLDEN = Path(__file__).parent / "golden" / "dart"
TARGET, HEAD = GOLDEN / "checkpoint" / "target", GOLDEN / "checkpoint" / "dart"
CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
SHORT = GenerationSettings(max_new_tokens=4)
Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def there(monkeypatch, tmp_path):
    """Sets what is free: bytes of every device's memory, and of every disk."""
    monkeypatch.setenv("DART_ARENA_CACHE", str(tmp_path / "cache"))

    def there(memory: int, disk: int) -> None:
        monkeypatch.setattr(room, "free_memory", lambda device: memory)
        monkeypatch.setattr(room.shutil, "disk_usage", lambda path: Usage(0, 0, disk))

    return there


def load(**options) -> Engine:
    options = {"target": TARGET, "dart": HEAD, "dtype": torch.float32, "device": "cpu", **options}
    return Engine.load(**options)


def test_what_local_files_take(there):
    there(GIB, GIB)
    stored = (TARGET / "model.safetensors").stat().st_size
    part = part_of("target", str(TARGET), itemsize=2, config={"dtype": "float32"})
    assert (part.download, part.memory) == (0, stored // 2)
    assert part.size > stored  # the tokenizer too
    assert part_of("target", str(TARGET), itemsize=4, config={"dtype": "bfloat16"}).memory == (
        2 * stored
    )
    assert part_of("target", str(TARGET), itemsize=4, config={"torch_dtype": "float32"}).memory == (
        stored
    )
    packed = {"dtype": "float32", "quantization_config": {}}
    assert part_of("target", str(TARGET), itemsize=4, config=packed).memory == stored


def test_pickled_weights_count_only_where_there_are_no_others(there, tmp_path):
    there(GIB, GIB)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(bytes(1000))
    assert part_of("eagle3", str(tmp_path), itemsize=2).memory == 1000
    (tmp_path / "model.safetensors").write_bytes(bytes(900))
    assert part_of("eagle3", str(tmp_path), itemsize=2).memory == 900


def test_an_ngram_takes_disk_for_its_conversion_until_it_is_made(there, tmp_path):
    there(GIB, GIB)
    trie = tmp_path / "full.trie"
    shutil.copy(GOLDEN / "trie" / "a_order3.trie", trie)
    config = {"vocab_size": 512}

    def made(reference: Path) -> int:
        part = part_of("ngram", str(reference), itemsize=2, config=config, filename="full.trie")
        assert part.memory == 0  # it is mapped
        return part.made

    need, _ = disk_needed(3, 1965, 512)
    assert made(trie) == made(tmp_path) == need
    parts = parts_folder(converted_path(trie, vocab_size=512, cache=cache_dir()))
    parts.mkdir(parents=True)
    assert made(trie) == 0  # begun: it says itself what it still needs
    parts.rmdir()
    with open_published(trie, vocab_size=512, cache=cache_dir()) as model:
        assert model.vocab_size == 512
    converted = next(cache_dir().rglob("*.ngram"))
    assert converted.stat().st_size < trie.stat().st_size
    assert made(trie) == made(tmp_path) == 0
    assert part_of("ngram", str(converted), itemsize=2, filename="full.trie").made == 0


def test_the_demo_takes_what_its_making_takes(there):
    there(GIB, GIB)
    part = part_of("target", DEMO_TARGET, itemsize=4)
    assert part.download == 800_000_000
    assert part.memory == 538_000_000


def test_the_keys_and_values_of_a_run():
    sizes = {"num_hidden_layers": 36, "num_key_value_heads": 8, "head_dim": 128}
    assert caches_of(sizes, 2, runs=1).memory == 2 * 36 * 8 * 128 * 2 * 2048
    assert caches_of({"num_hidden_layers": 36}, 2, runs=1) is None


def test_the_table_is_said_where_something_is_fetched(there, tmp_path):
    there(24 * GIB, 100 * GIB)
    said: list[str] = []
    parts = [
        Part("target T", 8 * GIB, 7 * GIB, tmp_path, memory=8 * GIB),
        Part("n-gram small.trie", 2 * GIB, 2 * GIB, tmp_path, GIB, tmp_path / "made"),
        Part("EAGLE3 head E", None),
    ]
    check_room(parts, [CPU], progress=said.append)
    rows = [line.split(maxsplit=6) for line in said]
    assert said[0].split() == ["download", "on", "disk", "memory", "needed"]
    assert rows[1] == ["7.00", "GiB", "8.00", "GiB", "8.00", "GiB", "target T"]
    assert said[3].split()[:2] == ["unknown", "unknown"]
    assert rows[4] == ["9.00", "GiB", "11.0", "GiB", "8.00", "GiB", "in all"]
    assert said[5] == f"free: 24.0 GiB on the CPU, 100.0 GiB of disk at {tmp_path}"
    check_room([Part("target T", GIB, memory=GIB)], [CPU], progress=said.append)
    assert len(said) == 6  # nothing to fetch, nothing to say


def test_too_little_disk_has_figures_and_remedies(there, tmp_path):
    there(24 * GIB, 5 * GIB)
    parts = [
        Part("target T", 8 * GIB, 4 * GIB, tmp_path),
        Part("n-gram small.trie", 2 * GIB, 2 * GIB, tmp_path, GIB, tmp_path),
    ]
    with pytest.raises(ArenaError) as caught:
        check_room(parts, [CPU], preset=get_preset("qwen3-14b"), progress=lambda line: None)
    assert str(caught.value) == (
        f"too little disk at {tmp_path}: 7.00 GiB needed (target T 4.00 GiB, n-gram small.trie "
        "2.00 GiB, n-gram small.trie converted 1.00 GiB), 5.00 GiB free; make room, move the "
        "download's cache (HF_HOME, or MODELSCOPE_CACHE), move what is made from it "
        "(DART_ARENA_CACHE), take a smaller target (--preset qwen3-8b) or take the small n-gram "
        "(--ngram small) or none (--ngram off)"
    )


def test_too_little_memory_has_figures_and_remedies(there):
    there(6 * GIB, 100 * GIB)
    parts = [Part("target T", 8 * GIB, memory=8 * GIB), Part("DART head D", GIB, memory=GIB)]
    with pytest.raises(OutOfMemory) as caught:
        check_room(parts, [GPU], preset=get_preset("qwen3-8b"), progress=lambda line: None)
    assert str(caught.value) == (
        "too little memory on cuda:0: 9.00 GiB needed (target T 8.00 GiB, DART head D 1.00 GiB), "
        "6.00 GiB free; take a smaller target (--preset qwen3-4b), the small n-gram (--ngram "
        'small), or spread the target over several GPUs (--device-map auto, device_map="auto")'
    )
    check_room(parts, [GPU, torch.device("cuda", 1)], progress=lambda line: None)  # 12 in all


def test_a_device_that_does_not_tell_is_tried(monkeypatch):
    def silent(device):
        raise RuntimeError("no NVIDIA driver")

    monkeypatch.setattr(room, "free_memory", silent)
    check_room([Part("target T", GIB, memory=GIB)], [GPU], progress=lambda line: None)


def test_it_is_found_before_the_target_is_loaded(there, monkeypatch):
    there(1000, 100 * GIB)
    monkeypatch.setattr("dart_core.loading.Target.load", None)  # not to be called
    with pytest.raises(OutOfMemory, match=r"too little memory on the CPU: .* needed \(target /"):
        load()


def test_a_target_beyond_one_gpu_is_spread_over_all(there, monkeypatch):
    parts = [Part("target T", 8 * GIB, memory=8 * GIB)]
    there(6 * GIB, GIB)
    assert not needs_spreading(parts)  # no GPU here
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert needs_spreading(parts)
    assert devices_for(None, "auto") == [GPU, torch.device("cuda", 1)]
    assert devices_for("cuda:1", None) == [torch.device("cuda", 1)]
    there(9 * GIB, GIB)
    assert not needs_spreading(parts)


def test_a_target_beyond_the_hosts_memory_goes_to_its_gpu_piece_by_piece(there, monkeypatch):
    there(6 * GIB, GIB)
    target = Part("target T", 8 * GIB, memory=8 * GIB)
    assert room.needs_streaming(target, GPU)
    assert not room.needs_streaming(target, CPU)
    assert not room.needs_streaming(Part("target T", GIB, memory=GIB), GPU)
    maps = []
    load_target = Target.load

    def loaded(*arguments, device_map, **options):
        maps.append(device_map)
        return load_target(*arguments, device_map=device_map, **options)

    monkeypatch.setattr("dart_core.loading.Target.load", loaded)
    monkeypatch.setattr("dart_core.loading.needs_streaming", lambda part, device: True)
    said: list[str] = []
    assert load(progress=said.append).generate([5, 9], "dart", SHORT).output_ids
    assert maps == [{"": "cpu"}]
    assert "piece by piece" in said[0]


def test_where_weights_may_lie():
    assert devices_for("cpu", None) == devices_for(None, "auto") == [CPU]
    by_layer = {"model.embed_tokens": 0, "model.layers": "cuda:1", "lm_head": 0, "norm": "disk"}
    assert devices_for(None, by_layer) == [GPU, torch.device("cuda", 1)]


def test_layers_left_to_the_host_are_refused(monkeypatch):
    load_target = Target.load

    def partly(*arguments, **options):
        target = load_target(*arguments, **options)
        layer = target.layers[0].input_layernorm
        layer.weight = torch.nn.Parameter(torch.empty(1, device="meta"), requires_grad=False)
        return target

    monkeypatch.setattr("dart_core.loading.Target.load", partly)
    with pytest.raises(OutOfMemory, match=r"does not fit on the GPUs: 1 of its \d+ tensors"):
        load()


# Running out all the same -------------------------------------------------------------------------

CUDA_SAYS = (
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 23.6 GiB of "
    "which 1.2 GiB is free."
)
CPU_SAYS = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: "
    "you tried to allocate 1073741824 bytes. Error code 12 (Cannot allocate memory)"
)
ERRORS = [torch.OutOfMemoryError(CUDA_SAYS), RuntimeError(CPU_SAYS), MemoryError()]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("where", ["target", "head", "run"])
def test_running_out_is_one_line_with_figures_and_remedies(where, error, monkeypatch):
    def fail(*arguments, **options):
        raise error

    engine = load()
    if where == "target":
        from_pretrained = "dart_core.target.AutoModelForCausalLM.from_pretrained"
        monkeypatch.setattr(from_pretrained, fail)
    elif where == "head":
        monkeypatch.setitem(load_heads(), "dart", fail)
    else:
        monkeypatch.setattr(Target, "prefill", fail)
    with pytest.raises(OutOfMemory) as caught:
        load() if where != "run" else engine.generate([5, 9, 23], "dart")
    message = str(caught.value)
    doing = {"target": "loading the target", "head": "loading the DART head", "run": "generating"}
    assert message.startswith(f"out of memory while {doing[where]}")
    asked = {0: "2.50 GiB more were asked for", 1: "1.00 GiB more were asked for", 2: "cpu has"}
    assert asked[ERRORS.index(error)] in message
    assert "GiB free" in message
    for remedy in ("a smaller --preset", "--ngram small", "--device-map auto"):
        assert remedy in message
    assert ("--max-length" in message) == (where == "run")
    assert "\n" not in message


def load_heads() -> dict:
    from dart_core import loading

    return loading.LOADERS


def test_who_asked_is_told_less_than_who_runs_it(caplog):
    """Figures and flags are for the log; a visitor or a client hears what they can do."""
    short = OutOfMemory("out of memory while generating: 1 GiB free of 24")

    def failing():
        raise short
        yield

    async def told() -> Exception:
        run = Run(failing())
        run.work()
        with pytest.raises(ArenaError) as caught:
            await anext(run.steps())
        return caught.value

    error = asyncio.run(told())
    assert (error.status, error.kind) == (503, "server_error")
    assert "GiB" not in str(error)
    assert "1 GiB free of 24" in caplog.text
    assert in_words(short) == in_words(torch.OutOfMemoryError(CUDA_SAYS))
    assert "fewer new tokens" in in_words(short)


def test_other_errors_stay_what_they_are():
    assert not is_out_of_memory(RuntimeError("shapes cannot be multiplied"))
    with pytest.raises(RuntimeError, match="shapes"), memory_told("multiplying", CPU):
        raise RuntimeError("shapes cannot be multiplied")


def test_it_is_a_mistake_of_the_user_and_a_lack_of_memory():
    assert issubclass(OutOfMemory, ArenaError)  # one line at a terminal
    assert issubclass(OutOfMemory, MemoryError)  # and a batch goes on with the next line


@pytest.mark.parametrize(
    ("count", "says"),
    [(12.34 * GIB, "12.3 GiB"), (GIB, "1.00 GiB"), (2**20, "1.0 MiB"), (0, "0.0 MiB")],
)
def test_sizes_in_words(count, says):
    assert gib(count) == says
