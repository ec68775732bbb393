"""Where the recordings of the published DART lie, and how they are read."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

DART = Path(__file__).parent / "golden" / "dart"
TRIES = sorted(path.stem for path in (DART / "trie").glob("*.trie"))


@cache
def tries() -> dict:
    return json.loads((DART / "trie" / "tries.json").read_text())


@cache
def queries() -> dict:
    return json.loads((DART / "trie" / "queries.json").read_text())


@cache
def searches() -> list[dict]:
    return json.loads((DART / "search" / "cases.json").read_text())
