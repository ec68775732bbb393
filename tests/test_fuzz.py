"""A short run of what launch/fuzz.sh does for long: the same inputs each time."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from fuzz_files import Heads, run

ROOT = Path(__file__).parent.parent
# Sooner built than the long run's: what is left out costs most to compile and finds least.
QUICK = "-O0 -fno-sanitize=alignment,null,object-size,vptr"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
def test_the_core_survives_hostile_inputs_under_the_sanitizers():
    """The importer is left to the long run: it takes as long to compile as all the others. Without
    sanitizers it is in test_ngram_damage.py.
    """
    environment = {**os.environ, "FUZZ_FLAGS": QUICK, "FUZZ_BUILD": "build/fuzz-quick"}
    result = subprocess.run(
        ["bash", ROOT / "launch" / "fuzz.sh", "6000", "ngram", "convert", "pruner"],
        capture_output=True, text=True, env=environment,
    )  # fmt: skip
    if "cannot build with the sanitizers" in result.stderr:
        pytest.skip(result.stderr.strip())
    assert result.returncode == 0, result.stdout + result.stderr
    rows = [line.split() for line in result.stdout.splitlines() if line[0] in "ncp"]
    assert [row[0] for row in rows] == ["ngram", "convert", "pruner"]
    for _, inputs, accepted, refused, crashes in rows:
        assert int(inputs) == int(accepted) + int(refused) == 1500
        assert int(accepted) > 50 and int(refused) > 50
        assert crashes == "0"


@pytest.mark.parametrize(
    ("lacks", "says"),
    [
        ("-fsanitize=fuzzer", "comes without libFuzzer; install its runtime"),
        ("-fsanitize=address", "cannot build with the sanitizers; install g++"),
    ],
)
def test_a_clang_without_its_runtimes_is_said_in_one_line(lacks, says, tmp_path):
    compiler = tmp_path / "clang++"
    compiler.write_text(f"""#!/bin/bash
for word in "$@"; do
  if [[ $word == -dM ]]; then
    echo "#define __clang__ 1"
    for n in {{1..9999}}; do echo "#define X$n"; done
    exit
  fi
  [[ $word != {lacks} && $word != {lacks},* ]] || exit 1
done
""")
    compiler.chmod(0o755)
    environment = {**os.environ, "CXX": str(compiler), "FUZZ_BUILD": str(tmp_path / "built")}
    result = subprocess.run(
        ["bash", ROOT / "launch" / "fuzz.sh", "8", "pruner"],
        capture_output=True, text=True, env=environment,
    )  # fmt: skip
    assert result.returncode == 1 and result.stdout == ""
    assert len(result.stderr.splitlines()) == 1 and f"{compiler} {says}" in result.stderr


def refused_and_taken(target: str, inputs: int, capsys) -> tuple[int, int]:
    assert run(target, inputs, seed=3) == 0, capsys.readouterr().err
    _, _, _, accepted, _, refused, _, _ = capsys.readouterr().out.split()
    return int(refused), int(accepted)


def test_hostile_heads_are_refused_in_words(capsys):
    refused, accepted = refused_and_taken("heads", 150, capsys)
    assert refused > 50 and accepted > 10


def test_hostile_recordings_are_refused_in_words(capsys):
    refused, accepted = refused_and_taken("recordings", 100, capsys)
    assert refused > 50 and accepted > 5


def test_a_crash_says_how_its_input_is_tried_again(capsys, monkeypatch):
    def fail(self, rng):
        raise ValueError("no refusal")

    monkeypatch.setattr(Heads, "try_one", fail)
    assert run("heads", 2, seed=5, first=7) == 2
    told = capsys.readouterr()
    assert told.out == "inputs 2 accepted 0 refused 0 crashes 2\n"
    assert "crash at input 8 of seed 5 (heads --first 8 --inputs 1 --seed 5)" in told.err
