"""What the static forms of the draft heads share: see ``dart_core.static_shapes``.

A head's whole pass, from the committed rows it reads to the candidates it drafts, is one call over
fixed buffers. Committed rows are padded to COMMITTED_BUCKETS; more of them, as after a prefill, run
in the dynamic form over the same cache. Padding is written to the cache's last row, which nobody
reads.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from dart_core.capture import Call, Capture
from dart_core.heads.layers import DraftHead, HeadCache
from dart_core.static_shapes import (
    Inputs,
    Pool,
    cache_bucket,
    roomy_bucket,
    row_bucket,
)

COMMITTED_BUCKETS = (1, 2, 4, 8)


class BorrowedHeadCache(HeadCache):
    """A head's cache out of a pool, with one row more than it may read. passes: what was captured
    over it.
    """

    def __init__(self, pool: Pool[BorrowedHeadCache], window_limit: int, head: DraftHead) -> None:
        super().__init__(head.config, window_limit + 1, dtype=head.dtype, device=head.device)
        self._pool = pool
        self.window_limit = window_limit
        self.passes: dict[Hashable, HeadPass] = {}
        self.lent = True
        self.renew()

    def renew(self) -> None:
        self.length, self.lent = 0, True
        self.keys.zero_()
        self.values.zero_()

    def close(self) -> None:
        """End the run: the cache goes back to its pool."""
        if self.lent:
            self.lent = False
            self._pool.take_back(self)

    def free(self) -> None:
        self.passes.clear()


Head = TypeVar("Head", bound=DraftHead)


class StaticHead(Generic[Head]):
    """The static form of one head, and the caches it runs over. What a pass does is the drafter's:
    ``draft(static, numbers, hidden, cache, window)`` returns packed candidates, int32.
    """

    def __init__(self, head: Head, embed: Callable[[Tensor], Tensor], capture: Capture) -> None:
        self.head, self._embed, self.capture = head, embed, capture
        self.pool: Pool[BorrowedHeadCache] = Pool(
            lambda rows: BorrowedHeadCache(self.pool, roomy_bucket(rows), head)
        )

    def embed(self, tokens: Tensor) -> Tensor:
        """Token ids -> embeddings in the head's dtype; all is on one device here."""
        return self._embed(tokens).to(self.head.dtype)

    def run(
        self,
        hidden: Tensor,
        tokens: Tensor,
        cache: BorrowedHeadCache,
        draft: Callable[..., Tensor],
        *,
        scratch: int,
        key: tuple[int, ...] = (),
    ) -> Tensor | None:
        """Append S committed positions and draft: packed candidates, still on the device and valid
        until the cache's next pass.

        hidden [S, 3 * target hidden] on the device; tokens int64 [S] on the CPU; scratch: cache
        rows that drafting writes behind them; key: what else a captured pass depends on. None where
        there is no static form: many rows, or a cache at its end.
        """
        rows, end = row_bucket(len(tokens), COMMITTED_BUCKETS), cache.length + len(tokens)
        if rows is None or end + scratch > cache.window_limit:
            return None
        window = min(cache_bucket(end + scratch), cache.window_limit)
        key = (rows, window, *key)
        if key not in cache.passes:
            cache.passes[key] = HeadPass(self, rows, hidden.shape[-1])
        output = cache.passes[key].run(
            hidden, tokens, cache, lambda *inputs: draft(self, *inputs, cache, window)
        )
        cache.length = end
        return output


class HeadPass:
    """One captured pass of ``rows`` committed rows at most."""

    def __init__(self, static: StaticHead[Any], rows: int, width: int) -> None:
        device = static.head.device
        sizes = {"tokens": rows, "places": rows, "positions": rows, "last": 1, "end": 1}
        self._capture, self._inputs = static.capture, Inputs(device, sizes)
        self._hidden = torch.zeros(rows, width, dtype=static.head.dtype, device=device)
        self._output: Tensor | None = None
        self._replay: Call | None = None

    def run(
        self,
        hidden: Tensor,
        tokens: Tensor,
        cache: BorrowedHeadCache,
        draft: Callable[[dict[str, Tensor], Tensor], Tensor],
    ) -> Tensor:
        count, length = len(tokens), cache.length
        host = self._inputs.host
        host["tokens"][:] = 0
        host["tokens"][:count] = tokens.numpy()
        host["places"][:] = cache.window_limit  # the row beyond every window
        host["positions"][:] = 0
        host["places"][:count] = host["positions"][:count] = np.arange(length, length + count)
        host["last"][:], host["end"][:] = count - 1, length + count
        self._inputs.send()
        self._hidden[:count].copy_(hidden)
        if self._replay is None:
            self._replay = self._capture(lambda: self._forward(draft))
        self._replay()
        assert self._output is not None  # since the first pass
        return self._output

    def _forward(self, draft: Callable[[dict[str, Tensor], Tensor], Tensor]) -> None:
        output = draft(self._inputs.device, self._hidden)
        if self._output is None:
            self._output = output
        else:
            self._output.copy_(output)
