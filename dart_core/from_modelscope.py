"""Repositories on ModelScope, by its own client: the optional extra ``modelscope``.

It has the same three functions as ``hub``. Its cache is the client's: MODELSCOPE_CACHE moves it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType
from typing import Any

from dart_core.disk import disk_trouble
from dart_core.errors import ArenaError
from dart_core.hub import WORTH_TELLING, Listing, Progress
from dart_core.memory import gib
from dart_core.references import Remote

INSTALL = 'pip install "dart-arena[modelscope]", or pip install modelscope'


def look(remote: Remote, kind: str, patterns: Sequence[str]) -> Listing | None:
    """What would be fetched; None where ModelScope does not tell, and only ``fetch`` knows why."""
    client = _client()
    try:
        files = client.HubApi().get_model_files(remote.id, **_revision(remote))
        sizes = {file["Path"]: int(file["Size"]) for file in files}
    except Exception:  # whatever it is, fetching meets it too, and tells it
        return None
    sizes = {name: size for name, size in sizes.items() if _wanted(name, patterns)}
    missing = sum(size for name, size in sizes.items() if cached_file(remote, name) is None)
    return Listing(sizes, missing, cache_folder())


def fetch(remote: Remote, kind: str, patterns: Sequence[str], progress: Progress) -> Path:
    """The folder with the repository's files of these patterns, fetched if need be.

    Raises ArenaError that says what was tried, and the remedy.
    """
    snapshot_download = _client().snapshot_download
    listing = look(remote, kind, patterns)
    missing = listing.missing if listing else 0
    if missing >= WORTH_TELLING:
        progress(f"fetching {remote} from ModelScope: {gib(missing)}")
    started = time.monotonic()
    options = {
        **_revision(remote),
        "allow_patterns": list(patterns),
        "ignore_patterns": ["*/*"],  # sub-folders hold copies in other formats
    }
    with _told(remote, kind):
        folder = _cached_first(snapshot_download, remote.id, options, offline=listing is None)
    if missing >= WORTH_TELLING:
        took = time.monotonic() - started
        progress(f"fetched {remote} from ModelScope: {gib(missing)} in {took:.1f} s")
    return Path(folder)


def cached_file(remote: Remote, filename: str) -> Path | None:
    """Where the client's cache has a file, if it does."""
    try:
        folder = _client().snapshot_download(
            remote.id, allow_patterns=[filename], local_files_only=True, **_revision(remote)
        )
    except Exception:  # the client's way to say that nothing is there
        return None
    path = Path(folder) / filename
    return path if path.is_file() else None


def cache_folder() -> Path:
    """Where the client keeps what it fetches."""
    chosen = os.environ.get("MODELSCOPE_CACHE")
    return Path(chosen or "~/.cache/modelscope").expanduser()


def _cached_first(
    download: Callable[..., str], repository: str, options: dict[str, Any], *, offline: bool
) -> str:
    """What ModelScope has, or where it does not answer what the cache has."""
    if offline:
        try:
            return download(repository, local_files_only=True, **options)
        except Exception:  # then the answer to a real attempt is the one to tell
            pass
    return download(repository, **options)


def _revision(remote: Remote) -> dict[str, str]:
    """Left out where none is asked for: the client's default is its main branch, "master"."""
    return {"revision": remote.revision} if remote.revision else {}


def _client() -> ModuleType:
    try:
        import modelscope
    except ImportError:
        raise ArenaError(
            f"--source modelscope needs the package modelscope, which is not installed: {INSTALL}"
        ) from None
    return modelscope


@contextmanager
def _told(remote: Remote, kind: str) -> Iterator[None]:
    tried = f"{kind} {remote.id!r}: no local folder of that name, and the ModelScope repository"
    tried += f" at revision {remote.revision!r}" if remote.revision else ""
    try:
        yield
    except Exception as error:  # the client has a family of errors, and its HTTP library another
        if trouble := disk_trouble(error, cache_folder()):
            raise ArenaError(
                f"{tried} cannot be kept in its client's cache {cache_folder()}: {trouble}, or set "
                "MODELSCOPE_CACHE to another folder"
            ) from None
        reason = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
        raise ArenaError(
            f"{tried} could not be fetched ({reason}); check the id and the network, or take it "
            f"from the hub: --source hub for all, hub:{remote.id} for this one"
        ) from None


def _wanted(name: str, patterns: Sequence[str]) -> bool:
    return "/" not in name and any(fnmatch(name, pattern) for pattern in patterns)
