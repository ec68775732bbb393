"""Figures of a bench and how sure they are: means over prompt sets, bootstrapped over prompts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from dart_core.training.replay import Replay

RESAMPLES = 2000
CONFIDENCE = 0.95

DEFINITIONS = {
    "tau": "Tokens emitted by verify steps ÷ verify steps, the first token left out, by replay of "
    "draft trees along the text that plain decoding wrote: every engine writes that text. Of a "
    "set: over all its prompts. Overall: the mean of the sets. Plain decoding has τ = 1.",
    "tokens_per_second": "Decoding speed on the engine's own clock, the prefill left out, warmed "
    "up. Of a set: the geometric mean over its timed prompts. Overall: that of the sets.",
    "ratios": "Decoding speeds held against each other prompt by prompt, in one run, the engines "
    "taking turns at being first. Means as of tokens_per_second.",
    "interval": "95 % of the bootstrap: prompts are drawn again within each set, the same ones for "
    "every engine. Null where a set has a single prompt.",
    "acceptance_by_position": "For the 1st, 2nd, … draft token of a step: the share of verify "
    "steps that accepted it, along the replays.",
}


@dataclass(slots=True)
class Counts:
    """Replays of one variant at one budget, added up. accepted: steps by accepted drafts."""

    tokens: int = 0
    accepted: Counter[int] = field(default_factory=Counter)

    @property
    def steps(self) -> int:
        return self.accepted.total()

    def add(self, replay: Replay) -> None:
        self.tokens += replay.new_tokens
        self.accepted.update(replay.accepted)

    def by_position(self) -> list[float]:
        deepest = max((count for count in self.accepted if self.accepted[count]), default=0)
        return [
            sum(steps for count, steps in self.accepted.items() if count >= position) / self.steps
            for position in range(1, deepest + 1)
        ]


def total(counts: Iterable[Counts]) -> Counts:
    whole = Counts()
    for each in counts:
        whole.tokens += each.tokens
        whole.accepted.update(each.accepted)
    return whole


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its interval; ``resampled`` holds what the bootstrap made of it."""

    value: float
    resampled: np.ndarray | None

    @property
    def interval(self) -> list[float] | None:
        if self.resampled is None:
            return None
        tail = (1 - CONFIDENCE) / 2
        return [float(bound) for bound in np.quantile(self.resampled, [tail, 1 - tail])]

    def minus(self, other: Estimate) -> Estimate:
        """Of the same prompts: what both share falls out."""
        resampled = None
        if self.resampled is not None and other.resampled is not None:
            resampled = self.resampled - other.resampled
        return Estimate(self.value - other.value, resampled)

    def map(self, function: Callable) -> Estimate:
        resampled = None if self.resampled is None else function(self.resampled)
        return Estimate(float(function(self.value)), resampled)


def ratio(sets: Sequence[Sequence[tuple[float, float]]], seed: int = 0) -> Estimate | None:
    """The mean over sets of (sum of first ÷ sum of second numbers) over their prompts.

    Prompts whose second number is 0 do not count; None where none is left. The same prompts draw
    the same resamples, whatever the numbers.
    """
    values: list[float] = []
    resampled: list[np.ndarray | None] = []
    for index, pairs in enumerate(sets):
        numbers = np.array([pair for pair in pairs if pair[1]], dtype=np.float64)
        if len(numbers) == 0:
            continue
        values.append(numbers[:, 0].sum() / numbers[:, 1].sum())
        if len(numbers) < 2:
            resampled.append(None)
            continue
        generator = np.random.default_rng([seed, index, len(numbers)])
        drawn = numbers[generator.integers(0, len(numbers), (RESAMPLES, len(numbers)))].sum(axis=1)
        resampled.append(drawn[:, 0] / drawn[:, 1])
    if not values:
        return None
    known = [each for each in resampled if each is not None]
    sure = len(known) == len(resampled)
    return Estimate(float(np.mean(values)), np.mean(known, axis=0) if sure else None)


def geometric(sets: Sequence[Sequence[float | None]], seed: int = 0) -> Estimate | None:
    """The geometric mean over sets of the geometric means over their prompts; None counts not."""
    pairs = [[(np.log(value), 1.0) for value in values if value] for values in sets]
    logarithm = ratio(pairs, seed)
    return None if logarithm is None else logarithm.map(np.exp)
