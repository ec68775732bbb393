"""JSON files that anybody may have written: read within bounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dart_core.lfs import POINTER, WHAT

MAX_BYTES = 64 * 2**20  # a model's config takes kilobytes, the index of its weights some megabytes


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises OSError, and ValueError that says what it is instead."""
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(f"it has more than {MAX_BYTES >> 20} MB")
    if data.startswith(POINTER):
        raise ValueError(f"it is {WHAT}")
    try:
        found = json.loads(data.decode("utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError(f"expected a JSON object, found a {type(found).__name__}")
    return found
