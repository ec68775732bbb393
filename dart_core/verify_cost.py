"""What verify passes cost by their size: measured on this machine, followed while running."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from time import perf_counter

import numpy as np
import torch

from dart_core.errors import ArenaError
from dart_core.sampling import greedy_tokens
from dart_core.target import Target
from dart_core.tree import DraftTree

ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32, 48, 64)  # sizes that are timed; lines lie between
CONTEXT = 256  # committed rows before them
SMALL = 16  # rows: sizes up to here are timed twice as often, for most trees are so small
REPEATS, MOST_SECONDS = 3, 2.0

Numbers = Sequence[float] | np.ndarray


class VerifyCost:
    """Seconds of a verify pass by its rows, root included: a line from each measured size to the
    next, and beyond the last as steep as on the average before it.

    No size costs more than a larger one: what was measured beyond that was an interruption. rows:
    from 1 upwards. Raises ArenaError for what is no such curve.
    """

    def __init__(self, rows: Numbers, seconds: Numbers) -> None:
        self.rows = np.array(rows, dtype=np.float64)
        self.seconds = np.array(seconds, dtype=np.float64)
        if (
            not 0 < len(self.rows) == len(self.seconds)
            or self.rows[0] != 1
            or (np.diff(self.rows) <= 0).any()
            or not (np.isfinite(self.seconds) & (self.seconds > 0)).all()
        ):
            raise ArenaError(
                "a verify cost needs rows from 1 upwards, and seconds above 0 for each; got rows "
                f"{list(rows)[:4]} and seconds {list(seconds)[:4]}"
            )

    def copy(self) -> VerifyCost:
        """One that a run may ``follow`` on its own."""
        return VerifyCost(self.rows, self.seconds)

    def curve(self, count: int) -> np.ndarray:
        """Seconds of 1, 2, … ``count`` rows, float64 [count]."""
        seconds = np.minimum.accumulate(self.seconds[::-1])[::-1]
        wanted = np.arange(1, count + 1)
        slope = (seconds[-1] - seconds[0]) / max(self.rows[-1] - 1, 1)
        beyond = np.maximum(wanted - self.rows[-1], 0)
        return np.interp(wanted, self.rows, seconds) + slope * beyond

    @property
    def plain(self) -> float:
        """Seconds of one row."""
        return float(self.seconds.min())

    def follow(self, rows: int, seconds: float) -> None:
        """Take in what a pass really took: a longer context, or a busier machine, costs more than
        was measured. Sizes near ``rows`` learn most of it, the others some.
        """
        # A pass that was interrupted tells nothing of the next: none moves the curve far.
        ratio = min(max(seconds / self.curve(rows)[-1], 0.5), 2.0)
        near = np.exp2(-np.abs(np.log2(self.rows / rows)))
        self.seconds *= ratio ** (0.05 + 0.1 * near)


@torch.inference_mode()
def measure_verify(target: Target, taps: Sequence[int] = ()) -> VerifyCost:
    """What verify passes of ``target`` cost on this machine now, behind a context of CONTEXT rows:
    the median of a few interleaved passes of each size.
    """
    cache = target.new_cache(CONTEXT + ROWS[-1])
    trees = [DraftTree.of(np.zeros(rows), (np.arange(rows) - 1) // 2) for rows in ROWS]
    seconds: list[list[float]] = [[] for _ in ROWS]
    try:
        cache.length = CONTEXT  # zeros: what stands there does not change what a pass takes
        for tree in trees[: len(trees) // 2]:  # first passes allocate and tune
            greedy_tokens(target.verify(tree, cache, taps=taps).logits).tolist()
        start = perf_counter()
        for repeat in range(2 * REPEATS):
            for place, tree in enumerate(trees):
                if repeat % 2 and len(tree) > SMALL:
                    break
                begun = perf_counter()
                greedy_tokens(target.verify(tree, cache, taps=taps).logits).tolist()
                seconds[place].append(perf_counter() - begun)
            if perf_counter() - start > MOST_SECONDS:
                break
    finally:
        cache.close()
    return VerifyCost(ROWS, [median(each) for each in seconds])
