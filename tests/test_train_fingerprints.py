"""What a result was made from: other text, targets and settings are noticed by their content."""

from __future__ import annotations

import json
import shutil
from argparse import Namespace
from pathlib import Path

import pytest
from models import tiny_model
from safetensors.torch import load_file, save_file
from test_training import CHAT, chat
from text_models import byte_level

from dart_core.cli import main
from dart_core.training.features import FeatureCache
from dart_core.training.fingerprints import target_fingerprint, text_fingerprint
from dart_core.training.setup import read_sequences


def write_text(path: Path, word: str) -> str:
    records = [{"messages": chat(f"hi {n}", f"{word} {n}")} for n in range(4)]
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


@pytest.fixture
def target(tmp_path):
    tokenizer = byte_level(chat_template=CHAT)
    tiny_model("llama", vocab_size=len(tokenizer)).save_pretrained(tmp_path / "target")
    tokenizer.save_pretrained(tmp_path / "target")
    return tmp_path / "target"


def heavier(folder: Path) -> None:
    """Other weights in the same place."""
    path = folder / "model.safetensors"
    weights = {name: weight * 1.5 for name, weight in load_file(path).items()}
    save_file(weights, path, metadata={"format": "pt"})


def sequences_of(*data: str, seed: int = 0):
    args = {"exclude": [], "exclude_words": 8, "holdout": 2, "seed": seed, "max_length": 512}
    return read_sequences(Namespace(data=data, **args), byte_level(chat_template=CHAT))


def test_files_give_the_same_text_in_whatever_order(tmp_path):
    one, two = write_text(tmp_path / "a.jsonl", "alpha"), write_text(tmp_path / "b.jsonl", "beta")
    ordered, facts = sequences_of(one, two)
    assert sequences_of(two, one)[1] == facts
    assert text_fingerprint(sequences_of(two, one)[0]) == text_fingerprint(ordered)
    assert text_fingerprint(sequences_of(one, two, seed=1)[0]) != text_fingerprint(ordered)
    assert sorted(name for name, _ in facts["data"]) == ["a.jsonl", "b.jsonl"]


def test_a_fingerprint_of_text_is_of_tokens_and_what_is_supervised(tmp_path):
    (first, *_), _ = sequences_of(write_text(tmp_path / "a.jsonl", "alpha"))
    known = text_fingerprint([first])
    for name in ("tokens", "supervised"):
        getattr(first, name)[3] ^= True
        assert text_fingerprint([first]) != known
        getattr(first, name)[3] ^= True
    assert text_fingerprint([first]) == known != text_fingerprint([first, first])


def test_a_fingerprint_of_a_target_is_of_its_content(target, tmp_path):
    known = target_fingerprint(target)
    shutil.copytree(target, tmp_path / "copy")
    config = json.loads((target / "config.json").read_text())
    config["transformers_version"] = "0"
    (target / "config.json").write_text(json.dumps(config))
    assert target_fingerprint(target) == known == target_fingerprint(tmp_path / "copy")
    (target / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 0.1}))
    heavier(tmp_path / "copy")
    assert len({known, target_fingerprint(target), target_fingerprint(tmp_path / "copy")}) == 3


@pytest.fixture
def features(target, monkeypatch, tmp_path):
    """Runs ``train features`` with a.jsonl and b/a.jsonl."""
    monkeypatch.setenv("DART_ARENA_CACHE", str(tmp_path / "own"))
    write_text(tmp_path / "a.jsonl", "alpha")
    write_text(tmp_path / "b" / "a.jsonl", "beta")
    monkeypatch.chdir(tmp_path)

    def run(*flags: str) -> int:
        flags = ("--threads", "1", "--holdout", "2", *flags)
        data = ("--data", "a.jsonl", "b/a.jsonl")
        return main(["train", "features", "--base-model-name-or-path", "target", *data, *flags])

    return run


@pytest.mark.parametrize("change", ["text", "target", "dtype"])
def test_a_feature_cache_notices_what_has_changed(change, features, capsys, tmp_path):
    own = ("--cache", str(tmp_path / "kept"), "--dtype", "float32")
    assert features(*own) == features(*own[2:]) == 0
    capsys.readouterr()
    if change == "text":  # of one of two files of the same name
        write_text(tmp_path / "a.jsonl", "gamma")
    elif change == "target":
        heavier(tmp_path / "target")
    else:
        own = (*own[:3], "bfloat16")
    assert features(*own) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert f"{tmp_path / 'kept'} holds features of {change} " in error
    assert error.endswith("choose another folder, or remove this one")
    # In the user's cache folder each has a place of its own.
    assert features(*own[2:]) == 0
    caches = [FeatureCache(folder) for folder in (tmp_path / "own" / "features").iterdir()]
    assert [len(cache) for cache in caches] == [8, 8]
    assert not all(caches[0][n].hidden.equal(caches[1][n].hidden) for n in range(8))


@pytest.mark.parametrize("content", ["{", '{"taps": [1], "top_k": 32, "sequences": 8}'])
def test_a_feature_cache_that_tells_too_little(content, features, capsys, tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "cache.json").write_text(content)
    assert features("--cache", str(tmp_path / "kept")) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ") and error.endswith("folder, or remove this one")
    assert content == "{" or "text (an older version did not note it), not " in error


@pytest.fixture
def answers(target, monkeypatch, tmp_path):
    """Runs ``train data`` with prompts.jsonl, from the target, to so many conversations."""
    monkeypatch.chdir(tmp_path)
    for name in ("prompts", "excluded"):
        lines = (json.dumps({"prompt": f"{name} {number}"}) + "\n" for number in range(6))
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    (tmp_path / "t.json").write_text('{"templates": ["say {word}"], "word": ["yes", "no"]}')

    def run(count: int, *flags: str) -> int:
        own = ("--base-model-name-or-path", "target", "--threads", "1", "--batch", "2")
        short = ("--max-new-tokens", "9", "--max-length", "99", "--output", "x.jsonl")
        return main(["train", "data", *own, *short, "--conversations", str(count), *flags])

    return run


ASKED = ("--prompts", "prompts.jsonl")
TEMPLATES = ("--templates", "t.json", "--template-share", "1")


@pytest.mark.parametrize("goal", [4, 2])  # also where no more is to be written
@pytest.mark.parametrize(
    ("flags", "changed", "says"),
    [
        (ASKED, ("--prompts", "excluded.jsonl"), "--prompts prompts.jsonl ("),
        (ASKED, (), "--prompts prompts.jsonl ("),
        ((*ASKED, "--exclude", "excluded.jsonl"), ASKED, "--exclude excluded.jsonl ("),
        (TEMPLATES, TEMPLATES[2:], "--templates t.json ("),
        (ASKED, "target", "target fingerprint "),
        (ASKED, "older", "--exclude-words (an older version did not note it), not 8: give"),
    ],
)
def test_answers_go_on_from_what_they_were_begun_with(
    goal, flags, changed, says, answers, capsys, tmp_path
):
    assert answers(2, *flags) == 0
    if changed == "target":
        heavier(tmp_path / "target")
        changed = flags
    if changed == "older":
        state = json.loads((tmp_path / "x.jsonl.state").read_text())
        del state["settings"]["--exclude-words"]
        (tmp_path / "x.jsonl.state").write_text(json.dumps(state))
        changed = flags
    before = (tmp_path / "x.jsonl").read_text()
    capsys.readouterr()
    assert answers(goal, *changed) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert f"error: x.jsonl was begun with {says}" in error
    assert error.endswith("give the same again, or another --output")
    assert (tmp_path / "x.jsonl").read_text() == before


def test_a_damaged_note_of_how_far_answers_are_is_said(answers, capsys, tmp_path):
    assert answers(2, *ASKED) == 0
    before = (tmp_path / "x.jsonl").read_text()
    counts = '"batches": 1, "written": 2, "dropped": 0'
    for damaged in (
        '{"batches": 1', "[]", '{"batches": 1, "written": null, "dropped": 0}', "{}",
        f'{{{counts}, "settings": null}}', f'{{{counts}, "seconds": "x"}}',
    ):  # fmt: skip
        (tmp_path / "x.jsonl.state").write_text(damaged)
        capsys.readouterr()
        assert answers(4, *ASKED) == 1
        error = capsys.readouterr().err.splitlines()[-1]
        assert error.startswith("error: x.jsonl.state is damaged (")
        assert "give another --output, or remove both" in error
    assert (tmp_path / "x.jsonl").read_text() == before


@pytest.mark.parametrize("left", [0, 1, None])
def test_answers_that_are_gone_are_not_counted(answers, capsys, tmp_path, left):
    output = tmp_path / "x.jsonl"
    assert answers(2, *ASKED) == 0
    lines = output.read_text().splitlines(keepends=True)
    output.unlink()
    if left is not None:
        output.write_text("".join(lines[:left]))
    capsys.readouterr()
    for count in (2, 4):
        assert answers(count, *ASKED) == 1
        error = capsys.readouterr().err.splitlines()[-1]
        assert f"x.jsonl holds {left or 0} conversations, but x.jsonl.state says that 2" in error
    assert output.exists() == (left is not None)


def test_answers_go_on_from_the_same_files_and_target_elsewhere(answers, tmp_path):
    assert answers(2, *ASKED) == 0
    (tmp_path / "else").mkdir()
    shutil.copy(tmp_path / "prompts.jsonl", tmp_path / "else")
    shutil.copytree(tmp_path / "target", tmp_path / "else" / "target")
    moved = ("--base-model-name-or-path", str(tmp_path / "else" / "target"))
    assert answers(4, "--prompts", str(tmp_path / "else" / "prompts.jsonl"), *moved) == 0
    lines = (tmp_path / "x.jsonl").read_text().splitlines()
    texts = [json.loads(line)["messages"][0]["content"] for line in lines]
    assert texts == [f"prompts {number}" for number in range(4)]
