"""What users of the published package bring along: a script as a file, the app's command line, the
loop over JSONL lines; and what the migration table says of the differences. The Python usages one
by one are in test_api.py.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from documented import ROOT, namespace
from test_api import COLOURS, JSONL_LOOP, LOAD, TIMING
from tiny_trio import BASE, DART, EAGLE3, NGRAM, load_trio, make_trio

from app import __main__ as app
from dart_core import TEMPLATE_REGISTRY, ChatTemplate, DartModel, api
from dart_core.cli import main
from dart_core.errors import ArenaError

MIGRATION = ROOT / "assets" / "reference" / "migration.md"
PROMPT = torch.tensor([[39, 68, 75, 75, 78]])


@pytest.fixture(scope="module")
def trio(tmp_path_factory) -> Path:
    return make_trio(tmp_path_factory.mktemp("trio"))


@pytest.fixture(autouse=True)
def home(trio, monkeypatch):
    """Where the published ids name local folders."""
    monkeypatch.chdir(trio)
    monkeypatch.setenv("DART_ARENA_CACHE", str(trio / "cache"))


@pytest.fixture(scope="module")
def model(trio) -> DartModel:
    return load_trio(trio)


# As they stand ------------------------------------------------------------------------------------


def test_a_published_script_as_a_file(trio, tmp_path):
    """Started by python: nothing is said on stdout that the script does not print itself."""
    script = tmp_path / "main.py"
    script.write_text(LOAD + TIMING + COLOURS)
    result = subprocess.run(
        [sys.executable, script],
        cwd=trio,
        env=os.environ | {"DART_ARENA_CACHE": str(trio / "cache"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr
    assert re.search(r"^\d+ tokens in [\d.]+ s: [\d.]+ tok/s\n\x1b\[92m", result.stdout, re.M)


def test_the_published_apps_command_line(model):
    """All of its flags, with what the published scripts say; what it loads is raced on the page."""
    args = app.build_parser().parse_args(
        f"--base-model-name-or-path {BASE} --dart-model-name-or-path {DART} "
        f"--ngram-model-name-or-path {NGRAM} --use-small-ngram --template-name qwen --device auto "
        f"--max-new-tokens 5120 --max-length 6400 --share --compare-eagle3 "
        f"--eagle3-model-name-or-path {EAGLE3} --listen --server-port 30000".split()
    )
    assert (args.max_new_tokens, args.max_length, args.server_port) == (5120, 6400, 30000)
    assert args.share and args.listen
    app._complete(args)
    args.dtype = "float32"  # as the other model's, to be equal to it
    engine = app._engine(args, lambda line: None)
    assert {"ar", "dart", "eagle3"} <= engine.drafters.keys()
    assert engine.ngrams[0] == "small"
    settings = api.run_settings(max_new_token_num=24)
    expected = model.engine.generate(PROMPT[0], "ar", settings).output_ids
    for name in engine.drafters:
        assert engine.generate(PROMPT[0], name, settings).output_ids == expected


def test_batch_answers_as_the_published_loop(trio, model, tmp_path):
    """By the command that the table names, but for the models."""
    lines = [{"prompt": text, "temperature": 0, "max_tokens": 9} for text in ("Hello", "Good day")]
    text = (
        "".join(json.dumps(line) + "\n" for line in lines) + '{"prompt": "Hi", "max_tokens": 9}\n'
    )
    (trio / "prompts.jsonl").write_text(text)
    names = {"model": model, "dart_generate": api.dart_generate}
    exec(JSONL_LOOP, names)
    loop = [json.loads(line) for line in (trio / "results.jsonl").read_text().splitlines()]
    command = re.search(r"`python -m dart_core (batch .*?) --preset qwen3-4b (.*?)`", told())
    words = f"{command[1]} {command[2]} --base-model-name-or-path {BASE} --dtype float32".split()
    words[1:3] = ["prompts.jsonl", str(tmp_path / "out.jsonl")]
    assert main([*words, "--device", "cpu"]) == 0
    batch = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(each["prompt"], each["response"]) for each in batch[:2]] == [
        (each["prompt"], each["response"]) for each in loop[:2]
    ]
    assert batch[2]["prompt"] == "Hi" and batch[2]["seed"] is not None  # the flags' temperature
    assert batch[0]["seed"] is None


# The migration table ------------------------------------------------------------------------------


def told() -> str:
    return MIGRATION.read_text(encoding="utf-8")


def rows() -> list[tuple[str, str, str]]:
    found = re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \|$", told(), re.MULTILINE)
    return [row for row in found if row[0] not in ("published", "---")]


CALLS = (
    DartModel.from_pretrained,
    api.run_settings,
    api._generate,
    api.stream,
    TEMPLATE_REGISTRY.register,
    ChatTemplate.format,
)
FLAGS = (
    "--base-model-name-or-path",
    "--dart-model-name-or-path",
    "--ngram-model-name-or-path",
    "--use-small-ngram",
    "--template-name",
    "--device",
    "--max-new-tokens",
    "--max-length",
    "--share",
    "--compare-eagle3",
    "--eagle3-model-name-or-path",
    "--listen",
    "--server-port",
)
LINE = {"prompt", "response", "error", "temperature", "max_tokens"}  # of a JSONL file
STEP = {"id", "accept_length"}  # of what `_dart_generate` yields


def test_every_name_of_ours_in_the_table_is_there():
    keywords = {name for call in CALLS for name in inspect.signature(call).parameters}
    names = namespace().keys() | keywords | {"KeyError", "ValueError"} | LINE | STEP
    names |= set(TEMPLATE_REGISTRY.get_all_template_names())
    asked = 0
    for published, here, difference in rows():
        ours = f"{published if here == 'same' else ''} {here} {difference}"
        for span in re.findall(r"`([^`]+)`", ours):
            if keyword := re.fullmatch(r"(\w+)=\S*", span):
                assert keyword[1] in keywords, span
            elif re.fullmatch(r"\w+", span) and not span.isupper():
                assert span in names, span
            asked += 1
    assert len(rows()) > 30 and asked > 80


def test_every_published_name_has_its_row():
    first = " ".join(published for published, _, _ in rows())
    for name in (
        "from_pretrained",
        "from_pretrained_with_base",
        "ngram_from_pretrained",
        "model.to",
        "dart_generate",
        "_dart_generate",
        "ar_generate",
        "_ar_generate",
        "TEMPLATE_REGISTRY.get",
        "TEMPLATE_REGISTRY.register",
        "template.format",
        "remain_total=",
        *FLAGS,
    ):
        assert name in first, name


@pytest.mark.parametrize("name", ["dart", "eagle3"])
def test_the_budget_of_a_tree_is_exact_and_60_by_default(model, name):
    steps = list(model.engine.stream(PROMPT[0], name, api.run_settings(max_new_token_num=40)))
    assert [step.drafted for step in steps[1:-1]] == [60] * (len(steps) - 2)
    few = api.run_settings(max_new_token_num=40, remain_total=7)
    steps = list(model.engine.stream(PROMPT[0], name, few))
    assert [step.drafted for step in steps[1:-1]] == [7] * (len(steps) - 2)


def test_a_streamed_step(model):
    steps = list(model._dart_generate(PROMPT, max_new_token_num=24))
    assert len(steps[0]["id"]) == 1
    assert set(steps[0]) == STEP
    assert sum(step["accept_length"] for step in steps) == 24
    assert max(step["accept_length"] for step in steps) > 1


def test_the_answer_is_cut_exactly(model):
    whole = model.ar_generate(PROMPT, max_new_token_num=60)[0]
    lengths = {model.dart_generate(PROMPT, max_new_token_num=n).shape[1] for n in range(9, 16)}
    assert lengths == {PROMPT.shape[1] + n for n in range(9, 16)}
    end = whole[PROMPT.shape[1] + 12].item()  # taken for an end token, it is the last one
    settings = replace(api.run_settings(max_new_token_num=60), eos_token_ids=[end])
    ids = model.engine.generate(PROMPT[0], "dart", settings).output_ids
    assert ids == whole[PROMPT.shape[1] :].tolist()[: len(ids)]
    assert ids.index(end) == len(ids) - 1


def test_an_iterator_refuses_at_once(model):
    for form in (model._dart_generate, model._eagle3_generate, model._ar_generate):
        with pytest.raises(ArenaError, match="batch size 1"):
            form(PROMPT.repeat(2, 1))
        with pytest.raises(ArenaError, match="max length is 5"):
            form(PROMPT, max_length=5)


def test_an_unknown_template_is_no_key_error():
    with pytest.raises(ArenaError) as caught:
        TEMPLATE_REGISTRY["vicuna"]
    assert not isinstance(caught.value, KeyError) and isinstance(caught.value, ValueError)
    with pytest.raises(ArenaError, match="override=True"):
        TEMPLATE_REGISTRY.register(name="qwen", template=TEMPLATE_REGISTRY["qwen"])
