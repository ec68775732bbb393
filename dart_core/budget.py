"""The size of each draft tree: fixed, recorded, or chosen for tokens per second (``auto``).

A larger tree is accepted further and costs more to verify; where the balance lies depends on the
machine, the text and the head, and moves within one answer. Two things decide it: what a verify
pass costs here by size, measured once and followed while running, and how likely draft nodes are
accepted, learnt from the run's own text. Sizes change only how fast a text comes, never the text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from dart_core.acceptance import Acceptance
from dart_core.drafters import Drafter, DraftSettings, Proposal
from dart_core.drafters.autoregressive import AutoregressiveDrafter
from dart_core.errors import check_kind
from dart_core.step import SizeChoice, Step
from dart_core.tree import DraftTree
from dart_core.verify_cost import VerifyCost


class Sizes(Protocol):
    """What says how large each tree of one run is."""

    def limit(self) -> int:
        """Drafts to ask the drafter for in this step; 0: a plain step."""

    def choose(self, proposal: Proposal) -> tuple[np.ndarray | None, SizeChoice | None]:
        """The nodes to verify, in order, root included, or None for all; and why."""

    def learn(self, tokens: Sequence[int], rows: int, verify: float, rest: float) -> None:
        """The step has emitted ``tokens``; of ``rows`` rows, ``verify`` and ``rest`` seconds."""


class FixedSizes:
    """Every tree as large as the budget allows."""

    def __init__(self, budget: int) -> None:
        self.budget = budget

    def limit(self) -> int:
        return self.budget

    def choose(self, proposal: Proposal) -> tuple[None, None]:
        return None, None

    def learn(self, tokens: Sequence[int], rows: int, verify: float, rest: float) -> None:
        pass


class ChosenSizes:
    """One run's sizes, chosen step by step: how many drafts to ask for, and which to verify.

    A step is worth its tokens less what its seconds bring elsewhere: it verifies the best n nodes
    for which tokens expected - rate × seconds is largest, where the rate is the run's own tokens
    per second of late, or plain decoding's if that is better. So steps are balanced against each
    other: a hopeless tree is not verified at all, a sure one to its end. Asking for fewer drafts is
    weighed in the same coin, by what drafting so many takes. Where steps with drafts bring less
    than plain ones would, drafting rests, longer each time it has not paid.

    cost: of verify passes; the run follows its own copy. recorded: (asked, verified) of the steps
    of an earlier run, which are then repeated; steps beyond them are chosen.
    """

    LATELY = 0.9  # of the past in a running mean, a step
    LONGEST_REST = 64  # steps
    PROBE = 32  # steps after which more drafts than of late are asked for

    def __init__(
        self, cost: VerifyCost, most: int, recorded: Sequence[tuple[int, int]] = ()
    ) -> None:
        self.cost, self.most = cost.copy(), most
        self.acceptance = Acceptance()
        self._recorded = list(recorded)[::-1]
        self._forced: tuple[int, int] | None = None
        self._asked = 0
        self._steps = 0
        self._tokens = self._seconds = 0.0  # running means of steps with drafts, as expected
        self._rest_seconds = 0.0
        self._worth = 0.0  # running mean of tokens above those of plain steps in the same time
        self._resting, self._next_rest = 0, 1
        self._limits = [n for n in (4, 8, 16, 32, 64, 128) if n < most] + [most]
        self._drafts = [_Drafts() for _ in self._limits]
        self._at = len(self._limits) - 1

    def begin_like(self, other: ChosenSizes) -> None:
        """Begin with what an earlier run found out about this drafter: speed is all that depends
        on it.
        """
        self.cost = other.cost.copy()
        self.acceptance.begin_like(other.acceptance)
        if other.most == self.most:
            self._drafts = [replace(drafts) for drafts in other._drafts]

    @property
    def plain_rate(self) -> float:
        """Tokens per second of plain steps, estimated."""
        return 1.0 / (self.cost.plain + self._rest_seconds)

    @property
    def rate(self) -> float:
        """Tokens per second that a step's time is worth."""
        own = self._tokens / self._seconds if self._seconds else 0.0
        return max(own, self.plain_rate)

    def limit(self) -> int:
        self._forced = self._recorded.pop() if self._recorded else None
        if self._forced is not None:
            self._asked = self._forced[0]
        elif self._resting:
            self._resting -= 1
            self._asked = 0
        else:
            self._at = self._choose_limit()
            self._asked = self._limits[self._at]
        return self._asked

    def choose(self, proposal: Proposal) -> tuple[np.ndarray, SizeChoice]:
        tree, self._steps = proposal.tree, self._steps + 1
        drafting = proposal.draft_seconds + proposal.search_seconds
        if self._steps == 1:
            drafting = 0.0  # the head reads the prompt here, as it will not again
        chances = self.acceptance.drafted(tree)
        order = best_first(tree, chances)[: self.most + 1]
        tokens = np.cumsum(chances[order])
        verify = self.cost.curve(len(order))
        rate = self.rate
        if not self._seconds:
            rate = max(rate, float((tokens / (verify + drafting + self._rest_seconds)).max()))
        worth = tokens - rate * verify
        size = int(worth.argmax())
        if self._forced is not None:
            size = min(self._forced[1], len(order) - 1)
        else:
            self._weigh(float(tokens[size]), float(verify[size]) + drafting + self._rest_seconds)
            if self._steps > 1:
                self._note_drafting(drafting, np.maximum.accumulate(worth))
        choice = SizeChoice(self._asked, float(tokens[size]), float(verify[size] / verify[0]))
        return np.sort(order[: size + 1]), choice

    def learn(self, tokens: Sequence[int], rows: int, verify: float, rest: float) -> None:
        right = self.acceptance.committed(tokens)
        self.cost.follow(rows, verify)
        self._rest_seconds += 0.2 * (rest - self._rest_seconds)
        if right and self._resting:
            # What was drafted before the rest would have paid: plain steps went where it led.
            seconds = float(self.cost.curve(right + 1)[-1]) + self._rest_seconds
            seconds += self._drafts[self._at].seconds
            if 1 + right > self.plain_rate * seconds:
                self._resting = self._next_rest = 1

    def _weigh(self, tokens: float, seconds: float) -> None:
        """Take in a step with drafts, and rest where such steps bring less than plain ones."""
        first = not self._seconds
        keep = 0.0 if first else self.LATELY
        self._tokens += (1 - keep) * (tokens - self._tokens)
        self._seconds += (1 - keep) * (seconds - self._seconds)
        worth = tokens - self.plain_rate * seconds
        self._worth = worth if first or not self._worth else 0.8 * self._worth + 0.2 * worth
        if self._worth < 0:
            self._resting, self._worth = self._next_rest, 0.0
            self._next_rest = min(2 * self._next_rest, self.LONGEST_REST)
        elif worth > 0:
            self._next_rest = 1

    def _choose_limit(self) -> int:
        """Index of the limit that has paid best of late. The largest is tried first; a smaller one
        where what it would lose is less than half of the time spent on drafting.
        """
        last = len(self._limits) - 1
        lowest = next((at for at, drafts in enumerate(self._drafts) if drafts.tried), None)
        if lowest is None:
            return last
        worst = self._drafts[lowest]
        if lowest and worst.gain < 0.5 * self.rate * worst.seconds:
            return lowest - 1
        gains = np.cumsum([drafts.gain for drafts in self._drafts])
        seconds = np.array([drafts.seconds for drafts in self._drafts])
        best = lowest + int((gains - self.rate * seconds)[lowest:].argmax())
        return min(best + 1, last) if self._steps % self.PROBE == self.PROBE - 1 else best

    def _note_drafting(self, seconds: float, worth: np.ndarray) -> None:
        """What this limit took, and what it and the lower ones would have brought."""
        self._drafts[self._at].took(seconds)
        before = 0.0
        for at in range(self._at + 1):
            reached = float(worth[min(self._limits[at], len(worth) - 1)])
            self._drafts[at].brought(reached - before)
            before = reached


@dataclass(slots=True)
class _Drafts:
    """What drafting up to one limit takes and brings beyond the limit below: running means."""

    tried: int = 0
    weighed: int = 0
    seconds: float = 0.0
    gain: float = 0.0

    def took(self, seconds: float) -> None:
        self.tried += 1
        self.seconds += (seconds - self.seconds) / min(self.tried, 10)

    def brought(self, gain: float) -> None:
        self.weighed += 1
        self.gain += (gain - self.gain) / min(self.weighed, 16)


def best_first(tree: DraftTree, chances: np.ndarray) -> np.ndarray:
    """Node indices, the root first, then by score: any first ones are closed under ancestors, for
    no node scores above its parent. A copied node, which has no score, stands where its chance
    would put it, behind its parent.
    """
    scores = tree.scores.astype(np.float64)
    scores[0] = math.inf
    for node in np.flatnonzero(np.isnan(scores)).tolist():
        scores[node] = min(scores[tree.parents[node]], math.log(max(chances[node], 1e-30)))
    return np.argsort(-scores, kind="stable")


def recorded_sizes(steps: Sequence[Step]) -> tuple[tuple[int, int], ...]:
    """Of each verify step of a run: drafts asked for and drafts verified. ``DraftSettings.sizes``
    repeats them. Raises ArenaError for what are no steps.
    """
    check_kind(steps, Sequence, "the steps of the run")
    for step in steps:
        check_kind(step, Step, "a step of the run")
    return tuple(
        (step.choice.asked if step.choice else step.drafted, step.drafted)
        for step in steps
        if step.kind == "verify"
    )


def sizes_for(
    drafter: Drafter,
    settings: DraftSettings,
    cost: Callable[[], VerifyCost],
    before: Sizes | None = None,
) -> Sizes:
    """What a run with ``settings`` goes by. ``cost`` is called only where sizes are chosen.
    before: an earlier run of the same drafter, if there was one.
    """
    if not settings.auto_budget or isinstance(drafter, AutoregressiveDrafter):
        return FixedSizes(settings.tree_budget)
    chosen = ChosenSizes(cost(), settings.tree_budget, settings.sizes)
    if isinstance(before, ChosenSizes):
        chosen.begin_like(before)
    return chosen
