"""Drafters: what proposes a draft tree for the target to verify.

A drafter has three verbs. ``begin`` starts a run; ``observe`` takes newly committed tokens with the
target's hidden states (the same call for the prompt and for accepted steps); ``propose`` returns a
draft tree. The drafter holds the weights and is shared; the run holds the caches and belongs to one
generation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Protocol

import numpy as np
import torch

from dart_core.errors import ArenaError, check_kind, check_number
from dart_core.tree import Candidates, DraftTree

MAX_TREE_BUDGET = 4096
NGRAM_OFF = "off"


@dataclass(frozen=True, slots=True)
class DraftSettings:
    """How one run drafts; raises ArenaError for values out of range.

    tree_budget: draft nodes per step, the root not counted, for every engine (DART's
    ``remain_total``; EAGLE3's ``total_token`` minus one). auto_budget: that is the most; each step
    chooses its own size, see budget.py. sizes: (drafts asked for, drafts verified) of the first
    verify steps, with ``auto_budget`` alone: repeats a run whose sizes were chosen, see
    ``budget.recorded_sizes``. beam, ngram_weight: DART. ngram: which of
    DART's loaded n-grams to search with, by name; None: the default one; "off": none. eagle3_depth:
    EAGLE3's ``depth``; its longest path holds depth + 1 draft tokens. eagle3_top_k: EAGLE3's
    children per node. prompt_lookup: of the tree, up to so many nodes are a path copied from the
    run's own text (see drafters/lookup.py), for every drafter with a head; 0: none, as published.
    candidates: also report all that was scored, pruned or not.
    """

    tree_budget: int = 60
    auto_budget: bool = False
    sizes: tuple[tuple[int, int], ...] = ()
    beam: int = 20
    ngram_weight: float = 0.5
    ngram: str | None = None
    eagle3_depth: int = 7
    eagle3_top_k: int = 10
    prompt_lookup: int = 0
    candidates: bool = False

    @property
    def budget_name(self) -> str:
        """The tree budget as it is told: a number or "auto"."""
        return "auto" if self.auto_budget else str(self.tree_budget)

    def __post_init__(self) -> None:
        if self.tree_budget == "auto":
            raise ArenaError(
                "tree budget 'auto': in Python that is auto_budget=True, which lets each step "
                "choose, up to tree_budget"
            )
        for name in ("auto_budget", "candidates"):
            check_kind(getattr(self, name), bool, name)
        for name, low, high in (
            ("tree_budget", 1, MAX_TREE_BUDGET),
            ("beam", 1, 1024),
            ("eagle3_depth", 0, 64),
            ("eagle3_top_k", 1, 256),
            ("prompt_lookup", 0, 256),
        ):
            value, what = getattr(self, name), name.replace("_", " ")
            check_number(value, what, whole=True)
            if not low <= value <= high:
                raise ArenaError(f"{what} {value} is outside {low} to {high}")
        if self.sizes and not self.auto_budget:
            raise ArenaError("sizes repeat a run that chose them: give auto_budget=True with them")
        check_sizes(self.sizes, self.tree_budget)
        check_number(self.ngram_weight, "n-gram weight")
        if not 0.0 <= self.ngram_weight <= 100.0:
            raise ArenaError(
                f"n-gram weight {self.ngram_weight} is outside 0 to 100; 0 switches the n-gram off"
            )


def check_sizes(sizes: Sequence[tuple[int, int]], tree_budget: int) -> None:
    """Raises ArenaError for what ``DraftSettings.sizes`` cannot be."""
    check_kind(sizes, Sequence, "sizes")
    for place, pair in enumerate(sizes):
        whole = isinstance(pair, Sequence) and all(isinstance(size, Integral) for size in pair)
        if not whole or len(pair) != 2 or not 0 <= pair[1] <= pair[0] <= tree_budget:
            raise ArenaError(
                f"sizes[{place}] {pair}: expected drafts asked for and drafts verified, no more "
                f"verified than asked and no more asked than the tree budget {tree_budget}"
            )


@dataclass(frozen=True, slots=True)
class Proposal:
    """A draft tree, the seconds it took (head forwards; search or re-ranking), and what searched
    it.

    backend: "native" (C++ pruner), "twin" (its Python twin), "torch" (re-ranking on tensors) or
    "none" (no drafts).
    """

    tree: DraftTree
    draft_seconds: float
    search_seconds: float
    backend: str
    candidates: Candidates | None = None

    def cut_to(self, kept: np.ndarray) -> Proposal:
        """Only these nodes of the tree: see ``DraftTree.cut_to``."""
        candidates = self.candidates and self.candidates.of_tree(kept, len(self.tree))
        return replace(self, tree=self.tree.cut_to(kept), candidates=candidates)


def nothing() -> None:
    """There is nothing else for the device to do."""


class DraftRun(Protocol):
    """One generation's drafting state."""

    def observe(self, hidden: torch.Tensor | None, tokens: torch.Tensor) -> None:
        """Take committed tokens.

        hidden: [S, taps * hidden size], the target's tapped states, low to high; None for a drafter
        without taps. tokens: int64 [S] on the CPU; ``tokens[i]`` is the token that follows
        ``hidden[i]``. After the prefill S = prompt length, tokens = prompt[1:] + [first]; after a
        verify step S = accepted + 1 and tokens = accepted drafts + [bonus].
        """

    def propose(
        self, limit: int | None = None, meanwhile: Callable[[], None] = nothing
    ) -> Proposal:
        """A draft tree whose root is the last observed token, of at most ``limit`` drafts; None:
        the run's tree budget, which a limit never exceeds.

        meanwhile: what else the device is to do before the tree is verified. A drafter with a head
        calls it once, when all of its own work is queued and before it waits for the result, so
        that the two and the search on the CPU overlap; its time is not the drafter's. The others
        leave it alone.
        """

    def close(self) -> None:
        """Free the run's caches."""


class Drafter(Protocol):
    """A loaded drafter, shared by all runs.

    taps: which of the target's hidden states it reads; index i is the input of decoder layer i.
    """

    name: str
    taps: tuple[int, ...]

    def begin(
        self, prompt: torch.Tensor, capacity: int, settings: DraftSettings, eos: frozenset[int]
    ) -> DraftRun:
        """Start a run on ``prompt`` (int64 [P]) whose committed tokens will never exceed
        ``capacity``.
        """
