"""Slow Python twin of the native tree pruner: the oracle of its tests, and the fallback without it.

Plain and complete: every level is scored as a whole, the pool is sorted as a whole.
cpp/tree_pruner.h states the rule; all arithmetic is float32.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dart_core.ngram_twin import TwinTrie
from dart_core.tree import Candidates, DraftTree

_EPSILON = np.float32(1e-10)


def _log_terms(probabilities: np.ndarray) -> np.ndarray:
    """ln(p + epsilon) as float32, p clamped to 0 .. 1; NaN counts as 0."""
    clamped = np.where(probabilities > 0, np.minimum(probabilities, np.float32(1)), np.float32(0))
    return np.log((clamped + _EPSILON).astype(np.float64)).astype(np.float32)


class TwinPruner:
    """The native ``TreePruner``'s search, one numpy expression per step."""

    def __init__(
        self,
        trie: TwinTrie | None,
        *,
        levels: int,
        beam: int,
        ngram_weight: float,
        level_weights: Sequence[float],
        logit_weights: Sequence[float],
        eos_tokens: Sequence[int],
    ) -> None:
        self.trie = trie if ngram_weight != 0 else None
        self.levels, self.beam = levels, beam
        self.ngram_weight = np.float32(ngram_weight)
        self.level_weights = np.asarray(level_weights, dtype=np.float32)
        self.logit_weights = np.asarray(logit_weights, dtype=np.float32)
        self.eos_tokens = np.asarray(eos_tokens, dtype=np.int64)

    def search(
        self,
        tokens: np.ndarray,
        probabilities: np.ndarray,
        counts: np.ndarray,
        context: np.ndarray,
        budget: int,
    ) -> tuple[DraftTree, Candidates]:
        """The tree and the whole pool. Arguments as the native search takes them."""
        # The pool, by place: level, then rank, then parent.
        pool_tokens: list[int] = []
        pool_parents: list[int] = []
        pool_scores: list[float] = []  # float32 values, as the two that follow
        pool_probabilities: list[float] = []
        pool_ngram: list[float] = []
        beam = [-1]  # places; -1 is the root
        paths = {-1: [int(token) for token in context]}
        for level in range(len(tokens)):
            width = int(counts[level])
            if width == 0 or not beam:
                break
            row, first = tokens[level, :width], len(pool_tokens)
            head = _log_terms(probabilities[level, :width]) * self.logit_weights[level]
            terms = np.repeat(head[:, None], len(beam), axis=1)
            ngram = np.full(terms.shape, np.nan, dtype=np.float32)
            if self.trie is not None and level > 0:
                for slot, place in enumerate(beam):
                    ngram[:, slot] = self.trie.query(paths[place], row)[0]
                terms = terms + _log_terms(ngram) * self.ngram_weight
            above = [0.0 if p < 0 else pool_scores[p] for p in beam]
            scores = np.array(above, dtype=np.float32) + self.level_weights[level] * terms

            pool_tokens += np.repeat(row, len(beam)).tolist()
            pool_parents += beam * width
            pool_scores += list(scores.ravel())
            pool_probabilities += list(np.repeat(probabilities[level, :width], len(beam)))
            pool_ngram += list(ngram.ravel())

            ending = np.repeat(np.isin(row, self.eos_tokens), len(beam))
            order = np.lexsort((-scores.ravel(), ending))  # stable: of equals the lower place
            beam = [first + int(index) for index in order[: self.beam]]
            for place in beam:
                paths[place] = [*paths[pool_parents[place]], pool_tokens[place]]

        best = np.argsort(-np.array(pool_scores, dtype=np.float32), kind="stable")[:budget]
        kept = sorted(int(place) for place in best)
        node = {place: index for index, place in enumerate(kept, 1)}
        tree = DraftTree.of(
            [int(context[-1]), *(pool_tokens[place] for place in kept)],
            [-1, *(node.get(pool_parents[place], 0) for place in kept)],
            [0.0, *(pool_scores[place] for place in kept)],
            [1.0, *(pool_probabilities[place] for place in kept)],
            [np.nan, *(pool_ngram[place] for place in kept)],
        )
        candidates = Candidates(
            np.array(pool_tokens, dtype=np.int64),
            np.array(pool_parents, dtype=np.int32),
            np.array(pool_scores, dtype=np.float32),
            np.array([node.get(place, -1) for place in range(len(pool_tokens))], dtype=np.int32),
        )
        return tree, candidates
