"""The recorded runs of a folder, and what a list says of each."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from app.lane import LABELS
from app.recording import Recording, read_header
from dart_core.errors import ArenaError

log = logging.getLogger(__name__)

SHIPPED = Path(__file__).parent.parent / "assets" / "recordings"
SUFFIXES = (".json", ".json.gz")
LONGEST = 60  # characters of a prompt in a label

# A run takes most memory while it is read, and the system's allocator keeps that for the thread
# that took it: one thread reads for everybody, one run at a time.
_reader = ThreadPoolExecutor(1, thread_name_prefix="arena-reader")
_kept: WeakValueDictionary[tuple[str, int, int], Recording] = WeakValueDictionary()


def read(path: str | Path) -> Recording:
    """``Recording.load``, for pages with many visitors: a file that is shown many times at once is
    in memory once.
    """
    return _reader.submit(_shared, Path(path)).result()


def _shared(path: Path) -> Recording:
    try:
        state = path.stat()
    except OSError:
        return Recording.load(path)  # which says what is wrong
    key = (str(path), state.st_mtime_ns, state.st_size)
    recording = _kept.get(key) or Recording.load(path)
    _kept[key] = recording
    return recording


def find(folder: str | Path) -> list[tuple[str, Path]]:
    """(label, path) of every recorded run in ``folder``, by file name; what is none is left out,
    with a warning in the log. Reads headers alone, and each of them once.
    """
    found = []
    for path in sorted(Path(folder).glob("*")):
        if not path.name.endswith(SUFFIXES) or not path.is_file():
            continue
        state = path.stat()
        try:
            found.append((_label_of(path, state.st_mtime_ns, state.st_size), path))
        except ArenaError as error:
            log.warning("left out of the recorded runs: %s", error)
    return found


@lru_cache(maxsize=1024)
def _label_of(path: Path, modified: int, size: int) -> str:
    return label(read_header(path))


def label(header: Mapping[str, Any]) -> str:
    """What a recording is: its prompt's beginning, who ran, on what, how, when."""
    prompt = " ".join(header["prompt"].split())
    facts, settings = header["facts"], header["settings"]
    drawn = f"temperature {settings['temperature']:g}" if settings["temperature"] else ""
    parts = [
        prompt if len(prompt) <= LONGEST else f"{prompt[: LONGEST - 1].rstrip()}…",
        ", ".join(LABELS[engine] for engine in header["engines"]),
        facts.get("target", ""),
        drawn,
        header["created"][:10],
    ]
    return " · ".join(filter(None, parts))
