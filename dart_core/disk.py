"""Files that are there whole or not at all, and a disk that is full or read-only, told in words."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from dart_core.errors import ArenaError
from dart_core.progress import size

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
LOCKED = {errno.EROFS, errno.EACCES, errno.EPERM}


@contextmanager
def written_whole(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A name beside ``path`` to write to; the file gets its own name once it is whole, so that
    whatever ends the process leaves the old one or the new one. A file that is replaced leaves
    its rights to the new one.
    """
    path = Path(path)
    partial = path.with_name(f"{path.name}.partial")
    try:
        yield partial
        with suppress(FileNotFoundError):
            shutil.copymode(path, partial)
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def claim(path: Path, whose: Path | None = None) -> BinaryIO:
    """The file, open for appending by this process alone, other hosts that share its folder
    included. Raises ArenaError where another has it, saying it is writing ``whose`` (``path``).
    """
    import fcntl

    while True:
        file = path.open("ab", buffering=0)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise ArenaError(
                f"another process is writing {whose or path}: wait for its end"
            ) from None
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        file.close()  # it was removed between the two


@contextmanager
def alone_with(path: str | os.PathLike[str], lock: Path) -> Iterator[None]:
    """While this lasts no other process gets here with the file ``lock``, which is there as long.
    Raises ArenaError where another has it, saying it is writing ``path``.
    """
    with disk_told("a lock", lock):
        file = claim(lock, Path(path))
    with file:
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


@contextmanager
def disk_told(what: str, path: str | os.PathLike[str], then: str = "") -> Iterator[None]:
    """Turns a disk that takes no more, while ``what`` is written to ``path``, into an ArenaError
    with the room there is and the remedy. then: what holds once that is mended.
    """
    try:
        yield
    except Exception as error:
        reason = disk_trouble(error, path)
        if reason is None:
            raise
        raise ArenaError(
            f"{what} could not be written to {path}: {reason}{then and f'; {then}'}"
        ) from error


def disk_trouble(error: BaseException, path: str | os.PathLike[str]) -> str | None:
    """What ``error`` says of the disk that ``path`` is on, and the remedy; None where it says
    nothing of it.
    """
    code = _code(error)
    if code in FULL:
        return f"the disk is full, {_free(Path(path))} free: make room there"
    if code in LOCKED:
        return f"{os.strerror(code)}: make it one that this user may write to"
    return None


def _code(error: BaseException) -> int | None:
    """The system's number for it: safetensors and torch tell it in words of their own."""
    if isinstance(error, OSError):
        return error.errno
    text = str(error)
    if found := re.search(r"\(os error (\d+)\)", text):
        return int(found[1])
    # torch's archive writer: it finds that fewer bytes came to the disk than it gave.
    return errno.ENOSPC if "PytorchStreamWriter" in text or "inline_container.cc" in text else None


def _free(path: Path) -> str:
    for folder in (path, *path.parents):
        try:
            return f"{size(shutil.disk_usage(folder).free)} are"
        except OSError:  # it is not there yet
            continue
    return "nothing is"
