"""Ctrl-C and SIGTERM in every phase of a command: one line, and nothing half-done."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from tiny_trio import cached_trio, load_engine, trio_flags

from dart_core import engine as engines
from dart_core.batch import read_records
from dart_core.cli import main
from dart_core.engine import Engine
from dart_core.target import Target


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    with cached_trio(tmp_path_factory.mktemp("trio")) as root:
        yield root


@pytest.fixture(scope="module")
def flags(root) -> list[str]:
    return [*trio_flags(root), "--dtype=float32", "--device=cpu", "--max-new-tokens=6"]


@pytest.fixture(scope="module")
def engine(root) -> Engine:
    return load_engine(root)


ENDINGS = {  # phase -> whose call it is in, and what ends it there
    "load": (engines, "load_models", signal.SIGTERM),
    "prefill": (Target, "prefill", signal.SIGINT),
    "generate": (Target, "verify", signal.SIGTERM),
}


@pytest.mark.parametrize("command", ["generate", "compare", "check", "batch", "bench"])
@pytest.mark.parametrize("phase", ENDINGS)
def test_a_signal_in_any_phase(command, phase, flags, engine, tmp_path, monkeypatch, capsys):
    """One line, the code that shells expect, what is done by then, and nothing half-done."""
    owner, name, ending = ENDINGS[phase]
    real, calls = getattr(owner, name), []
    at = {"load": 1, "prefill": 8, "generate": 40 if command == "compare" else 15}[phase]

    def signalled(*arguments, **options):
        calls.append(name)
        result = real(*arguments, **options)
        if len(calls) == at:
            signal.raise_signal(ending)
        return result

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, signalled)
        if phase != "load":
            patch.setattr(Engine, "load", lambda *arguments, **options: engine)
        source, output = tmp_path / "in.jsonl", tmp_path / "out"
        source.write_text("".join(f'{{"prompt": "Number {n}"}}\n' for n in range(12)))
        files = [str(source), str(output)]
        if command != "batch":
            files = ["--prompt-file", files[0], "--json", files[1]]
        numbers = (signal.SIGINT, signal.SIGTERM)
        handlers = [signal.getsignal(number) for number in numbers]
        assert main([command, *flags, *files]) == 128 + ending
        assert handlers == [signal.getsignal(number) for number in numbers]
        error = capsys.readouterr().err
        word = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}[ending]
        assert error.splitlines()[-1] == word
        assert "Traceback" not in error
    left = sorted(path.name for path in tmp_path.iterdir())
    if phase == "load":
        assert left == (["in.jsonl", "out"] if command == "batch" else ["in.jsonl"])
        return
    assert left == ["in.jsonl", "out"]
    if command == "batch":
        assert [record["line"] for record, _, _ in read_records(output)]
        monkeypatch.setattr(Engine, "load", lambda *arguments, **options: engine)
        assert main([command, *flags, *files, "--limit", "3"]) == 0  # it goes on
    else:
        data = json.loads(output.read_text())
        assert data["results" if command != "bench" else "interrupted"]


def test_a_second_sigterm_ends_a_command_at_once(flags, monkeypatch):
    """It would be heard no more if it fell into what the first one has begun."""
    seen = []

    def stubborn(*arguments, **options):
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            seen.append(signal.getsignal(signal.SIGTERM))

    monkeypatch.setattr("dart_core.engine.load_models", stubborn)
    assert main(["generate", *flags, "--prompt", "x"]) == 143
    assert seen == [signal.SIG_DFL]
