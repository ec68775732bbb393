"""Static shapes: the target's verify pass with every size padded to a bucket, so that it can be
captured once as a CUDA graph and replayed, with no launch of single kernels from Python.

A captured call reads and writes fixed addresses and remembers every number Python gave it. So all
that changes from step to step comes through one input buffer on the device: tokens, positions, the
cache rows to write, the committed length, who sees whom in the tree. Trees are padded to
``ROW_BUCKETS`` nodes, the part of the cache that is read to ``cache_bucket`` rows.

- Padding nodes write to the cache's last row, which lies beyond every window, so nobody reads it.
  They see what is committed and the root: a row that may see nothing would be NaN.
- A mask multiplies what it hides by zero, and zero times infinity is NaN: so a borrowed cache
  starts as zeros, and rows of rejected nodes are cleared.

Addresses are why caches are borrowed here, not made: a ``BorrowedCache`` returns to its pool when
its run closes it, with everything captured over it, and the next run that fits in it replays at
once. A graph per run would be captured again in every answer, at the cost of some dozen steps; so
only the first pass of a bucket is slow, in the run that first needs it. As many caches exist as
runs have overlapped; those at rest are freed, and their graphs with them, where memory lacks or a
run needs a longer one.

Graphs share the memory of their intermediate tensors, so they replay one after the other, in the
order of the device's current stream. Outputs are kept apart per cache: one is valid until that
cache's next pass. The draft heads' passes are in drafters/static.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from dart_core.cache import KVCache
from dart_core.capture import Call, Capture
from dart_core.tree import DraftTree

if TYPE_CHECKING:
    from dart_core.target import Target

ROW_BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256)
CACHE_STEP = 256  # the smallest window, and the finest step between windows
ROOMY = 4096  # up to here a borrowed cache's length is a power of two, if memory allows


def row_bucket(rows: int, buckets: Sequence[int] = ROW_BUCKETS) -> int | None:
    """The smallest bucket that takes so many rows; None where none does."""
    return next((bucket for bucket in buckets if bucket >= rows), None)


def cache_bucket(rows: int) -> int:
    """``rows`` rounded up by at most an eighth or CACHE_STEP, whichever is more."""
    step = max(CACHE_STEP, 1 << max((rows - 1).bit_length() - 4, 0))
    return -(-rows // step) * step


def roomy_bucket(rows: int) -> int:
    """How long to make a cache of ``rows`` rows, so that runs somewhat longer fit in it too."""
    return max(cache_bucket(rows), min(1 << (rows - 1).bit_length(), ROOMY))


class Inputs:
    """A call's inputs: one block of bytes, filled on the host, moved in one copy.

    sizes: numbers (int64) per name. flags: shape of an array of bool, or None. ``host`` has numpy
    views, ``device`` tensors, by name; the flags are called "flags".
    """

    def __init__(
        self, device: torch.device, sizes: dict[str, int], flags: tuple[int, int] | None = None
    ) -> None:
        count = 8 * sum(sizes.values())
        total = count + (flags[0] * flags[1] if flags else 0)
        self._host = torch.zeros(total, dtype=torch.uint8)
        self._device = torch.zeros(total, dtype=torch.uint8, device=device)
        self.device: dict[str, Tensor] = {}
        on_host: dict[str, Tensor] = {}
        for block, views in ((self._host, on_host), (self._device, self.device)):
            parts = block[:count].view(torch.int64).split(list(sizes.values()))
            views.update(zip(sizes, parts, strict=True))
            if flags:
                views["flags"] = block[count:].view(torch.bool).view(flags)
        self.host: dict[str, np.ndarray] = {n: view.numpy() for n, view in on_host.items()}

    def send(self) -> None:
        """Move what ``host`` holds to the device. Pageable memory is read before this returns."""
        self._device.copy_(self._host, non_blocking=True)


class Borrowed(Protocol):
    """What a pool lends: a cache of ``window_limit`` readable rows that can be made new again."""

    window_limit: int

    def renew(self) -> None: ...

    def free(self) -> None: ...


Lent = TypeVar("Lent", bound=Borrowed)


class Pool(Generic[Lent]):
    """Caches that runs borrow. ``make`` makes one of at least so many readable rows."""

    def __init__(self, make: Callable[[int], Lent]) -> None:
        self._make = make
        self._resting: list[Lent] = []
        # The collector may close an abandoned run while this thread is in here.
        self._lock = threading.RLock()

    def fits(self, rows: int) -> bool:
        """Whether a cache at rest takes so many rows."""
        return any(cache.window_limit >= rows for cache in self._resting)

    def lend(self, rows: int) -> Lent:
        """The shortest cache at rest that takes ``rows`` rows, or a new one."""
        with self._lock:
            fitting = [cache for cache in self._resting if cache.window_limit >= rows]
            if fitting:
                cache = min(fitting, key=lambda cache: cache.window_limit)
                self._resting.remove(cache)
        if fitting:
            cache.renew()
            return cache
        self.clear()  # those at rest are too short, and nobody may need them again
        return self._make(rows)

    def take_back(self, cache: Lent) -> None:
        with self._lock:
            self._resting.append(cache)

    def clear(self) -> bool:
        """Free the caches at rest and what was captured over them; whether there were any."""
        with self._lock:
            resting, self._resting = self._resting, []
        for cache in resting:
            cache.free()
        return bool(resting)


class BorrowedCache(KVCache):
    """A target's cache out of a pool. It has one row more than it may read: padding goes there.

    passes: what was captured over it, by buckets and taps. outputs: where those passes leave their
    results. ``written``: the end of the rows that the last one wrote.
    """

    def __init__(
        self, pool: Pool[BorrowedCache], window_limit: int, *args: Any, **options: Any
    ) -> None:
        super().__init__(*args, capacity=window_limit + 1, **options)
        self._pool = pool
        self.window_limit = window_limit
        self.passes: dict[Hashable, VerifyPass] = {}
        self.outputs: dict[Hashable, tuple[Tensor, Tensor | None]] = {}
        self.lent, self.written = True, 0

    def keep(self, rows: Sequence[int], index: Tensor | None = None) -> None:
        super().keep(rows, index)
        if self.written > self.length:
            for block in self._blocks:
                block[..., self.length : self.written, :].zero_()
        self.written = self.length

    def renew(self) -> None:
        self.length, self.written, self.lent = 0, 0, True
        for block in self._blocks:
            block.zero_()

    def close(self) -> None:
        """End the run: the cache goes back to its pool."""
        if self.lent:
            self.lent = False
            self._pool.take_back(self)

    def free(self) -> None:
        self.passes.clear()
        self.outputs.clear()
        super().close()


class StaticVerify:
    """The static form of a target's verify passes, and the caches they run over."""

    def __init__(self, target: Target, capture: Capture) -> None:
        self._target, self._capture = target, capture
        self.pool: Pool[BorrowedCache] = Pool(self._new_cache)

    def _new_cache(self, rows: int) -> BorrowedCache:
        roomy = roomy_bucket(rows)
        if self._target.shortage(roomy + 1) is None:
            rows = roomy
        return BorrowedCache(self.pool, rows, **self._target.cache_layout)

    def run(
        self, tree: DraftTree, cache: KVCache, taps: Sequence[int]
    ) -> tuple[Tensor, Tensor | None] | None:
        """Logits [N, vocab] and tapped states of a tree of N nodes, valid until the cache's next
        pass. None where there is no static form of it: a huge tree, a cache that is not borrowed.
        """
        rows, end = row_bucket(len(tree)), cache.length + len(tree)
        if not isinstance(cache, BorrowedCache):
            return None
        cache.written = end
        if rows is None or end > cache.window_limit:
            return None
        window = min(cache_bucket(end), cache.window_limit)
        key = rows, window, tuple(taps)
        if key not in cache.passes:
            cache.passes[key] = VerifyPass(self._target, cache, *key)
        return cache.passes[key].run(tree, self._capture)


class VerifyPass:
    """The pass over a tree of ``rows`` nodes at most that reads ``window`` rows of the cache."""

    def __init__(
        self, target: Target, cache: BorrowedCache, rows: int, window: int, taps: tuple[int, ...]
    ) -> None:
        self._target, self._cache, self._taps = target, cache, taps
        self._rows, self._window = rows, window
        sizes = {"tokens": rows, "positions": rows, "places": rows, "length": 1}
        self._inputs = Inputs(target.device, sizes, flags=(rows, rows))
        self._columns = torch.arange(window, device=target.device)
        self._replay: Call | None = None

    def run(self, tree: DraftTree, capture: Capture) -> tuple[Tensor, Tensor | None]:
        """As ``StaticVerify.run``."""
        count, length = len(tree), self._cache.length
        host = self._inputs.host
        host["tokens"][:count] = tree.tokens
        host["tokens"][count:] = 0
        host["positions"][:] = length
        host["positions"][:count] += tree.depths()
        host["places"][:] = self._cache.window_limit  # the row beyond every window
        host["places"][:count] = np.arange(length, length + count)
        host["length"][:] = length
        host["flags"][:] = False
        host["flags"][:, 0] = True  # padding too: it sees the root
        host["flags"][:count, :count] = tree.ancestor_mask()
        self._inputs.send()
        if self._replay is None:
            self._replay = capture(self._forward)
        self._replay()
        logits, hidden = self._cache.outputs[self._rows, self._taps]
        return logits[:count], None if hidden is None else hidden[:count]

    def _forward(self) -> None:
        """Reads the inputs, writes the cache and the outputs; the same kernels every time."""
        inputs, cache = self._inputs.device, self._cache
        cache.place = inputs["places"], self._window
        try:
            output = self._target.forward_in_place(
                inputs["tokens"], inputs["positions"], cache, mask=self._mask(), taps=self._taps
            )
        finally:
            cache.place = None
        # Passes of one bucket of rows share their outputs, whatever they read: a cache has one run.
        news = output.logits, output.hidden
        results = cache.outputs.setdefault((self._rows, self._taps), news)
        for result, new in zip(results, news, strict=True):
            if result is not None and new is not None and result is not new:
                result.copy_(new)

    def _mask(self) -> Tensor:
        """bool [rows, window]: what is committed, and of the tree what the flags say."""
        length, flags = self._inputs.device["length"], self._inputs.device["flags"]
        node = self._columns - length
        tree = flags.index_select(1, node.clamp(0, self._rows - 1))
        return (self._columns < length) | (tree & (node >= 0) & (node < self._rows))
