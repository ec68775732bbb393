"""``python -m dart_core train``: what it refuses before a model is loaded or data is read."""

from __future__ import annotations

import argparse
import math

import pytest

from dart_core.cli import main
from dart_core.cli_train import add_train_parser
from dart_core.disk import alone_with
from dart_core.training import commands, setup

DATA = ("--data", "nothing.jsonl")
HEAD = ("--dart-model-name-or-path", "x")


@pytest.fixture(autouse=True)
def no_models(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("this should have been refused before")

    for module in (commands, setup):
        monkeypatch.setattr(module, "resolve", refuse)


@pytest.mark.parametrize(
    ("flags", "code", "says"),
    [
        (("dart", *DATA), 1, "give steps, tokens or minutes (--steps, --tokens, --minutes)"),
        (("dart", *DATA, "--steps", "0"), 1, "--steps 0: expected 1 or more"),
        (("eagle3", *DATA, "--learning-rate", "nan"), 1, "--learning-rate nan: expected 0 to 1"),
        (("dart", *DATA, "--device", "gpu"), 1, "device gpu is not supported"),
        (("dart", *DATA, "--threads", "-1"), 1, "--threads -1: expected 1 or more"),
        (("dart", *DATA, "--threads", "99999"), 1, "--threads 99999: expected 1 to "),
        (("ngram", *DATA, "--threads", "99999"), 1, "--threads 99999: expected 1 to "),
        (("plan", "--threads", "99999"), 1, "--threads 99999: expected 1 to "),
        (("dart", *DATA, "--rows", "two"), 2, "invalid int value: 'two'"),
        (("ngram", *DATA, "--holdout", "-1"), 1, "--holdout -1: expected 0 or more"),
        (("data", "--conversations", "0"), 1, "--conversations 0: expected 1 to 1000000000"),
        (("data", "--max-new-tokens", "0"), 1, "--max-new-tokens 0: expected 1 or more"),
        (("data", "--greedy-share", "1.5"), 1, "--greedy-share 1.5: expected 0 to 1"),
        (("data", "--template-share", "nan"), 1, "--template-share nan: expected 0 to 1"),
        (("data", "--temperature", "inf"), 1, "--temperature inf: expected 0 to 100"),
        (("data", "--minutes", "inf"), 1, "--minutes inf: expected above 0 to 1000000"),
        (("data", "--seed", str(2**63)), 1, f"--seed {2**63}: expected 0 to 4294967295"),
        (("ngram", *DATA, "--seed", "-1"), 1, "--seed -1: expected 0 to 4294967295"),
        (("plan", "--head-minutes", "inf"), 1, "--head-minutes inf: expected above 0 to"),
        (("features", *DATA, "--cache-gib", "inf"), 1, "--cache-gib inf: expected 0 to 1000000"),
        (("dart", *DATA, "--minutes", "0"), 1, "--minutes 0.0: expected above 0 to 1000000"),
        (("dart", *DATA, "--row-keep", "2"), 1, "--row-keep 2.0: expected 0 to 1"),
        (("dart", *DATA, "--loss-decay", "0"), 1, "--loss-decay 0.0: expected above 0 to 1"),
        (("dart", *DATA, "--learning-rate", "inf"), 1, "--learning-rate inf: expected 0 to 1"),
    ],
)
def test_wrong_values(flags, code, says, tmp_path, capsys):
    output = () if flags[0] == "features" else ("--output", str(tmp_path / "x"))
    assert main(["train", *flags, *output]) == code
    error = capsys.readouterr().err
    assert says in error
    assert error.startswith("error: ") and error.count("\n") == 1


def test_every_flag_that_takes_any_number_has_an_upper_limit():
    steps = argparse.ArgumentParser().add_subparsers()
    add_train_parser(steps)
    (own,) = [a for a in steps.choices["train"]._actions if a.choices]
    flags = {a.dest for step in own.choices.values() for a in step._actions if a.type is float}
    assert "minutes" in flags
    for name in flags:
        assert math.inf not in setup.LIMITS[name]
        assert math.nan not in setup.LIMITS[name]
        assert 0.5 in setup.LIMITS[name]


@pytest.mark.parametrize("step", ["dart", "ngram", "data"])
def test_an_output_below_a_file(step, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    data = () if step == "data" else DATA
    assert main(["train", step, *data, "--output", str(tmp_path / "file" / "x")]) == 1
    error = capsys.readouterr().err
    assert str(tmp_path / "file") in error
    assert error.startswith("error: ") and error.count("\n") == 1


def test_a_head_is_not_trained_over_the_one_it_starts_from(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    flags = ("--steps", "1", "--init-from", "head", "--output", str(tmp_path / "head"))
    assert main(["train", "dart", *DATA, *flags]) == 1
    assert "is the folder of --init-from: the head there would be lost" in capsys.readouterr().err


@pytest.mark.parametrize("step", ["data", "dart", "eagle3"])
def test_an_output_that_another_process_is_writing(step, tmp_path, capsys):
    output = tmp_path / "x"
    if step == "data":
        output.write_bytes(b"the first line\nhalf of the seco")
        tmp_path.joinpath("x.state").write_text('{"batches": 1, "written": 1, "dropped": 0}')
        flags, lock = [], tmp_path / "x.lock"
    else:
        output.mkdir()
        flags, lock = [*DATA, "--steps", "1"], output / "lock"
    before = output.read_bytes() if step == "data" else b""
    with alone_with(output, lock):
        assert main(["train", step, *flags, "--device", "cpu", "--output", str(output)]) == 1
    assert f"another process is writing {output}: wait for its end" in capsys.readouterr().err
    assert step != "data" or output.read_bytes() == before
    with pytest.raises(AssertionError, match="refused before"):  # it is free again
        main(["train", step, *flags, "--device", "cpu", "--output", str(output)])
    assert not lock.exists()


def test_an_output_that_is_an_input(tmp_path, capsys):
    text = tmp_path / "text.jsonl"
    text.write_text("{}")
    head = ("--dart-model-name-or-path", "x")
    for flags in (
        ("data", "--prompts", text, "--output", text),
        ("data", "--templates", text, "--output", text),
        ("ngram", "--data", text, "--output", text),
        ("eval", "--data", text, *head, "--json", text),
        ("eval", *DATA, "--prompt-file", text, *head, "--json", text),
    ):
        assert main(["train", *map(str, flags)]) == 1
        assert f" {text} is an input itself: give" in capsys.readouterr().err
    assert text.read_text() == "{}"


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ((), "nothing to evaluate: give --dart-model-name-or-path"),
        ((*HEAD, "--holdout", "0"), "--holdout must be above 0"),
        ((*HEAD, "--budgets", "8,0"), "--budgets 0: expected a number from 1 to 4096"),
        ((*HEAD, "--budgets", "5000"), "--budgets 5000: expected a number from 1 to 4096"),
        ((*HEAD, "--prompt-file", "none.jsonl"), "prompt file none.jsonl: No such file"),
        ((*HEAD, "--ngram-model-name-or-path", "none.ngram"), "none.ngram"),
    ],
)
def test_what_cannot_be_measured_is_refused_at_once(flags, says, capsys):
    assert main(["train", "eval", *DATA, "--device", "cpu", *flags]) == 1
    error = capsys.readouterr().err
    assert says in error
    assert error.startswith("error: ") and error.count("\n") == 1


def test_figures_that_could_not_be_written(tmp_path, capsys):
    flags = ["--dart-model-name-or-path", "x", "--json", str(tmp_path / "none" / "x.json")]
    assert main(["train", "eval", *DATA, *flags]) == 1
    assert "no folder" in capsys.readouterr().err
