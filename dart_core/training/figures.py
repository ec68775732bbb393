"""Figures of a head on held-out text: hit@k by position, and τ by replay."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import nn

from dart_core.drafters import Drafter, DraftSettings
from dart_core.drafters.dart import DartDrafter
from dart_core.drafters.eagle3 import Eagle3Drafter
from dart_core.heads import DartHead, Eagle3Head
from dart_core.ngram import NgramModel
from dart_core.training.batches import Batch, collate
from dart_core.training.objectives import hits
from dart_core.training.replay import Passage, held_out_passages, replay, tau
from dart_core.training.states import Features

RANKS = (1, 5, 10)


def hit_rates(
    head: DartHead | Eagle3Head, embed: nn.Embedding, batches: Iterable[Batch], rows: int
) -> dict[str, list[float | None]]:
    """hit@1, hit@5 and hit@10 by position over ``batches``, in the dtype of ``embed``; None at
    positions that no answer is long enough for.
    """
    found, cases = torch.zeros(rows, len(RANKS)), torch.zeros(rows)
    for batch in batches:
        batch = batch.to(embed.weight)
        more, of = hits(head, batch, embed(batch.tokens[:, 1:]), rows, RANKS)
        found, cases = found + more, cases + of
    return {
        f"hit@{rank}": [_rounded(rate, 4) for rate in rates]
        for rank, rates in zip(RANKS, (found / cases[:, None]).T.tolist(), strict=True)
    }


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None or math.isnan(value) else round(value, digits)


def drafter_of(
    head: DartHead | Eagle3Head, embed: nn.Embedding, ngrams: Mapping[str, NgramModel]
) -> Drafter:
    """The drafter of either kind of head; only DART's takes n-grams."""
    if isinstance(head, DartHead):
        return DartDrafter(head, ngrams, embed)
    return Eagle3Drafter(head, embed)


def tau_by_budget(
    drafter: Drafter, passages: Sequence[Passage], budgets: Sequence[int], ngram_weight: float
) -> dict[int, float | None]:
    """τ over all passages for each size of draft tree; None where there is no verify step."""
    settings = [DraftSettings(tree_budget=size, ngram_weight=ngram_weight) for size in budgets]
    return {
        each.tree_budget: _rounded(tau(replay(drafter, passage, each) for passage in passages), 3)
        for each in settings
    }


class HeldOut:
    """Held-out text that a head is measured on while it trains.

    items: its sequences; τ is measured on the first answers of the first ``passages`` of them.
    ngrams: by name, for a DART head.
    """

    def __init__(
        self,
        items: Sequence[Features],
        to_draft: torch.Tensor,
        embed: nn.Embedding,
        rows: int,
        *,
        ngrams: Mapping[str, NgramModel] | None = None,
        passages: int = 6,
        max_new_tokens: int = 64,
        budgets: Sequence[int] = (16, 60),
    ):
        self.embed, self.rows, self.budgets, self.ngrams = embed, rows, budgets, ngrams or {}
        self.batches = [collate([item], to_draft) for item in items]
        self.passages = list(held_out_passages(items[:passages], passages, max_new_tokens))

    def measure(self, head: DartHead | Eagle3Head) -> dict:
        """{"hit@1": [by position], …, "tau": {"16": τ, "60": τ}} of the head as it would be used:
        in the dtype of the embedding.
        """
        narrow = copy.deepcopy(head).to(self.embed.weight.dtype)
        rates = hit_rates(narrow, self.embed, self.batches, self.rows)
        drafter = drafter_of(narrow, self.embed, self.ngrams)
        taus = tau_by_budget(drafter, self.passages, self.budgets, 0.5 if self.ngrams else 0.0)
        return {**rates, "tau": {str(size): value for size, value in taus.items()}}
