"""The lines of JSONL files that anybody may have written."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

from dart_core.errors import ArenaError
from dart_core.lfs import refuse_pointer


def numbered_lines(path: Path, what: str) -> Iterator[tuple[int, str]]:
    """(number, text) of the lines of a UTF-8 file that are not blank, numbers counting all lines
    from 1. A byte order mark is left out; a file whose name ends in .gz is unpacked.

    what: the kind of file, for errors. Raises ArenaError where it cannot be read, or not to its
    end.
    """
    opener = gzip.open if path.suffix == ".gz" else open
    number = 0
    try:
        refuse_pointer(path)
        with opener(path, "rb") as lines:
            for number, line in enumerate(lines, 1):
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                if text.strip():
                    yield number, text
    except UnicodeDecodeError as error:
        raise ArenaError(f"{what} {path}, line {number}, is not UTF-8 text: {error}") from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ArenaError(
            f"{what} {path} is no whole gzip file ({error}): get it again, or take .gz off the "
            "name of one that is not compressed"
        ) from error
    except OSError as error:
        raise ArenaError(f"{what} {path}: {error.strerror or error}") from error
