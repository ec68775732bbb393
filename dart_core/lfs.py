"""Git LFS pointers: what a clone has in the place of large files that were not fetched with it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from dart_core.errors import ArenaError

POINTER = b"version https://git-lfs"
WHAT = (
    "a Git LFS pointer, a few lines in the place of the file: run git lfs install and git lfs pull "
    "in its clone, or download the file again"
)


def is_pointer(path: str | os.PathLike[str]) -> bool:
    """Whether a file is one. Raises OSError."""
    if not stat.S_ISREG(os.stat(path).st_mode):  # what is read of a pipe is gone
        return False
    with open(path, "rb") as file:
        return file.read(len(POINTER)) == POINTER


def refuse_pointer(path: str | os.PathLike[str]) -> None:
    """Raises ArenaError for a file that is one, and OSError."""
    if is_pointer(path):
        raise ArenaError(f"{path} is {WHAT}")


def pointers(paths: Iterable[Path]) -> list[Path]:
    """Those of ``paths`` that are pointers; what cannot be read is none."""
    found = []
    for path in paths:
        try:
            found += [path] if is_pointer(path) else []
        except OSError:
            continue
    return found
