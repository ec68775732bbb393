"""What a bench holds against each other: engines, their knobs, and parts of DART left out.

A DART head drafts the same after the same text, however the tree is then searched. So each position
of a text is drafted once, and every tree size, n-gram and scoring costs a search only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from dart_core.drafters import NGRAM_OFF, Drafter, DraftRun, DraftSettings, Proposal, nothing
from dart_core.drafters.dart import DartDrafter, draft_levels
from dart_core.drafters.eagle3 import Eagle3Drafter
from dart_core.drafters.lookup import with_lookup
from dart_core.drafters.observed import Observed
from dart_core.ngram_twin import MAX_ORDER
from dart_core.pruner import TreePruner
from dart_core.training.replay import Passage, Replay, replay

ABLATED_NGRAM_WEIGHTS = (0.25, 1.0)
ABLATED_DEPTHS = (3, 5, 9)
ABLATED_TOP_KS = (5, 20)
ABLATED_LOOKUPS = (0, 4, 8)

HeadDrafter = DartDrafter | Eagle3Drafter


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to draft, at any tree budget.

    engine: the drafter's name, "dart" or "eagle3", or that of another DART head. slots: how many of
    the DART head's mask slots are used; None: all. plain: candidates are ranked by their cumulative
    log-probability, instead of DART's weights by level. ablation: only of interest beside the rest.
    """

    name: str
    engine: str
    settings: DraftSettings
    slots: int | None = None
    plain: bool = False
    ablation: bool = False


def variants(
    drafters: Mapping[str, HeadDrafter], settings: DraftSettings, *, ablate: bool
) -> list[Variant]:
    """What can be measured with these drafters; the first of each engine is as ``settings`` say."""
    found: list[Variant] = []
    for engine, drafter in drafters.items():
        if isinstance(drafter, DartDrafter):
            found += _of_dart(engine, drafter, settings, ablate=ablate and engine == "dart")
        else:
            found += _of_eagle3(engine, settings, ablate=ablate)
    return found


def _of_dart(
    engine: str, drafter: DartDrafter, settings: DraftSettings, *, ablate: bool
) -> Iterator[Variant]:
    default, *others = [*drafter.ngrams, NGRAM_OFF]

    def label(ngram: str) -> str:
        return f"{engine}, no n-gram" if ngram == NGRAM_OFF else f"{engine}, {ngram} n-gram"

    own = Variant(label(default), engine, replace(settings, ngram=default))
    bare = replace(settings, ngram=NGRAM_OFF)
    yield own
    for ngram in others:
        yield Variant(label(ngram), engine, replace(settings, ngram=ngram))
    if not ablate:
        return
    yield Variant(f"{engine}, no n-gram, plain scores", engine, bare, plain=True, ablation=True)
    if default != NGRAM_OFF:
        yield replace(own, name=f"{own.name}, plain scores", plain=True, ablation=True)
        for weight in ABLATED_NGRAM_WEIGHTS:
            if weight != settings.ngram_weight:
                changed = replace(own.settings, ngram_weight=weight)
                yield Variant(f"{own.name} of weight {weight}", engine, changed, ablation=True)
    yield from _looking_up(own)
    for slots in range(1, drafter.head.draft_length):
        name = f"{own.name}, {slots} mask slot{'s' if slots > 1 else ''}"
        yield replace(own, name=name, slots=slots, ablation=True)


def _of_eagle3(engine: str, settings: DraftSettings, *, ablate: bool) -> Iterator[Variant]:
    own = Variant(engine, engine, settings)
    yield own
    if not ablate:
        return
    yield from _looking_up(own)
    for field, name, values in (
        ("eagle3_depth", "depth", ABLATED_DEPTHS),
        ("eagle3_top_k", "top-k", ABLATED_TOP_KS),
    ):
        for value in values:
            if value != getattr(settings, field):
                changed = replace(settings, **dict[str, Any]({field: value}))
                yield Variant(f"{engine}, {name} {value}", engine, changed, ablation=True)


def _looking_up(own: Variant) -> Iterator[Variant]:
    for length in ABLATED_LOOKUPS:
        if length != own.settings.prompt_lookup:
            name = f"{own.name}, prompt lookup {length}" if length else f"{own.name}, no lookup"
            changed = replace(own.settings, prompt_lookup=length)
            yield replace(own, name=name, settings=changed, ablation=True)


def replays(
    drafter: HeadDrafter,
    passage: Passage,
    eos: frozenset[int],
    chosen: Sequence[Variant],
    budgets: Sequence[int],
) -> dict[tuple[str, int], Replay]:
    """One text replayed by variants of one drafter, by (name, budget).

    passage: with the states that this drafter reads. eos: what ends an answer.
    """
    levels = _Levels(drafter, passage) if isinstance(drafter, DartDrafter) else None
    found = {}
    for variant in chosen:
        replayed: Drafter = drafter if levels is None else _Search(levels.drafter, variant, levels)
        for budget in budgets:
            settings = replace(variant.settings, tree_budget=budget)
            found[variant.name, budget] = replay(replayed, passage, settings, eos)
    return found


class _Levels:
    """What a DART head drafts after each position of a text: drafted when first asked for, kept."""

    def __init__(self, drafter: DartDrafter, passage: Passage) -> None:
        self.drafter, self.head, self.passage = drafter, drafter.head, passage
        self.observed = Observed(drafter.head, drafter.embed)
        self.cache = self.head.new_cache(len(passage.tokens) + self.head.draft_length)
        self.drafted: list[tuple[np.ndarray, np.ndarray]] = []

    def after(self, committed: int) -> tuple[np.ndarray, np.ndarray]:
        """``draft_levels`` where so many tokens are committed, the prompt included."""
        passage, first = self.passage, self.passage.prompt + 1
        while len(self.drafted) <= committed - first:
            end = first + len(self.drafted)
            start = end - 1 if self.drafted else 1
            self.observed.add(passage.hidden[start - 1 : end - 1], passage.tokens[start:end])
            self.drafted.append(draft_levels(self.head, *self.observed.take(), self.cache))
        return self.drafted[committed - first]


class _Search:
    """DART without its head pass, which is looked up: what is left is the search."""

    name = "dart"

    def __init__(self, drafter: DartDrafter, variant: Variant, levels: _Levels) -> None:
        self.drafter, self.variant, self.levels = drafter, variant, levels
        self.taps = drafter.taps

    def begin(
        self, prompt: Tensor, capacity: int, settings: DraftSettings, eos: frozenset[int]
    ) -> DraftRun:
        return with_lookup(_SearchRun(self, settings, eos), prompt, settings)


class _SearchRun:
    def __init__(self, search: _Search, settings: DraftSettings, eos: frozenset[int]) -> None:
        self.levels, self.budget = search.levels, settings.tree_budget
        levels = search.drafter.head.draft_length + 1
        self.used = levels if search.variant.slots is None else search.variant.slots + 1
        even = [1.0] * levels if search.variant.plain else None
        self.pruner = TreePruner(
            search.drafter.ngram(settings.ngram),
            levels=levels,
            beam=settings.beam,
            ngram_weight=settings.ngram_weight,
            eos_token_ids=sorted(eos),
            level_weights=even,
            logit_weights=even,
        )
        self.committed = 1  # observe brings the prompt's other tokens

    def observe(self, hidden: Tensor | None, tokens: Tensor) -> None:
        self.committed += len(tokens)

    def propose(
        self, limit: int | None = None, meanwhile: Callable[[], None] = nothing
    ) -> Proposal:
        tokens, probabilities = self.levels.after(self.committed)
        start = max(0, self.committed - MAX_ORDER)
        context = self.levels.passage.tokens[start : self.committed].tolist()
        tree, _ = self.pruner.search(
            tokens[: self.used], probabilities[: self.used], context, context[-1], self.budget
        )
        return Proposal(tree, 0.0, 0.0, self.pruner.backend)

    def close(self) -> None:
        pass


def drafted_taps(drafters: Iterable[HeadDrafter]) -> tuple[int, ...]:
    """Every layer that one of them reads."""
    return tuple(sorted({tap for drafter in drafters for tap in drafter.taps}))
