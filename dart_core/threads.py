"""Who has the cores while a few rows run: our kernels' helpers, or the threads of torch's OpenMP.

Between two operations OpenMP's threads wait spinning, and our helpers then share their cores with
them: of two cores, little is left of the second. A verify pass of a short context has next to
nothing for OpenMP to do.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch

_MKL = "MKL_Set_Num_Threads_Local"

_of_this_thread = threading.local()


def kernel_threads() -> int:
    """How many threads our kernels take when the calling thread asks them."""
    return getattr(_of_this_thread, "kernels", None) or torch.get_num_threads()


@contextmanager
def cores_for_kernels() -> Iterator[None]:
    """Within, torch's operations of the calling thread run on it alone; our kernels take as many
    threads as torch would. Does nothing where OpenMP cannot be asked.
    """
    count, ask = kernel_threads(), _openmp()
    if count == 1 or ask is None or getattr(_of_this_thread, "kernels", None):
        yield
        return
    _of_this_thread.kernels = count
    ask(1)
    try:
        yield
    finally:
        ask(count)
        _of_this_thread.kernels = None


@cache
def _openmp() -> Callable[[int], object] | None:
    """Sets how many threads OpenMP takes for the calling thread, and MKL, which torch's own setting
    has given a number too. torch.set_num_threads would be that of every thread that begins
    meanwhile.
    """
    openmp = _symbol(None, "omp_set_num_threads")
    mkl = _symbol(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so", _MKL)
    if openmp is None or mkl is None:
        return openmp

    def ask(count: int) -> None:
        openmp(count)
        mkl(0 if count > 1 else 1)  # 0: as many as before

    return ask


def _symbol(library: Path | None, name: str) -> Callable[[int], int] | None:
    try:
        return getattr(ctypes.CDLL(None if library is None else str(library)), name)
    except (AttributeError, OSError, TypeError):
        return None
