"""One step's loss of either head, over the rows of a batch of anchors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dart_core.heads import DartHead, Eagle3Head
from dart_core.training.batches import Batch
from dart_core.training.forwards import dart_forward, eagle3_forward
from dart_core.training.losses import soft_cross_entropy


@dataclass(frozen=True, slots=True)
class Objective:
    """Which rows are trained and how much each counts.

    rows: DART's D + 1 rows or EAGLE3's unrolled steps. decay: row j counts decay ** j. keep: row j
    is computed for a random keep ** j of the anchors and counts more by as much, so compute goes
    where the weight is.
    """

    rows: int
    decay: float
    keep: float

    def counts(self, anchors: int) -> list[int]:
        """How many of ``anchors`` have their row j computed."""
        return [max(1, round(anchors * self.keep**row)) for row in range(self.rows)]

    def loss(
        self, head: DartHead | Eagle3Head, batch: Batch, embeddings: Tensor, anchors: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(sum over rows of weight times cross-entropy, to be differentiated; float32 [1 + 2 rows]:
        the sum of weights, by row the plain sum of cross-entropies, by row the valid rows).

        anchors [B, A] in random order: the first ones have all their rows computed.
        """
        counts = self.counts(anchors.shape[1])
        chosen = [anchors[:, :count] for count in counts]
        if isinstance(head, DartHead):
            states = dart_forward(head, batch.hidden, embeddings, chosen)
        else:
            steps = eagle3_forward(head, batch.hidden, embeddings, anchors, self.rows)
            states = torch.cat(
                [step[:, :count] for step, count in zip(steps, counts, strict=True)], dim=1
            )
        labels = [batch.labels(at, row) for row, at in enumerate(chosen)]
        ids = torch.cat([label[0] for label in labels], dim=1).flatten(0, 1)
        mass = torch.cat([label[1] for label in labels], dim=1).flatten(0, 1)
        valid = torch.cat([label[3] for label in labels], dim=1).flatten().float()
        row = torch.repeat_interleave(torch.arange(self.rows), torch.tensor(counts)).to(mass.device)
        row = row.expand(len(anchors), -1).flatten()
        scale = torch.tensor(
            [self.decay**j * anchors.shape[1] / counts[j] for j in range(self.rows)]
        )
        weight = scale.to(mass.device)[row] * valid
        total, parts = soft_cross_entropy(
            head.norm(states).flatten(0, 1), head.lm_head.weight, ids, mass * weight.unsqueeze(-1)
        )
        sums = torch.zeros(self.rows, device=mass.device)
        plain = sums.index_add(0, row, (parts / scale.to(mass.device)[row]).detach())
        return total, torch.cat((weight.sum()[None], plain, sums.index_add(0, row, valid)))


@torch.no_grad()
def hits(
    head: DartHead | Eagle3Head,
    batch: Batch,
    embeddings: Tensor,
    rows: int,
    ranks: tuple[int, ...] = (1, 5, 10),
) -> tuple[Tensor, Tensor]:
    """How often the target's favourite token is among the head's first ``ranks`` guesses, at every
    anchor of a batch.

    Returns hits float32 [rows, len(ranks)] and the number of cases [rows]. A favourite outside the
    draft vocabulary is a miss.
    """
    allowed = batch.anchors()
    found = torch.zeros(rows, len(ranks))
    cases = torch.zeros(rows)
    for sequence in range(len(allowed)):
        one = Batch(*(getattr(batch, name)[sequence : sequence + 1] for name in Batch.__slots__))
        anchors = allowed[sequence].nonzero().T
        if anchors.shape[1] == 0:
            continue
        there = embeddings[sequence : sequence + 1]
        if isinstance(head, DartHead):
            whole = dart_forward(head, one.hidden, there, [anchors] * rows)
            states = list(whole.chunk(rows, dim=1))
        else:
            states = eagle3_forward(head, one.hidden, there, anchors, rows)
        for row in range(rows):
            _, _, favourite, valid = one.labels(anchors, row)
            logits = head.logits(states[row])[0]
            guesses = logits.topk(min(max(ranks), logits.shape[-1]), dim=-1).indices
            right = (
                (guesses == favourite[0, :, None])
                & (favourite[0, :, None] >= 0)
                & valid[0, :, None]
            )
            found[row] += (
                torch.stack([right[:, :rank].any(1).sum() for rank in ranks]).float().cpu()
            )
            cases[row] += valid.sum().cpu()
    return found, cases
