"""Lossless speculative decoding: DART, EAGLE3 and plain decoding of one target.

The names of the published interface are here, loaded when they are first used: importing the
package itself loads nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "DartModel": "dart_core.api",
    "dart_generate": "dart_core.api",
    "eagle3_generate": "dart_core.api",
    "ar_generate": "dart_core.api",
    "stream": "dart_core.api",
    "TEMPLATE_REGISTRY": "dart_core.templates",
    "ChatTemplate": "dart_core.templates",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
