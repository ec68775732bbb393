"""DART: one head pass drafts all levels, the C++ pruner makes the tree."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from dart_core.drafters import NGRAM_OFF, DraftRun, DraftSettings, Proposal
from dart_core.drafters.lookup import with_lookup
from dart_core.drafters.observed import Observed
from dart_core.errors import ArenaError
from dart_core.heads.dart import DartHead
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
        self.taps = head.config.taps

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
        self.head, self.settings = drafter.head, settings
        slots = self.head.config.draft_length
        self.cache = self.head.new_cache(capacity + slots)
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

    def observe(self, hidden: Tensor, tokens: Tensor) -> None:
        self.observed.add(hidden, tokens)
        self.context = (self.context + tokens[-self.width :].tolist())[-self.width :]

    def propose(self) -> Proposal:
        start = perf_counter()
        tokens, probabilities = draft_levels(self.head, *self.observed.take(), self.cache)
        drafted = perf_counter()
        tree, candidates = self.pruner.search(
            tokens,
            probabilities,
            self.context,
            self.context[-1],
            self.settings.tree_budget,
            candidates=self.settings.candidates,
        )
        return Proposal(
            tree, drafted - start, perf_counter() - drafted, self.pruner.backend, candidates
        )

    def close(self) -> None:
        self.cache = None


def draft_levels(
    head: DartHead, hidden: Tensor, embeddings: Tensor, cache
) -> tuple[np.ndarray, np.ndarray]:
    """The pruner's input after one head pass: target ids int32 and probabilities float32, each [D +
    1, k].

    Rows in descending order. The probabilities are a softmax over the k best alone, as published
    heads are searched.
    """
    logits = head.logits(head(hidden, embeddings, cache))
    best = logits.topk(min(CANDIDATES_PER_LEVEL, logits.shape[-1]))
    probabilities = torch.softmax(best.values.float(), dim=-1)
    ids = head.target_ids(best.indices).to(torch.int32)
    packed = torch.stack((ids, probabilities.view(torch.int32))).cpu()  # one transfer for both
    return packed[0].numpy(), packed[1].view(torch.float32).numpy()
