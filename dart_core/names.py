"""What people may be told: models by their names, no folder of this machine."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dart_core.presets import DEMO_MODEL, DEMO_TARGET

ROOT = Path(__file__).resolve().parent.parent
MODELS = ("target", "dart", "eagle3", "ngram")  # of an engine's facts

_START = re.compile(r"(?<![\w.~/\]])~?/(?=[^\s/])")  # of a path; not of an address's, nor in 3/4
_MARK = re.compile(r"[\s,;:'\"/)\]]|$")  # a path may end before it
_REST = re.compile(r"[^\s,;'\"]*")


def told_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """An engine's facts as they may be told, notes and all."""
    models = {name: model_name(str(facts[name])) for name in MODELS if facts.get(name)}
    return {**_told(facts), **models}


def _told(value: Any) -> Any:
    if isinstance(value, str):
        return without_folders(value)
    if isinstance(value, Mapping):
        return {key: _told(one) for key, one in value.items()}
    return [_told(one) for one in value] if isinstance(value, list | tuple) else value


def model_name(reference: str) -> str:
    """A model's name: an id as it is, a local folder as ``without_folders`` has it."""
    if reference == DEMO_TARGET:
        return DEMO_MODEL
    local = reference.startswith(("/", "~")) or os.path.exists(reference)
    return _named(reference) if local else without_folders(reference)


def without_folders(text: str) -> str:
    """``text`` with its absolute paths by what lies in the project, else by their last two names,
    and addresses without the name and password of who may use them.

    A path may have spaces in it where it is one of this machine; else it ends at the first.
    """
    text = re.sub(r"(?<=://)[^/\s]+@", "", text).replace("file:///", "/")
    told, at = "", 0
    while found := _START.search(text, at):
        end = _end(text, found.start())
        told += text[at : found.start()] + _named(text[found.start() : end])
        at = end
    return told + text[at:]


def _end(text: str, start: int) -> int:
    """Where the path that starts there ends: after the longest that there is, and what hangs on."""
    end = start + 1
    for mark in _MARK.finditer(text, start + 1):
        if os.path.exists(os.path.expanduser(text[start : mark.start()])):
            end = mark.start()
        elif mark[0] == "/":
            break
    rest = _REST.match(text, end)
    return rest.end() if rest else end


def _named(path: str) -> str:
    full, home = Path(os.path.abspath(os.path.expanduser(path))), Path(os.path.expanduser("~"))
    if full.is_relative_to(ROOT) and full != ROOT:
        return full.relative_to(ROOT).as_posix()
    if full.is_relative_to(home):  # its name is the user's
        full = "~" / full.relative_to(home)
    return Path(*full.parts[-2:]).as_posix()
