"""DART: one head pass drafts all levels, the C++ pruner makes the tree."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from dart_core.capture import Capture, run_eagerly
from dart_core.drafters import NGRAM_OFF, DraftRun, DraftSettings, Proposal, nothing
from dart_core.drafters.lookup import with_lookup
from dart_core.drafters.observed import Observed
from dart_core.drafters.static import BorrowedHeadCache, StaticHead
from dart_core.drafters.transfer import Transfer
from dart_core.errors import ArenaError
from dart_core.heads.dart import DartHead
from dart_core.heads.layers import HeadCache
from dart_core.ngram import NgramModel
from dart_core.pruner import TreePruner

CANDIDATES_PER_LEVEL = 25


class DartDrafter:
    """A DART head with its n-grams by name, the default one first, perhaps none; ``embed`` is the
    target's input embedding.
    """

    name = "dart"

    def __init__(
        self,
        head: DartHead,
        ngrams: Mapping[str, NgramModel],
        embed: Callable[[Tensor], Tensor],
    ) -> None:
        self.head, self.ngrams, self.embed = head, dict(ngrams), embed
        self.taps: tuple[int, ...] = head.config.taps
        self.static: StaticHead[DartHead] | None = None

    def use_static_shapes(self, capture: Capture = run_eagerly) -> None:
        """Draft in static shapes from now on, see ``Target.use_static_shapes``."""
        self.static = StaticHead(self.head, self.embed, capture)

    def ngram(self, name: str | None) -> NgramModel | None:
        """The n-gram a run asks for with ``DraftSettings.ngram``. Raises ArenaError that lists the
        loaded ones.
        """
        if name is None:
            return next(iter(self.ngrams.values()), None)
        if name == NGRAM_OFF:
            return None
        try:
            return self.ngrams[name]
        except (KeyError, TypeError):
            loaded = ", ".join(self.ngrams) or "none"
            raise ArenaError(
                f'n-gram {name!r} is not loaded; loaded n-grams: {loaded}; "{NGRAM_OFF}" drafts '
                "without one"
            ) from None

    def begin(
        self, prompt: Tensor, capacity: int, settings: DraftSettings, eos: frozenset[int]
    ) -> DraftRun:
        return with_lookup(DartRun(self, prompt, capacity, settings, eos), prompt, settings)


class DartRun:
    """One generation's drafting state: the head's cache, and the end of the committed text for the
    n-gram.
    """

    def __init__(
        self,
        drafter: DartDrafter,
        prompt: Tensor,
        capacity: int,
        settings: DraftSettings,
        eos: frozenset[int],
    ) -> None:
        self.head, self.settings, self.static = drafter.head, settings, drafter.static
        slots = self.head.draft_length
        caches = self.head.new_cache if self.static is None else self.static.pool.lend
        self.cache = caches(capacity + slots)
        self.observed = Observed(self.head, drafter.embed)
        ngram = drafter.ngram(settings.ngram)
        self.pruner = TreePruner(
            ngram,
            levels=slots + 1,
            beam=settings.beam,
            ngram_weight=settings.ngram_weight,
            eos_token_ids=sorted(eos),
        )
        self.width = max(ngram.order - 1, 1) if ngram is not None else 1
        self.context = prompt[:1].tolist()  # observe brings the prompt's other tokens

    def observe(self, hidden: Tensor | None, tokens: Tensor) -> None:
        self.observed.add(hidden, tokens)
        self.context = (self.context + tokens[-self.width :].tolist())[-self.width :]

    def propose(
        self, limit: int | None = None, meanwhile: Callable[[], None] = nothing
    ) -> Proposal:
        start = perf_counter()
        limit = limit or self.settings.tree_budget
        packed = Transfer(self._draft(*self.observed.take_tokens(), self._levels(limit)))
        queued = perf_counter()
        meanwhile()
        start += perf_counter() - queued
        tokens, probabilities = _unpacked(packed.wait())
        drafted = perf_counter()
        tree, candidates = self.pruner.search(
            tokens,
            probabilities,
            self.context,
            self.context[-1],
            limit,
            candidates=self.settings.candidates,
        )
        return Proposal(
            tree, drafted - start, perf_counter() - drafted, self.pruner.backend, candidates
        )

    def close(self) -> None:
        self.cache.close()

    def _levels(self, limit: int) -> int:
        """How many a tree of ``limit`` drafts can have; all, where the pool is asked for."""
        levels = self.head.draft_length + 1
        return levels if self.settings.candidates else min(levels, limit)

    def _draft(self, hidden: Tensor, tokens: Tensor, levels: int) -> Tensor:
        """The candidates after the tokens just committed, packed, on the device; in the static form
        where there is one.
        """
        if self.static is not None and isinstance(self.cache, BorrowedHeadCache):
            slots = self.head.draft_length
            packed = self.static.run(hidden, tokens, self.cache, _static_draft, scratch=slots)
            if packed is not None:
                return packed
        return _packed_levels(self.head, hidden, self.observed.embed(tokens), self.cache, levels)


def draft_levels(
    head: DartHead, hidden: Tensor, embeddings: Tensor, cache: HeadCache, levels: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The pruner's input after one head pass: target ids int32 and probabilities float32, each
    [levels, k]; levels: D + 1 unless told.

    Rows in descending order. The probabilities are a softmax over the k best alone, as published
    heads are searched.
    """
    return _unpacked(_packed_levels(head, hidden, embeddings, cache, levels).cpu())


def _packed_levels(
    head: DartHead, hidden: Tensor, embeddings: Tensor, cache: HeadCache, levels: int | None
) -> Tensor:
    """``draft_levels`` packed into one int32 tensor, still on the device."""
    states = head(hidden, embeddings, cache, None if levels is None else levels - 1)
    return head.candidates(states, CANDIDATES_PER_LEVEL)


def _static_draft(
    static: StaticHead[DartHead],
    numbers: dict[str, Tensor],
    hidden: Tensor,
    cache: HeadCache,
    window: int,
) -> Tensor:
    """The same in static shapes."""
    places = {name: numbers[name] for name in ("places", "positions", "last", "end")}
    embeddings = static.embed(numbers["tokens"])
    states = static.head.draft_in_place(hidden, embeddings, cache, window=window, **places)
    return static.head.candidates(states, CANDIDATES_PER_LEVEL)


def _unpacked(packed: Tensor) -> tuple[np.ndarray, np.ndarray]:
    return packed[0].numpy(), packed[1].view(torch.float32).numpy()
