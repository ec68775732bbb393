"""EAGLE3: the head drafts level by level, a beam of nodes per call; the pool is re-ranked into a
tree.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from dart_core.drafters import DraftRun, DraftSettings, Proposal
from dart_core.drafters.lookup import with_lookup
from dart_core.drafters.observed import Observed
from dart_core.heads.eagle3 import Eagle3Head
from dart_core.tree import Candidates, DraftTree


class Eagle3Drafter:
    """An EAGLE3 head; ``embed`` is the target's embedding, used unless the head has its own."""

    name = "eagle3"

    def __init__(self, head: Eagle3Head, embed: Callable[[Tensor], Tensor]) -> None:
        self.head = head
        self.embed = head.embed_tokens if head.config.own_embedding else embed
        self.taps = head.config.taps

    def begin(
        self, prompt: Tensor, capacity: int, settings: DraftSettings, eos: frozenset[int]
    ) -> DraftRun:
        return with_lookup(Eagle3Run(self, capacity, settings), prompt, settings)


class Eagle3Run:
    """One generation's drafting state.

    With ``settings.candidates`` every level is grown in full, as the published code does, even
    where nothing of it can enter the tree: slower, but the pool is whole. The trees are the same.
    """

    def __init__(self, drafter: Eagle3Drafter, capacity: int, settings: DraftSettings) -> None:
        self.head, self.settings = drafter.head, settings
        self.top_k = min(settings.eagle3_top_k, self.head.config.draft_vocab_size)
        self.calls = settings.eagle3_depth
        if not settings.candidates:  # a node on level l needs l kept ancestors
            self.calls = min(self.calls, settings.tree_budget - 1)
        self.cache = self.head.new_cache(capacity + settings.eagle3_depth * self.top_k + 1)
        self.observed = Observed(self.head, drafter.embed)
        self.root = -1

    def observe(self, hidden: Tensor, tokens: Tensor) -> None:
        self.observed.add(hidden, tokens)
        self.root = int(tokens[-1])

    def propose(self) -> Proposal:
        start = perf_counter()
        hidden, embeddings = self.observed.take()
        output = self.head(self.head.fuse(hidden), embeddings, self.cache)
        pool = self._grow(output)
        drafted = perf_counter()
        tree, candidates = rerank(
            pool, self.root, self.settings.tree_budget, candidates=self.settings.candidates
        )
        return Proposal(tree, drafted - start, perf_counter() - drafted, "torch", candidates)

    def close(self) -> None:
        self.cache = None

    def _grow(self, output: Tensor) -> Pool:
        """Draft the tree's candidates from the head's output [1, H] at the last position."""
        head, device = self.head, output.device
        scores, tokens = self._children(output, torch.zeros(1, 1, device=device))
        levels = [(scores, tokens, torch.full_like(tokens, -1))]
        beam = torch.arange(self.top_k, device=device)  # pool index of every beam node
        rows = torch.zeros_like(beam)  # its parent's row in ``output``
        tail = torch.empty(1, 0, device=device)
        size, used = self.top_k, 0
        for level in range(1, self.calls + 1):
            width = len(beam)
            if device.type == "cpu" and not self.settings.candidates:
                width = self._hopeful(levels, scores)
            if width == 0:
                break
            beam, rows, scores, tokens = beam[:width], rows[:width], scores[:width], tokens[:width]
            itself = torch.full((width, width), -torch.inf, device=device).fill_diagonal_(0.0)
            tail = torch.cat((tail[rows], itself), dim=1)
            output = head.grow(
                output[rows],
                self.observed.embed(tokens),
                self.cache,
                level=level,
                used=used,
                tail=tail,
            )
            child_scores, child_tokens = self._children(output, scores[:, None])
            levels.append((child_scores, child_tokens, beam.repeat_interleave(self.top_k)))
            scores, best = child_scores.topk(self.top_k)
            rows, tokens, beam = best // self.top_k, child_tokens[best], best + size
            size += len(child_scores)
            used += width
        scores, tokens, parents = (torch.cat(column) for column in zip(*levels, strict=True))
        packed = torch.stack(
            (scores.view(torch.int32), tokens.to(torch.int32), parents.to(torch.int32))
        ).cpu()  # the round's only transfer from the device
        return Pool(
            scores=packed[0].view(torch.float32).numpy(),
            tokens=packed[1].numpy(),
            parents=packed[2].numpy(),
        )

    def _children(self, output: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        """top_k children of every row of ``output``: cumulative scores and target ids, flat."""
        logits = self.head.logits(output).float()
        best, ids = logits.topk(self.top_k)
        # Rounding must not lift a log-probability over 0: a child would then outrank its parent.
        log_probabilities = (best - logits.logsumexp(-1, keepdim=True)).clamp_(max=0.0)
        return (scores + log_probabilities).flatten(), self.head.target_ids(ids).flatten()

    def _hopeful(self, levels: list, scores: Tensor) -> int:
        """How many beam nodes (best first) can still have a child in the tree.

        Children never score above their parent, so a node not above the budget's worst score so far
        is done. That shrinks the drafting of small trees without changing them; a GPU would have to
        wait for the answer.
        """
        so_far = torch.cat([level[0] for level in levels])
        if len(so_far) < self.settings.tree_budget:
            return len(scores)
        worst = so_far.topk(self.settings.tree_budget).values[-1]
        return int((scores > worst).sum())


@dataclass(frozen=True, slots=True)
class Pool:
    """All drafted candidates, level by level: cumulative scores float32, target ids, parents (-1 =
    the root).
    """

    scores: np.ndarray
    tokens: np.ndarray
    parents: np.ndarray


def rerank(
    pool: Pool, root: int, budget: int, *, candidates: bool = False
) -> tuple[DraftTree, Candidates | None]:
    """Keep the ``budget`` best candidates of the pool (all, if it has fewer), in pool order, under
    ``root``.

    Of equal scores the earlier one is kept; parents come earlier and never score lower, so the tree
    is always closed under ancestors.
    """
    kept = np.sort(np.argsort(-pool.scores, kind="stable")[:budget])
    node = np.full(len(pool.scores) + 1, -1, dtype=np.int32)
    node[kept] = np.arange(1, len(kept) + 1)
    node[-1] = 0  # parent -1 of the pool = the root
    parents = pool.parents[kept]
    own = pool.scores[kept] - np.where(parents < 0, 0.0, pool.scores[parents])
    tree = DraftTree.of(
        np.concatenate(([root], pool.tokens[kept])),
        np.concatenate(([-1], node[parents])),
        scores=np.concatenate(([0.0], pool.scores[kept])),
        probabilities=np.concatenate(([1.0], np.exp(own))),
    )
    if not candidates:
        return tree, None
    return tree, Candidates(
        tokens=pool.tokens.astype(np.int64),
        parents=pool.parents.astype(np.int32),
        scores=pool.scores,
        node=node[:-1].copy(),
    )
