"""Prompt lookup inside a draft tree: what followed, earlier in the text, when it last ended as it
does now, is drafted beside what a head drafts.

A head knows what is likely; the text itself knows names, numbers and code that come again. The idea
is that of prompt lookup decoding (Saxena, 2023); here its one path joins the head's tree, whose
worst nodes make room for it. The published DART and EAGLE3 draft without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from time import perf_counter

import numpy as np
import torch

from dart_core.drafters import DraftRun, DraftSettings, Proposal, nothing
from dart_core.tree import Candidates, DraftTree

LONGEST = 4  # tokens of an ending that is looked for; a longer one seldom tells more


class OwnText:
    """A run's committed tokens, and where each ending of up to LONGEST tokens last went on."""

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self.tokens: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}
        self.extend(tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        """Commit tokens."""
        for token in tokens:
            end = len(self.tokens)
            for length in range(1, min(LONGEST, end) + 1):
                self._after[tuple(self.tokens[end - length :])] = end
            self.tokens.append(token)

    def continuation(self, limit: int) -> list[int]:
        """Up to ``limit`` tokens that followed the longest ending that occurred before, its latest
        place; where the text ends, it goes on round and round. Empty if even the last token is new.
        """
        end = len(self.tokens)
        for length in range(min(LONGEST, end), 0, -1):
            start = self._after.get(tuple(self.tokens[end - length :]))
            if start is not None:
                return [self.tokens[start + step % (end - start)] for step in range(limit)]
        return []


def graft(
    tree: DraftTree, path: list[int], budget: int, candidates: Candidates | None = None
) -> tuple[DraftTree, Candidates | None]:
    """``tree`` with ``path`` below its root, at most ``budget`` drafts: the worst others go.

    What of the path is in the tree stays as it is; the rest comes last, its scores and
    probabilities NaN, for no head gave any. ``candidates`` of the same tree are renumbered.
    """
    tokens, parents = tree.tokens, tree.parents
    known, at = [0], 0
    for token in path[:budget]:
        below = np.flatnonzero((parents == at) & (tokens == token))
        if len(below) == 0:
            break
        at = int(below[0])
        known.append(at)
    new = path[len(known) - 1 : budget]
    # No node scores above its parent, so the best ones hold each other's parents.
    scores = tree.scores.copy()
    scores[known] = np.inf
    kept = np.sort(np.argsort(-scores, kind="stable")[: budget + 1 - len(new)])
    node = np.full(
        len(tree) + 1, -1, dtype=np.int32
    )  # the last entry: no node, or the root's parent
    node[kept] = np.arange(len(kept))
    chain = [int(node[at]), *range(len(kept), len(kept) + len(new) - 1)][: len(new)]
    unknown = np.full(len(new), np.nan)
    grafted = DraftTree.of(
        np.concatenate((tokens[kept], np.array(new, dtype=np.int64))),
        np.concatenate((node[parents[kept]], np.array(chain, dtype=np.int32))),
        *(
            np.concatenate((values[kept], unknown))
            for values in (tree.scores, tree.probabilities, tree.ngram)
        ),
    )
    if candidates is not None:
        candidates = replace(candidates, node=node[candidates.node])
    return grafted, candidates


def with_lookup(run: DraftRun, prompt: torch.Tensor, settings: DraftSettings) -> DraftRun:
    """``run``, whose trees also hold what the text itself suggests if ``settings`` ask for it."""
    return LookupRun(run, prompt, settings) if settings.prompt_lookup else run


class LookupRun:
    """A drafter's run with prompt lookup."""

    def __init__(self, run: DraftRun, prompt: torch.Tensor, settings: DraftSettings) -> None:
        self.run, self.settings = run, settings
        self.text = OwnText(prompt[:1].tolist())  # observe brings the prompt's other tokens

    def observe(self, hidden: torch.Tensor | None, tokens: torch.Tensor) -> None:
        self.run.observe(hidden, tokens)
        self.text.extend(tokens.tolist())

    def propose(
        self, limit: int | None = None, meanwhile: Callable[[], None] = nothing
    ) -> Proposal:
        proposal = self.run.propose(limit, meanwhile)
        start = perf_counter()
        path = self.text.continuation(self.settings.prompt_lookup)
        if not path:
            return proposal
        tree, candidates = graft(
            proposal.tree, path, limit or self.settings.tree_budget, proposal.candidates
        )
        seconds = proposal.search_seconds + perf_counter() - start
        return replace(proposal, tree=tree, candidates=candidates, search_seconds=seconds)

    def close(self) -> None:
        self.run.close()
