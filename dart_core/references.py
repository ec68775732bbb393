"""References to models by id: ``owner/name``, perhaps ``modelscope:owner/name@revision``.

The hub is the default source. A reference that names something on this machine is a path.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from dart_core.errors import ArenaError

HUB, MODELSCOPE = "hub", "modelscope"
SOURCES = (HUB, MODELSCOPE)
_ID = re.compile(r"(?:(hub|modelscope):)?([\w-][\w.-]*/[\w.-]+)(?:@([\w./+-]+))?")


@dataclass(frozen=True, slots=True)
class Remote:
    """A repository on a hub. revision: a branch, tag or commit; None for its main branch."""

    id: str
    revision: str | None = None
    source: str = HUB

    def __str__(self) -> str:
        return self.id + (f" at revision {self.revision!r}" if self.revision else "")


def local_path(reference: str | os.PathLike[str]) -> Path | None:
    """The path that ``reference`` names, if there is anything."""
    path = Path(os.path.expanduser(reference))  # an unknown ~user stays as it is: not found
    return path if path.exists() else None


def parse_remote(reference: str) -> Remote | None:
    """The repository that ``reference`` names; None where it is no id."""
    found = _ID.fullmatch(reference)
    if found is None:
        return None
    source, repository, revision = found.groups()
    return Remote(repository, revision, source or HUB)


def from_source(reference: str, source: str) -> str:
    """``reference`` as one to ``source``, unless it is local or says itself where it is from."""
    if source not in SOURCES:
        raise ArenaError(f"unknown source {source!r}; known sources: {', '.join(SOURCES)}")
    remote = parse_remote(reference)
    if source == HUB or remote is None or ":" in reference or local_path(reference):
        return reference
    return f"{source}:{reference}"


def same_id(reference: str, repository: str) -> bool:
    """Whether ``reference`` names ``repository``, whatever its source and revision; ids are told
    apart without regard to case, as hubs do.
    """
    remote = parse_remote(reference)
    return (remote.id if remote else reference).lower() == repository.lower()
