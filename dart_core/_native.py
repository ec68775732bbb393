"""The compiled extension, or word that it is missing."""

from __future__ import annotations

import functools
import warnings
from importlib import import_module
from types import ModuleType
from typing import Literal

from dart_core.errors import ArenaError

_core: ModuleType | None
try:
    _core = import_module("dart_core._core")
except ImportError as error:  # a source tree that was not built, or built for another Python
    _core, _failure = None, str(error)

INTERFACE = 3
if _core is not None and getattr(_core, "INTERFACE", 1) != INTERFACE:  # older than this source
    _core, _failure = None, "it was built from other sources than these"

Backend = Literal["native", "twin"]


def choose_backend(backend: Backend | None) -> Backend:
    """``backend`` itself, or for None the native one where it is there and else, with one warning,
    the slow Python twin.
    """
    if backend not in (None, "native", "twin"):
        raise ArenaError(f'backend {backend!r} is unknown; expected "native" or "twin"')
    if backend == "native" and _core is None:
        raise ArenaError(
            f"the native extension is missing ({_failure}); build it: pip install -e ."
        )
    if backend is None and _core is None:
        _warn_once()
        return "twin"
    return backend or "native"


@functools.cache
def _warn_once() -> None:
    warnings.warn(
        f"dart_core runs without its native extension ({_failure}): n-gram lookup and tree search "
        "use the Python twin and are some fifty times slower. Build it with a C++20 compiler: "
        "pip install -e .",
        RuntimeWarning,
        stacklevel=4,
    )


def native_is_here() -> bool:
    """Whether the extension is built."""
    return _core is not None


def native() -> ModuleType:
    """The extension module, where ``choose_backend`` or ``native_is_here`` said so."""
    assert _core is not None
    return _core
