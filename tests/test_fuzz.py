"""A short run of what launch/fuzz.sh does for long: the same inputs each time."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from fuzz_files import run

ROOT = Path(__file__).parent.parent
# Sooner built than the long run's: what is left out costs most to compile and finds least.
QUICK = "-O0 -fno-sanitize=alignment,null,object-size,vptr"


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


def test_hostile_heads_are_refused_in_words(capsys):
    assert run("heads", 150, seed=3) == 0, capsys.readouterr().err
    _, _, _, accepted, _, refused, _, _ = capsys.readouterr().out.split()
    assert int(accepted) > 10 and int(refused) > 50
