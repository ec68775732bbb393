"""Repositories on the hub: what they hold, what is cached, and the fetching, told in GiB."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from dart_core.disk import disk_trouble
from dart_core.errors import ArenaError
from dart_core.memory import gib
from dart_core.progress import ProgressBar, duration
from dart_core.references import Remote

Progress = Callable[[str], None]
WORTH_TELLING = 1 << 20  # bytes of a download; smaller ones come and go without a line
POLL_SECONDS = 0.5
TIMEOUT_SECONDS = 10
ASK_AGAIN_SECONDS = 60  # an answer holds so long, and so does that there was none in time
_timed_out: dict[str, float] = {}  # endpoint -> when
_answers: dict[tuple[str, Remote], tuple[float, Any]] = {}  # -> when, what a repository holds


@dataclass(frozen=True, slots=True)
class Listing:
    """What a repository holds of what is wanted: bytes by file name, and how many of all those
    bytes are yet to be fetched into ``folder``.
    """

    sizes: dict[str, int]
    missing: int
    folder: Path


def look(remote: Remote, kind: str, patterns: Sequence[str]) -> Listing | None:
    """What would be fetched; None where the hub does not tell, and only ``fetch`` knows why."""
    try:
        return _ask(remote, kind, patterns)
    except ArenaError:
        return None


def fetch(remote: Remote, kind: str, patterns: Sequence[str], progress: Progress) -> Path:
    """The folder with the repository's files of these patterns, fetched if need be.

    Raises ArenaError that says what was tried, and the remedy.
    """
    from huggingface_hub import snapshot_download

    listing = unreachable = None
    try:
        listing = _ask(remote, kind, patterns)
    except Unreachable as error:
        unreachable = error  # the cache may have it; asking again would only wait again
    except ArenaError:
        pass  # gated, say: what is in the cache may be used, else it is raised again below
    missing = listing.missing if listing else 0
    try:
        with _told(remote, kind), _watched(remote, missing, progress):
            folder = snapshot_download(
                remote.id,
                revision=remote.revision,
                allow_patterns=list(patterns),
                ignore_patterns=["*/*"],  # sub-folders hold copies in other formats
                local_files_only=unreachable is not None,
            )
    except Unreachable as error:
        raise (error if unreachable is None or error.incomplete else unreachable) from None
    return Path(folder)


def _ask(remote: Remote, kind: str, patterns: Sequence[str]) -> Listing:
    from huggingface_hub import HfApi, constants

    silent = time.monotonic() - _timed_out.get(constants.ENDPOINT, -math.inf)
    if silent < ASK_AGAIN_SECONDS:
        raise Unreachable(
            f"{_tried(remote, kind)} is not in the hub cache, and the hub has given no answer for "
            f"{silent:.0f} s; check the network, or give the path of a folder"
        )
    key = (constants.ENDPOINT, remote)
    asked, info = _answers.get(key, (-math.inf, None))
    if time.monotonic() - asked > ASK_AGAIN_SECONDS:
        with _told(remote, kind):
            info = HfApi().model_info(
                remote.id, revision=remote.revision, files_metadata=True, timeout=TIMEOUT_SECONDS
            )
        _answers[key] = (time.monotonic(), info)
    files = [file for file in info.siblings or () if _wanted(file.rfilename, patterns)]
    blobs = _storage(remote) / "blobs"
    missing = sum(
        file.size or 0
        for file in files
        if not (blobs / (file.lfs.sha256 if file.lfs else str(file.blob_id))).exists()
        and not cached_file(Remote(remote.id, info.sha), file.rfilename)
    )
    return Listing(
        {file.rfilename: file.size or 0 for file in files}, missing, Path(constants.HF_HUB_CACHE)
    )


def cached_file(remote: Remote, filename: str) -> Path | None:
    """Where the cache has a file, if it does."""
    from huggingface_hub import constants, try_to_load_from_cache

    found = try_to_load_from_cache(
        remote.id, filename, cache_dir=constants.HF_HUB_CACHE, revision=remote.revision
    )
    return Path(found) if isinstance(found, str) else None


class Unreachable(ArenaError):
    """The hub gives no answer. incomplete: its cache has a part of what is asked for."""

    incomplete = False


@contextmanager
def _told(remote: Remote, kind: str) -> Iterator[None]:
    """What the hub's client raises, in words."""
    from huggingface_hub import constants
    from huggingface_hub import errors as hub

    tried = _tried(remote, kind)
    try:
        yield
    except hub.GatedRepoError:
        remedy = f"accept the terms of {remote.id} on the hub, then set HF_TOKEN"
        raise ArenaError(f"{tried} is gated: {remedy}") from None
    except hub.RevisionNotFoundError:
        raise ArenaError(
            f"{tried} has no such revision; leave it out for the main branch, or see the "
            "repository's branches, tags and commits"
        ) from None
    except hub.RepositoryNotFoundError:
        remedy = "check the id, or set HF_TOKEN"
        raise ArenaError(f"{tried} does not exist or is private: {remedy}") from None
    except (hub.LocalEntryNotFoundError, hub.OfflineModeIsEnabled) as error:
        wrapped = Unreachable(
            f"{tried} is neither reachable nor in the hub cache ({_reason(error)}); "
            "check the network and HF_HUB_OFFLINE, or give the path of a folder"
        )
        wrapped.incomplete = "missing" in str(error)
        raise wrapped from None
    except Exception as error:  # the client's own, its HTTP library's, the disk's
        kinds = {base.__name__ for base in type(error).__mro__}
        if "TimeoutException" in kinds:
            _timed_out[constants.ENDPOINT] = time.monotonic()
        if kinds & {"ConnectError", "TimeoutException"}:
            raise Unreachable(
                f"{tried} is neither reachable nor in the hub cache ({_reason(error)}); "
                "check the network and HF_HUB_OFFLINE, or give the path of a folder"
            ) from None
        if trouble := disk_trouble(error, constants.HF_HUB_CACHE):
            raise ArenaError(
                f"{tried} cannot be kept in the hub cache {constants.HF_HUB_CACHE}: {trouble}, or "
                "set HF_HOME to another folder"
            ) from None
        raise ArenaError(
            f"{tried} could not be fetched ({_reason(error)}); check the network and start again: "
            "files that are whole are kept"
        ) from None


def _tried(remote: Remote, kind: str) -> str:
    tried = f"{kind} {remote.id!r}: no local folder of that name, and the hub repository"
    return tried + (f" at revision {remote.revision!r}" if remote.revision else "")


def _reason(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0].removeprefix("Got: ") if text else type(error).__name__


def _wanted(name: str, patterns: Sequence[str]) -> bool:
    return "/" not in name and any(fnmatch(name, pattern) for pattern in patterns)


def _storage(remote: Remote) -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE) / f"models--{remote.id.replace('/', '--')}"


@contextmanager
def _watched(remote: Remote, missing: int, progress: Progress) -> Iterator[None]:
    """Tell how far a download of ``missing`` bytes is, by what the cache's folder has grown."""
    if missing < WORTH_TELLING:
        with _own_bars_off():
            yield
        return
    blobs = _storage(remote) / "blobs"
    bar = ProgressBar(f"fetching {remote.id}", log=progress)
    started, before, ended = time.monotonic(), _size(blobs), threading.Event()

    def watch() -> None:
        while not ended.wait(POLL_SECONDS):
            done = max(0, _size(blobs) - before)
            took = time.monotonic() - started
            bar.show(done / missing, f"{gib(done)} of {gib(missing)}, {duration(took)}")

    progress(f"fetching {remote}: {gib(missing)}")
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        with _own_bars_off():
            yield
    finally:
        ended.set()
        watcher.join()
    progress(f"fetched {remote}: {gib(missing)} in {time.monotonic() - started:.1f} s")


@contextmanager
def _own_bars_off() -> Iterator[None]:
    """The client draws its own bars, over ours."""
    from huggingface_hub.utils import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    if are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


def _size(folder: Path) -> int:
    total = 0
    for path in folder.glob("*"):
        try:
            total += path.stat().st_size
        except OSError:  # it was just moved to its name
            continue
    return total
