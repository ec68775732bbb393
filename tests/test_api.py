"""The published Python interface: the published scripts as they stand, and what they rely on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_trio import BASE, DART, EAGLE3, NGRAM, QWEN3, load_trio, make_trio

import dart_core
from dart_core import (
    TEMPLATE_REGISTRY,
    ChatTemplate,
    DartModel,
    ar_generate,
    dart_generate,
    eagle3_generate,
    stream,
)
from dart_core.api import prompt_row, run_settings
from dart_core.engine import Engine, GenerationSettings
from dart_core.errors import ArenaError
from dart_core.memory import OutOfMemory
from dart_core.ngram import NgramModel
from dart_core.sampling import SamplingParams

ROOT = Path(__file__).resolve().parent.parent
PROMPT = torch.tensor([[39, 68, 75, 75, 78]])
SHORT = {"max_new_token_num": 24}


@pytest.fixture(scope="session")
def trio(tmp_path_factory) -> Path:
    return make_trio(tmp_path_factory.mktemp("trio"))


@pytest.fixture(autouse=True)
def home(trio, monkeypatch):
    """Where a published script's ids name local folders; conversions are kept apart."""
    monkeypatch.chdir(trio)
    monkeypatch.setenv("DART_ARENA_CACHE", str(trio / "cache"))


@pytest.fixture(scope="module")
def model(trio) -> DartModel:
    return load_trio(trio)


# The published usages, verbatim but for the import line -------------------------------------------

LOAD = """
import torch
from dart_core import DartModel, TEMPLATE_REGISTRY, dart_generate

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = DartModel.from_pretrained(
    base_model_name_or_path="Qwen/Qwen3-4B",
    dart_model_name_or_path="fvliang/qwen4b-dart",
    ngram_model_name_or_path="fvliang/dart-qwen3-ngram",
    torch_dtype=torch.float16,
    low_cpu_mem_usage=True,
    device_map="auto",
    is_small_ngram=False,
).to(device)
model.eval()
"""

ONE_PROMPT = """
template = TEMPLATE_REGISTRY.get("qwen")
messages = [
    {"role": "system", "content": template.system_prompt},
    {"role": "user", "content": "Write a haiku."},
]
prompt = model.tokenizer.apply_chat_template(
    messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
)
input_ids = model.tokenizer(
    prompt, return_tensors="pt", add_special_tokens=False
).input_ids.to(device)
output_ids = model.dart_generate(
    input_ids, temperature=0.7, top_p=0.9, top_k=50, max_new_token_num=512, max_length=2048
)
text = model.tokenizer.decode(
    output_ids[0],
    skip_special_tokens=True,
    spaces_between_special_tokens=False,
    clean_up_tokenization_spaces=True,
)
print(text)
"""

TIMING = """
import time
template = TEMPLATE_REGISTRY["qwen"]
messages = [
    {"role": "system", "content": template.system_prompt},
    {"role": "user", "content": "Write a haiku."},
]
start = time.time()
output = dart_generate(
    model,
    prompt=template.format(messages=messages),
    temperature=0.0,
    top_k=1,
    max_new_token_num=256,
    max_length=2048,
)
elapsed = time.time() - start
print(f"{len(output.tokens)} tokens in {elapsed:.2f} s: {len(output.tokens) / elapsed:.1f} tok/s")
"""

JSONL_LOOP = """
import json
with open("prompts.jsonl") as f, open("results.jsonl", "w") as g:
    for line in f:
        item = json.loads(line)
        output = dart_generate(
            model,
            prompt=item["prompt"],
            temperature=item.get("temperature", 0.7),
            top_p=0.9,
            top_k=50,
            max_new_token_num=item.get("max_tokens", 512),
            max_length=2048,
        )
        g.write(json.dumps({"prompt": item["prompt"], "response": output.text}) + "\\n")
"""

COLOURS = """
COLORS = ["\\033[92m", "\\033[94m", "\\033[93m", "\\033[95m"]
RESET = "\\033[0m"
qwen_dart = DartModel.from_pretrained(
    dart_model_name_or_path="fvliang/qwen4b-dart",
    base_model_name_or_path="Qwen/Qwen3-4B",
    ngram_model_name_or_path="fvliang/dart-qwen3-ngram",
    is_small_ngram=True,
).to(device)
qwen_dart.eval()
conversation = qwen_dart.tokenizer.apply_chat_template(
    [
        {"role": "system", "content": TEMPLATE_REGISTRY.get("qwen").system_prompt},
        {"role": "user", "content": "Write a haiku."},
    ],
    tokenize=False,
    add_generation_prompt=True,
    enable_thinking=False,
)
input_ids = qwen_dart.tokenizer(
    conversation, return_tensors="pt", add_special_tokens=False
).input_ids.to(device)
color_index = 0
steps = []
for text in qwen_dart._dart_generate(input_ids, max_new_token_num=140, max_length=2400):
    de_text = qwen_dart.tokenizer.decode(
        text['id'],
        skip_special_tokens=True,
        spaces_between_special_tokens=False,
        clean_up_tokenization_spaces=True,
    )
    print(f"{COLORS[color_index % len(COLORS)]}{de_text}{RESET}", end="", flush=True)
    if de_text.strip():
        color_index += 1
    steps.append(text)
print()
"""

COMPARE = """
import time
input_ids = model.tokenizer("Hello", return_tensors="pt").input_ids.to(device)
speeds = {}
for name, generate in (("dart", model._dart_generate), ("ar", model._ar_generate)):
    start, tokens, passes = time.time(), 0, 0
    for step in generate(input_ids, max_new_token_num=64, max_length=1024):
        tokens += len(step["id"])
        passes += 1
    speeds[name] = (tokens / (time.time() - start), tokens / passes)
"""


def published(*parts: str) -> dict:
    names: dict = {}
    exec("\n".join(parts), names)
    return names


@pytest.fixture(scope="module")
def loaded(trio, tmp_path_factory) -> dict:
    """What the published loading lines leave behind, from the folder of the trio."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(trio)
        patch.setenv("DART_ARENA_CACHE", str(trio / "cache"))
        return published(LOAD)


def continued(loaded: dict, code: str) -> dict:
    names = dict(loaded)
    exec(code, names)
    return names


def test_usage_1_one_prompt(loaded, capsys):
    names = continued(loaded, ONE_PROMPT)
    assert names["model"].dtype == torch.float16
    assert names["output_ids"].dtype == torch.int64
    prompt = names["input_ids"]
    assert names["output_ids"][:, : prompt.shape[1]].equal(prompt)
    new = names["output_ids"][0, prompt.shape[1] :].tolist()
    assert 1 <= len(new) <= 512
    assert new[-1] == 511 or len(new) == 512  # the model's end token, or the budget
    assert names["prompt"] == names["template"].format(names["messages"])
    assert capsys.readouterr().out == names["text"] + "\n"


def test_usage_2_timing(loaded, capsys):
    names = continued(loaded, TIMING)
    output, template = names["output"], names["template"]
    assert capsys.readouterr().out.startswith(f"{len(output.tokens)} tokens in ")
    ids = names["model"].engine.chat_ids(
        [
            {"role": "system", "content": template.system_prompt},
            {"role": "user", "content": "Write a haiku."},
        ]
    )
    engine, settings = names["model"].engine, GenerationSettings(max_new_tokens=256)
    drafted, plain = engine.generate(ids, "dart", settings), engine.generate(ids, "ar", settings)
    assert output.tokens == drafted.output_ids
    assert output.text == drafted.text
    # In float16 nearly equal tokens may change places, on some processors and not on others.
    verdict = engine.judge(ids, plain.steps, drafted.steps, settings.sampling)
    assert verdict.status in ("equal", "tie")


def test_usage_3_a_jsonl_loop(loaded, trio):
    lines = [
        {"prompt": "Hello", "temperature": 0.0, "max_tokens": 9},
        {"prompt": "Good day", "max_tokens": 5},
    ]
    (trio / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    names = continued(loaded, JSONL_LOOP)
    results = [json.loads(line) for line in (trio / "results.jsonl").read_text().splitlines()]
    assert [list(result) for result in results] == [["prompt", "response"]] * 2
    assert [result["prompt"] for result in results] == ["Hello", "Good day"]
    first = ar_generate(names["model"], prompt="Hello", max_new_token_num=9)
    assert results[0]["response"] == first.text and len(first.tokens) == 9


def test_usage_4_colours(loaded, capsys):
    names = continued(loaded, COLOURS)
    steps = names["steps"]
    assert capsys.readouterr().out.startswith("\033[92m")
    assert [step["accept_length"] for step in steps] == [len(step["id"]) for step in steps]
    assert max(step["accept_length"] for step in steps[1:]) > 1
    whole = names["qwen_dart"].dart_generate(names["input_ids"], max_new_token_num=140)
    streamed = torch.cat([step["id"] for step in steps])
    assert streamed.equal(whole[0, names["input_ids"].shape[1] :])


def test_usage_5_the_app_compares(loaded):
    speeds = continued(loaded, COMPARE)["speeds"]
    assert speeds["ar"][1] == 1.0 and speeds["dart"][1] > 1.2


def test_the_package_names_them_and_stays_light():
    code = (
        "import sys, dart_core; print('torch' in sys.modules, 'DartModel' in dir(dart_core));"
        "from dart_core import TEMPLATE_REGISTRY; print('torch' in sys.modules);"
        "from dart_core import DartModel, dart_generate; print('torch' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == ["False", "True", "False", "True"]
    with pytest.raises(AttributeError, match="no attribute 'DratModel'"):
        dart_core.DratModel  # noqa: B018
    with pytest.raises(ImportError):
        from dart_core import no_such_name  # noqa: F401


# Equal to the engine, whatever the engine ---------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"temperature": 0.8, "top_k": 40, "seed": 3}])
def test_ids_texts_and_streams_are_the_engines(model, options):
    sampling = SamplingParams(
        options.get("temperature", 0.0), options.get("top_k", 0), seed=options.get("seed")
    )
    ids = model.tokenizer("Hello", add_special_tokens=False).input_ids
    assert ids == PROMPT[0].tolist()
    settings = GenerationSettings(max_new_tokens=24, sampling=sampling)
    expected = model.engine.generate(ids, "ar", settings)
    for name, method, function in (
        ("ar", model.ar_generate, ar_generate),
        ("dart", model.dart_generate, dart_generate),
        ("eagle3", model.eagle3_generate, eagle3_generate),
    ):
        assert method(PROMPT, **SHORT, **options)[0, len(ids) :].tolist() == expected.output_ids
        output = function(model, prompt="Hello", **SHORT, **options)
        assert (output.tokens, output.text) == (expected.output_ids, expected.text)
        assert output.finish_reason == expected.finish_reason
        assert output.seed == sampling.seed
        assert output.metrics["new_tokens"] == len(output.tokens)
        chunks = list(stream(model, "Hello", engine=name, **SHORT, **options))
        assert "".join(chunk.text for chunk in chunks) == expected.text
        assert [token for chunk in chunks for token in chunk.tokens] == expected.output_ids
        assert all(chunk.accepted == chunk.step.accepted for chunk in chunks)


def test_the_streaming_forms_of_all_engines(model):
    whole = model.ar_generate(PROMPT, **SHORT)[0, PROMPT.shape[1] :]
    for form in (model._ar_generate, model._dart_generate, model._eagle3_generate):
        assert torch.cat([step["id"] for step in form(PROMPT, **SHORT)]).equal(whole)


def test_a_closed_stream_frees_its_run(model):
    for source in (stream(model, "Hello"), model._dart_generate(PROMPT)):
        inner = source.gi_frame.f_locals["source"]
        next(source)
        source.close()
        assert inner.gi_frame is None


def test_conversations_stop_strings_and_budgets(model):
    messages = [{"role": "user", "content": "Hi"}]
    prompt = model.tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
    )
    whole = dart_generate(model, messages=messages, **SHORT)
    assert whole.tokens == dart_generate(model, prompt=prompt, **SHORT).tokens
    thinking = dart_generate(model, messages=messages, enable_thinking=True, **SHORT)
    assert thinking.tokens != whole.tokens
    middle = whole.text[5:8]
    for stop in (middle, [middle]):
        cut = dart_generate(model, messages=messages, stop=stop, **SHORT)
        assert cut.text == whole.text[: whole.text.index(middle)] and cut.finish_reason == "stop"
    full = model.dart_generate(PROMPT, max_new_token_num=50, max_length=12)
    assert full.shape == (1, 12)


def test_an_unset_seed_comes_from_torch_and_is_told(model):
    def sampled() -> tuple:
        output = dart_generate(model, "Hello", temperature=1.0, **SHORT)
        return output.seed, output.tokens

    torch.manual_seed(5)
    first, second = sampled(), sampled()
    torch.manual_seed(5)
    assert sampled() == first != second
    seed, tokens = first
    assert ar_generate(model, "Hello", temperature=1.0, seed=seed, **SHORT).tokens == tokens
    state = torch.get_rng_state()
    assert dart_generate(model, "Hello", **SHORT).seed is None  # greedy: nothing is drawn
    assert torch.get_rng_state().equal(state)


def test_the_second_call_is_as_good_as_the_first(model):
    """Sizes grow and shrink, engines alternate; nothing is left of the call before."""
    long = torch.randint(0, 500, (1, 150), generator=torch.Generator().manual_seed(1))
    calls = [
        (PROMPT.repeat(1, 4), {"max_length": 64}),
        (long, {"max_length": 256, "max_new_token_num": 60}),
        (PROMPT.repeat(1, 4), {"max_length": 64}),
    ]
    fresh = [
        Engine(model.engine.target, model.tokenizer, model.engine.drafters).generate(
            prompt[0], "ar", run_settings(**options)
        )
        for prompt, options in calls
    ]
    for methods in (("dart", "eagle3", "ar"), ("eagle3", "ar", "dart")):
        for (prompt, options), expected, name in zip(calls, fresh, methods, strict=True):
            output = getattr(model, f"{name}_generate")(prompt, **options)
            assert output[0, prompt.shape[1] :].tolist() == expected.output_ids


# What prompts may be ------------------------------------------------------------------------------


def test_one_prompt_in_any_shape():
    ids = [5, 9, 23]
    for given in (
        torch.tensor([ids]),
        torch.tensor(ids),
        torch.tensor([ids], dtype=torch.int32),
        np.array([ids]),
        [ids],
        ids,
        (tuple(ids),),
    ):
        assert prompt_row(given) == ids


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (torch.zeros(2, 7, dtype=torch.int64), r"shape \[2, 7\]: .*batch size 1.*dart_core batch"),
        (torch.zeros(0, 7, dtype=torch.int64), "the prompt is empty"),
        ([[1, 2], [3]], "got 2 prompts: .*batch size 1.*dart_core batch"),
        (torch.zeros(1, 3), "float32; expected whole numbers"),
        ("Hello", "is a text, 'Hello': give model.tokenizer"),
        ({"input_ids": [1]}, "give its .input_ids"),
        (None, "input_ids is None; expected token ids"),
        (torch.zeros(1, 0, dtype=torch.int64), "the prompt is empty"),
        (torch.tensor([[5, 900]]), "900 is outside the target's vocabulary of 512"),
        (torch.zeros(1, 1, 3, dtype=torch.int64), "batch of 1 prompts"),
    ],
)
def test_what_is_no_prompt_is_refused(model, given, says):
    """Batches among them: never an error from inside a cache."""
    with pytest.raises(ArenaError, match=says):
        model.dart_generate(given)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"prompt": ["a", "b"]}, "got 2 prompts: .*dart_core batch"),
        ({"prompt": ""}, "at least one character, got ''"),
        ({}, "give either prompt, a text, or messages"),
        ({"prompt": "a", "messages": []}, "give either prompt"),
        ({"messages": [{"role": "bot", "content": "x"}]}, "message 1 has role 'bot'"),
        ({"prompt": "a", "temperature": -1}, "temperature -1 is outside"),
        ({"prompt": "a", "top_p": 1.5}, "top-p 1.5 is outside 0 to 1"),
        ({"prompt": "a", "remain_total": 0}, "tree budget 0 is outside 1 to 4096"),
        ({"prompt": "a", "max_new_token_num": 0}, "max new tokens 0 is below 1"),
        ({"prompt": "a" * 30, "max_length": 30}, "has 30 tokens and max length is 30"),
    ],
)
@pytest.mark.parametrize("function", [dart_generate, stream])
def test_what_a_call_refuses(model, function, options, says):
    with pytest.raises(ArenaError, match=says):
        function(model, **options)


def test_a_keyword_nobody_knows_is_pythons_own_error(model):
    with pytest.raises(TypeError, match="max_new_tokens"):
        model.dart_generate(PROMPT, max_new_tokens=5)


# Loading ------------------------------------------------------------------------------------------


def trio_of(**changes) -> dict:
    return {
        "base_model_name_or_path": BASE,
        "dart_model_name_or_path": DART,
        "ngram_model_name_or_path": NGRAM,
        "torch_dtype": torch.float32,
        **changes,
    }


def test_small_and_full_ngram(model):
    small = DartModel.from_pretrained(**trio_of(is_small_ngram=True))
    full = DartModel.from_pretrained(**trio_of())
    assert small.engine.ngrams[0] == "small" and full.engine.ngrams[0] == "full"
    expected = model.dart_generate(PROMPT, **SHORT)
    assert small.dart_generate(PROMPT, **SHORT).equal(expected)
    assert full.dart_generate(PROMPT, **SHORT).equal(expected)


def test_to_and_eval(model, caplog):
    assert model.eval() is model
    assert model.to("cpu") is model and model.to(torch.device("cpu")) is model
    assert caplog.text == ""
    placed = DartModel.from_pretrained(**trio_of(device_map="auto"))
    assert placed.to("cpu") is placed
    assert "to(cpu) changes nothing: the weights are placed already" in caplog.text
    assert placed.dart_generate(PROMPT, **SHORT).equal(model.dart_generate(PROMPT, **SHORT))
    for device, says in (
        ("meta", "device meta is not supported; expected cpu, cuda"),
        (torch.float16, "give the dtype to from_pretrained, as torch_dtype"),
    ):
        with pytest.raises(ArenaError, match=says):
            model.to(device)


def test_to_another_device_loads_it_there(model, monkeypatch):
    """As on a machine with a GPU, where ``.to("cpu")`` asks for another place than the default."""
    asked = []

    def load(*, device):
        asked.append(device)
        return model.engine

    moved = DartModel(model.engine, load=load)
    monkeypatch.setattr(DartModel, "device", torch.device("cuda", 0))
    assert moved.to("cpu") is moved and moved.engine is model.engine
    assert asked == [torch.device("cpu")]
    with pytest.raises(ArenaError, match="was loaded on cuda:0; load it on cpu"):
        DartModel(model.engine).to("cpu")

    def full(*, device):
        raise OutOfMemory("no room for the target")

    with pytest.raises(ArenaError, match=r"to\(cpu\): no room for the target; the model is gone"):
        DartModel(model.engine, load=full).to("cpu")


def test_no_stop_and_what_is_none():
    assert run_settings(stop=None).stop == ()
    with pytest.raises(ArenaError, match="stop strings come as a list of texts, got 5"):
        run_settings(stop=5)


def test_a_loaded_target_and_ngram_are_shared(model):
    ngram = DartModel.ngram_from_pretrained(NGRAM, is_small_ngram=True)
    paths = {"dart_model_name_or_path": DART, "base_model_name_or_path": BASE}
    expected = model.dart_generate(PROMPT, **SHORT)
    for base in (model, model.base_model):
        for shared in (ngram, model.engine.drafters["dart"].ngrams["full"], None):
            assert shared is None or isinstance(shared, NgramModel) or shared is ngram
            other = DartModel.from_pretrained_with_base(
                base_model=base, ngram_model=shared, base_model_config=model.config, **paths
            )
            assert other.base_model is model.base_model
            assert other.dart_generate(PROMPT, **SHORT).equal(expected)
            assert other.to("cpu") is other
    assert other.get_tokenizer() is other.tokenizer
    with pytest.raises(ArenaError, match="give dart_model_name_or_path"):
        DartModel.from_pretrained_with_base(model, ngram)


@pytest.mark.parametrize("dtype", ["bfloat16", "torch.bfloat16", torch.bfloat16])
def test_dtypes_by_name(dtype):
    model = DartModel.from_pretrained(base_model_name_or_path=BASE, torch_dtype=dtype)
    assert model.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"base_model_name_or_path": "no/such/model"}, "no such folder"),
        ({"dart_model_name_or_path": EAGLE3}, "EAGLE3"),
        ({"torch_dtype": "float17"}, "'float17' is no dtype"),
        ({"torch_dtype": 16}, "16 is no dtype"),
        ({"ngram_model_name_or_path": BASE}, "not an n-gram: give"),
    ],
)
def test_what_cannot_be_loaded_is_told(changes, says):
    with pytest.raises(ArenaError, match=says):
        DartModel.from_pretrained(**trio_of(**changes))


@pytest.mark.parametrize("given", ["base", "dart"])
def test_a_published_id_brings_its_partners_and_no_head_is_loaded_unasked(given):
    known = {"base": BASE, "dart": DART}[given]
    model = DartModel.from_pretrained(**{f"{given}_model_name_or_path": known}, torch_dtype="auto")
    assert model.dart_generate(PROMPT, **SHORT).shape == (1, 29)
    assert model.engine.ngrams[0] == "full"
    with pytest.raises(ArenaError, match="'eagle3' is not loaded; loaded engines: ar, dart"):
        model.eagle3_generate(PROMPT)


def test_nothing_given_is_told():
    with pytest.raises(ArenaError, match="no target: give base_model_name_or_path"):
        DartModel.from_pretrained()


# Templates ----------------------------------------------------------------------------------------


def test_qwen_says_what_the_models_template_says(model):
    template = TEMPLATE_REGISTRY.get("qwen")
    assert template is TEMPLATE_REGISTRY["qwen"]
    assert template.system_prompt == "You are a helpful assistant."
    conversation = [
        {"role": "system", "content": template.system_prompt},
        {"role": "user", "content": "1 + 1?"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "and {{ braces }}?"},
    ]
    for thinking in (False, True):
        assert template.format(
            conversation, enable_thinking=thinking
        ) == model.tokenizer.apply_chat_template(
            conversation,
            chat_template=QWEN3,
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=thinking,
        )
    conversation[2]["content"] = "<think>\none more\n</think>\n\n2"
    assert "one more" not in template.format(messages=conversation)
    assert TEMPLATE_REGISTRY["chatml"].format(messages=conversation[3:]) == (
        "<|im_start|>user\nand {{ braces }}?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_registry_lists_what_it_knows():
    assert TEMPLATE_REGISTRY.get_all_template_names() == ["qwen", "chatml"]
    assert "qwen" in TEMPLATE_REGISTRY and "vicuna" not in TEMPLATE_REGISTRY
    for ask in (TEMPLATE_REGISTRY.get, TEMPLATE_REGISTRY.__getitem__):
        for name in ("vicuna", None, ["qwen"]):
            with pytest.raises(ArenaError, match="known templates: qwen, chatml"):
                ask(name)
    with pytest.raises(ArenaError, match="message 1 has role 'bot'"):
        TEMPLATE_REGISTRY["qwen"].format(messages=[{"role": "bot", "content": "x"}])


def test_a_template_of_ones_own():
    registry = type(TEMPLATE_REGISTRY)()
    phi = ChatTemplate(
        assistant_header="<|assistant|>\n",
        user_header="<|user|>\n",
        system_prompt=None,
        end_of_turn_token="<|end|>\n",
    )
    registry.register(name="phi3", template=phi)
    assert list(registry) == ["phi3"]
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    assert registry["phi3"].format(messages) == (
        "<|system|>\ns<|end|>\n<|user|>\nu<|end|>\n<|assistant|>\n"
    )
    with pytest.raises(ArenaError, match="'phi3' is there already"):
        registry.register("phi3", phi)
    registry.register("phi3", phi, override=True)
