"""Batches of anchors: which sequences, which anchors, which of their rows, and what each row should
say.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dart_core.errors import ArenaError
from dart_core.training.features import FeatureCache, Features, RecomputedFeatures


@dataclass(frozen=True, slots=True)
class Batch:
    """B sequences padded to S + 1 tokens, so S pairs of state and following token.

    hidden [B, S, taps * H]; tokens int64 [B, S + 1]; top_ids, top_mass [B, S + 1, K]: the target's
    next-token distribution after each token, in draft ids; mass is 0 outside the draft vocabulary
    and where nothing is supervised. greedy int64 [B, S + 1]: draft id of the target's favourite, -1
    if it has none. run int64 [B, S + 1]: how many of the tokens from this one on are supervised
    without a gap. lengths int64 [B]: tokens without padding.
    """

    hidden: Tensor
    tokens: Tensor
    top_ids: Tensor
    top_mass: Tensor
    greedy: Tensor
    run: Tensor
    lengths: Tensor

    def to(self, like: Tensor) -> Batch:
        """On the device of ``like``, the states in its dtype."""
        moved = {name: getattr(self, name).to(like.device) for name in self.__slots__}
        return Batch(**{**moved, "hidden": self.hidden.to(like)})

    def anchors(self) -> Tensor:
        """bool [B, S - 1]: anchors t whose row 0, token t + 2, is supervised."""
        return self.run[:, 2:] > 0

    def labels(self, anchors: Tensor, row: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What row ``row`` of anchors [B, A] should say: ids and mass [B, A, K], favourite [B, A],
        valid bool [B, A].

        Valid are rows whose token, and all drafted ones before it, the target wrote: no draft
        reaches over a turn.
        """
        place = (anchors + 1 + row).clamp(max=self.tokens.shape[1] - 2)
        valid = self.run.gather(1, (anchors + 2).clamp(max=self.run.shape[1] - 1)) > row
        valid &= anchors + 2 + row < self.tokens.shape[1]
        wide = place.unsqueeze(-1).expand(-1, -1, self.top_ids.shape[-1])
        mass = self.top_mass.gather(1, wide) * valid.unsqueeze(-1)
        return self.top_ids.gather(1, wide), mass, self.greedy.gather(1, place), valid


def collate(items: list[Features], to_draft: Tensor) -> Batch:
    """Pad sequences on the right. to_draft int64 [V]: draft id of each target id, -1 for none."""
    longest = max(len(item.tokens) for item in items)
    shape = (len(items), longest)
    top_k = items[0].top_ids.shape[-1]
    hidden = torch.zeros(*shape, items[0].hidden.shape[-1], dtype=items[0].hidden.dtype)
    tokens = torch.zeros(shape, dtype=torch.int64)
    supervised = torch.zeros(shape, dtype=torch.bool)
    target_ids = torch.zeros(*shape, top_k, dtype=torch.int64)
    mass = torch.zeros(*shape, top_k)
    for row, item in enumerate(items):
        size = len(item.tokens)
        hidden[row, :size] = item.hidden
        tokens[row, :size] = item.tokens
        supervised[row, :size] = item.supervised
        target_ids[row, :size] = item.top_ids
        mass[row, : size - 1] = item.top_logprobs[: size - 1].exp() * item.supervised[1:, None]
    ids = to_draft[target_ids]
    mass[ids < 0] = 0.0
    # The first place from each one on that is not supervised ends the run that begins there.
    gap = torch.where(supervised, longest, torch.arange(longest))
    run = gap.flip(1).cummin(1).values.flip(1) - torch.arange(longest)
    lengths = torch.tensor([len(item.tokens) for item in items])
    return Batch(hidden[:, :-1], tokens, ids.clamp(min=0), mass, ids[..., 0], run, lengths)


class BatchSource:
    """Batches by step number alone: step n is the same after a resume. And together the batches of
    ``ranks`` processes are that of one process with as many sequences.

    An epoch visits every sequence of ``cache`` but the first ``holdout`` once, in an order drawn
    from seed and epoch.
    """

    def __init__(
        self,
        cache: FeatureCache | RecomputedFeatures,
        to_draft: Tensor,
        *,
        holdout: int,
        sequences: int,
        seed: int,
        rank: int = 0,
        ranks: int = 1,
    ):
        self.count = len(cache) - holdout
        if self.count < 1:
            raise ArenaError(
                f"{len(cache)} sequences, of which {holdout} are held out, leave none to train on: "
                "give more data or a smaller --holdout"
            )
        self.cache, self.to_draft = cache, to_draft
        self.holdout, self.sequences, self.seed = holdout, sequences, seed
        self.rank, self.ranks = rank, ranks
        self._epoch, self._order = -1, torch.empty(0, dtype=torch.int64)

    def _visits(self, step: int) -> range:
        """Numbers of the visits to sequences that are this process's part of a step."""
        first = (step * self.ranks + self.rank) * self.sequences
        return range(first, first + self.sequences)

    def generators(self, step: int) -> list[torch.Generator]:
        """The randomness of each of a step's sequences, whatever process has it."""
        return [
            torch.Generator().manual_seed(self.seed * 1_000_003 + visit)
            for visit in self._visits(step)
        ]

    def __getitem__(self, step: int) -> Batch:
        places = [self._place(visit) for visit in self._visits(step)]
        return collate(self.cache.several(places), self.to_draft)

    def _place(self, visit: int) -> int:
        epoch, index = divmod(visit, self.count)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(self.seed * 7919 + epoch)
            self._epoch, self._order = epoch, torch.randperm(self.count, generator=generator)
        return self.holdout + int(self._order[index])

    def held_out(self, count: int | None = None) -> list[Features]:
        """The first ``count`` (all) held-out sequences."""
        count = self.holdout if count is None else min(count, self.holdout)
        return [self.cache[index] for index in range(count)]


def choose_anchors(batch: Batch, count: int, generators: list[torch.Generator]) -> Tensor:
    """``count`` random anchors of every sequence, int64 [B, count], drawn by its own generator;
    where there are fewer, some come twice.
    """
    chosen = torch.zeros(len(generators), count, dtype=torch.int64)
    for row, (allowed, generator) in enumerate(zip(batch.anchors(), generators, strict=True)):
        places = allowed.nonzero().squeeze(1)
        if len(places):
            order = torch.randperm(len(places), generator=generator)
            chosen[row] = places[order][torch.arange(count) % len(places)]
    return chosen
