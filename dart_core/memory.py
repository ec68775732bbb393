"""Running out of memory, told as what was asked for, what there is, and what helps."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from traceback import clear_frames
from typing import TYPE_CHECKING

from dart_core.errors import ArenaError

if TYPE_CHECKING:
    import torch

GIB = 2**30
SMALLER = (
    "take a smaller target (a smaller --preset), the small n-gram (--ngram small), or spread the "
    'target over several GPUs (--device-map auto, device_map="auto")'
)
SHORTER = "lower --max-length or --tree-budget, run fewer engines, or " + SMALLER
_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


class OutOfMemory(ArenaError, MemoryError):
    """The device or the machine has no room left; the message has the figures and the remedies."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether torch, on a GPU or a CPU, or Python says so with ``error``."""
    torch = sys.modules.get("torch")
    if isinstance(error, MemoryError) or (torch and isinstance(error, torch.OutOfMemoryError)):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and (
        "out of memory" in text or "can't allocate memory" in text
    )


@contextmanager
def memory_told(doing: str, device: torch.device, remedies: str = SMALLER) -> Iterator[None]:
    """Turns running out of memory while ``doing`` something on ``device`` into OutOfMemory."""
    try:
        yield
    except OutOfMemory:
        raise
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        # What failed had made a good deal by then: whoever keeps the error is not to keep that.
        clear_frames(error.__traceback__)
        raise OutOfMemory(
            f"out of memory while {doing}: {_asked(error)}{_there(device)}; {remedies}"
        ) from error


def gib(count: float) -> str:
    """Bytes in GiB, with as many figures as tell something; small ones in MiB."""
    if count < GIB / 100:
        return f"{count / 2**20:.1f} MiB"
    return f"{count / GIB:.2f} GiB" if count < 10 * GIB else f"{count / GIB:.1f} GiB"


def _asked(error: BaseException) -> str:
    found = re.search(r"tried to allocate ([\d.]+) ?(?:([kmgt])i?b|bytes)?", str(error).lower())
    if not found:
        return ""
    return f"{gib(float(found[1]) * _UNITS[found[2] or ''])} more were asked for, "


def _there(device: torch.device) -> str:
    from dart_core.cache import free_memory

    try:
        free = free_memory(device)
    except RuntimeError:  # the GPU may be past answering
        free = None
    if free is None:
        return f"{device} has none left"
    return f"{device} has {gib(free)} free{_total(device)}"


def _total(device: torch.device) -> str:
    if device.type != "cuda":
        return ""
    import torch

    return f" of {gib(torch.cuda.get_device_properties(device).total_memory)}"
