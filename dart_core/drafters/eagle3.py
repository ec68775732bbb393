"""EAGLE3: the head drafts level by level, a beam of nodes per call; the pool is re-ranked into a
tree.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dart_core.capture import Capture, run_eagerly
from dart_core.drafters import DraftRun, DraftSettings, Proposal, nothing
from dart_core.drafters.lookup import with_lookup
from dart_core.drafters.observed import Observed
from dart_core.drafters.static import BorrowedHeadCache, StaticHead
from dart_core.drafters.transfer import Transfer
from dart_core.heads.eagle3 import Eagle3Head
from dart_core.heads.layers import HeadCache
from dart_core.tree import Candidates, DraftTree


class Eagle3Drafter:
    """An EAGLE3 head; ``embed`` is the target's embedding, used unless the head has its own."""

    name = "eagle3"

    def __init__(self, head: Eagle3Head, embed: Callable[[Tensor], Tensor]) -> None:
        self.head = head
        self.embed = head.embed_tokens if head.config.own_embedding else embed
        self.taps: tuple[int, ...] = head.config.taps
        self.static: StaticHead[Eagle3Head] | None = None

    def use_static_shapes(self, capture: Capture = run_eagerly) -> None:
        """Draft in static shapes from now on, see ``Target.use_static_shapes``."""
        self.static = StaticHead(self.head, self.embed, capture)

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
        self.head, self.settings, self.static = drafter.head, settings, drafter.static
        self.top_k = min(settings.eagle3_top_k, self.head.config.draft_vocab_size)
        self.calls = settings.eagle3_depth
        if not settings.candidates:  # a node on level l needs l kept ancestors
            self.calls = min(self.calls, settings.tree_budget - 1)
        caches = self.head.new_cache if self.static is None else self.static.pool.lend
        self.cache = caches(capacity + settings.eagle3_depth * self.top_k + 1)
        self.observed = Observed(self.head, drafter.embed)
        self.root = -1
        self.budget = settings.tree_budget

    def observe(self, hidden: Tensor | None, tokens: Tensor) -> None:
        self.observed.add(hidden, tokens)
        self.root = int(tokens[-1])

    def propose(
        self, limit: int | None = None, meanwhile: Callable[[], None] = nothing
    ) -> Proposal:
        start = perf_counter()
        self.budget = limit or self.settings.tree_budget
        packed = Transfer(self._draft(*self.observed.take_tokens()))
        queued = perf_counter()
        meanwhile()
        start += perf_counter() - queued
        pool = Pool.of(packed.wait())
        drafted = perf_counter()
        tree, candidates = rerank(pool, self.root, self.budget, candidates=self.settings.candidates)
        return Proposal(tree, drafted - start, perf_counter() - drafted, "torch", candidates)

    def close(self) -> None:
        self.cache.close()

    def _draft(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        """The pool after the tokens just committed, packed, on the device."""
        if self.static is not None and isinstance(self.cache, BorrowedHeadCache):
            packed = self.static.run(
                hidden,
                tokens,
                self.cache,
                partial(_static_draft, top_k=self.top_k, calls=self.calls),
                scratch=self.calls * self.top_k,
                key=(self.top_k, self.calls),
            )
            if packed is not None:
                return packed
        head, embed = self.head, self.observed.embed
        output = head(head.fuse(hidden), embed(tokens), self.cache)
        narrow = output.device.type == "cpu" and not self.settings.candidates
        return grow_pool(
            head,
            embed,
            output,
            partial(head.grow, cache=self.cache),
            top_k=self.top_k,
            calls=self.calls,
            hopeful=self._hopeful if narrow else None,
        )

    def _hopeful(self, levels: list[tuple[Tensor, Tensor, Tensor]], scores: Tensor) -> int:
        """How many beam nodes (best first) can still have a child in the tree.

        Children never score above their parent, so a node not above the budget's worst score so far
        is done. That shrinks the drafting of small trees without changing them; a GPU would have to
        wait for the answer.
        """
        so_far = torch.cat([level[0] for level in levels])
        if len(so_far) < self.budget:
            return len(scores)
        worst = so_far.topk(self.budget).values[-1]
        return int((scores > worst).sum())


def grow_pool(
    head: Eagle3Head,
    embed: Callable[[Tensor], Tensor],
    output: Tensor,
    grow: Callable[..., Tensor],
    *,
    top_k: int,
    calls: int,
    hopeful: Callable[[list[tuple[Tensor, Tensor, Tensor]], Tensor], int] | None = None,
) -> Tensor:
    """Draft the tree's candidates from the head's output [1, H] at the last position: packed,
    int32 [3, M], see ``Pool.of``.

    grow: ``Eagle3Head.grow`` over some cache. hopeful: how many beam nodes to go on with; None: all
    of them, and then every shape is known beforehand.
    """
    device = output.device
    scores, tokens = _children(head, output, torch.zeros(1, 1, device=device), top_k)
    levels = [(scores, tokens, torch.full_like(tokens, -1))]
    beam = torch.arange(top_k, device=device)  # pool index of every beam node
    rows = torch.zeros_like(beam)  # its parent's row in ``output``
    tail = torch.empty(1, 0, device=device)
    size, used = top_k, 0
    for level in range(1, calls + 1):
        width = len(beam) if hopeful is None else hopeful(levels, scores)
        if width == 0:
            break
        beam, rows, scores, tokens = beam[:width], rows[:width], scores[:width], tokens[:width]
        itself = torch.full((width, width), -torch.inf, device=device).fill_diagonal_(0.0)
        tail = torch.cat((tail[rows], itself), dim=1)
        output = grow(output[rows], embed(tokens), level=level, used=used, tail=tail)
        child_scores, child_tokens = _children(head, output, scores[:, None], top_k)
        levels.append((child_scores, child_tokens, beam.repeat_interleave(top_k)))
        scores, best = child_scores.topk(top_k)
        rows, tokens, beam = best // top_k, child_tokens[best], best + size
        size += len(child_scores)
        used += width
    scores, tokens, parents = (torch.cat(column) for column in zip(*levels, strict=True))
    return torch.stack((scores.view(torch.int32), tokens.to(torch.int32), parents.to(torch.int32)))


def _children(
    head: Eagle3Head, output: Tensor, scores: Tensor, top_k: int
) -> tuple[Tensor, Tensor]:
    """top_k children of every row of ``output``: cumulative scores and target ids, flat."""
    logits = head.logits(output).float()
    best, ids = logits.topk(top_k)
    # Rounding must not lift a log-probability over 0: a child would then outrank its parent.
    log_probabilities = (best - logits.logsumexp(-1, keepdim=True)).clamp_(max=0.0)
    return (scores + log_probabilities).flatten(), head.target_ids(ids).flatten()


def _static_draft(
    static: StaticHead[Eagle3Head],
    numbers: dict[str, Tensor],
    hidden: Tensor,
    cache: HeadCache,
    window: int,
    *,
    top_k: int,
    calls: int,
) -> Tensor:
    """``grow_pool`` after the committed rows, all in static shapes."""
    head = static.head
    at: dict[str, Any] = {"cache": cache, "end": numbers["end"], "window": window}
    output = head.forward_in_place(
        head.fuse(hidden),
        static.embed(numbers["tokens"]),
        places=numbers["places"],
        positions=numbers["positions"],
        last=numbers["last"],
        **at,
    )
    grow = partial(head.grow_in_place, **at)
    return grow_pool(head, static.embed, output, grow, top_k=top_k, calls=calls)


@dataclass(frozen=True, slots=True)
class Pool:
    """All drafted candidates, level by level: cumulative scores float32, target ids, parents (-1 =
    the root).
    """

    scores: np.ndarray
    tokens: np.ndarray
    parents: np.ndarray

    @classmethod
    def of(cls, packed: Tensor) -> Pool:
        """From int32 [3, M] on the CPU: the bits of the scores, target ids, parents."""
        return cls(packed[0].view(torch.float32).numpy(), packed[1].numpy(), packed[2].numpy())


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
