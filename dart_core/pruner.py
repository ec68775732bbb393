"""The tree pruner: from the draft head's candidates per level to the draft tree.

A beam search over the levels scores candidates by head and n-gram; the best ``budget`` of all that
were scored are the tree. The hot part is C++ (cpp/tree_pruner.h states the rule exactly).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from dart_core._native import Backend, choose_backend, native
from dart_core.errors import ArenaError
from dart_core.ngram import NgramModel
from dart_core.pruner_twin import TwinPruner
from dart_core.tree import Candidates, DraftTree

MAX_WEIGHT = 1e6  # as cpp/tree_pruner.cpp has it: no score becomes infinite


class TreePruner:
    """A search with fixed settings, used call after call; the native one keeps its memory.

    levels: the most levels a call may bring. beam: nodes expanded per level. ngram_weight: 0 (or
    ``ngram`` None) leaves the n-gram out. eos_token_ids: candidates that end the sequence are
    expanded only where the others leave room in the beam. level_weights, logit_weights: one number
    per level; the defaults, (l + 1) ** -0.7 and 0.9 ** l, are the published ones.
    backend: None takes that of ``ngram``, or the native one where it is there.
    """

    def __init__(
        self,
        ngram: NgramModel | None,
        *,
        levels: int,
        beam: int = 20,
        ngram_weight: float = 0.5,
        eos_token_ids: Iterable[int] = (),
        level_weights: Sequence[float] | None = None,
        logit_weights: Sequence[float] | None = None,
        backend: Backend | None = None,
    ) -> None:
        if levels < 1 or beam < 1:
            raise ArenaError(f"levels {levels} and beam {beam} must be at least 1")
        if not 0 <= ngram_weight <= MAX_WEIGHT:
            raise ArenaError(f"n-gram weight {ngram_weight} must be a number from 0 to a million")
        if level_weights is None:
            level_weights = [(level + 1) ** -0.7 for level in range(levels)]
        if logit_weights is None:
            logit_weights = [0.9**level for level in range(levels)]
        if len(level_weights) != levels or len(logit_weights) != levels:
            raise ArenaError(
                f"level_weights and logit_weights need {levels} numbers, one per level; got "
                f"{len(level_weights)} and {len(logit_weights)}"
            )
        if not all(0 <= weight <= MAX_WEIGHT for weight in (*level_weights, *logit_weights)):
            raise ArenaError("level_weights and logit_weights must be numbers from 0 to a million")
        self.backend = backend or (ngram.backend if ngram is not None else choose_backend(None))
        if ngram is not None and ngram.backend != self.backend:
            raise ArenaError(f"the n-gram was opened as {ngram.backend}, not {self.backend}")
        self.levels = levels
        self._context = max(1, ngram.order - 1) if ngram is not None else 1
        implementation = native().TreePruner if self.backend == "native" else TwinPruner
        self._search: Callable[..., Any] = implementation(
            ngram.trie if ngram is not None else None,
            levels=levels,
            beam=beam,
            ngram_weight=ngram_weight,
            level_weights=[float(weight) for weight in level_weights],
            logit_weights=[float(weight) for weight in logit_weights],
            eos_tokens=[int(token) for token in eos_token_ids],
        ).search

    def search(
        self,
        tokens: np.ndarray,
        probabilities: np.ndarray,
        context: Sequence[int],
        root: int,
        budget: int,
        *,
        counts: Sequence[int] | None = None,
        candidates: bool = False,
    ) -> tuple[DraftTree, Candidates | None]:
        """The draft tree below ``root``, at most ``budget`` nodes and the root.

        tokens: integers [levels, k], target ids; probabilities: float32 [levels, k]; both in rank
        order, best first. counts: how many of each row count, where rows are ragged. context: the
        committed tokens, ``root`` last; only its end is looked at. candidates: also return all that
        was scored. The tree's nodes are ordered by depth; every node's parent is in the tree.
        """
        tokens = np.ascontiguousarray(tokens, dtype=np.int64)
        probabilities = np.ascontiguousarray(probabilities, dtype=np.float32)
        if tokens.ndim != 2 or tokens.shape != probabilities.shape or len(tokens) > self.levels:
            raise ArenaError(
                f"tokens {tokens.shape} and probabilities {probabilities.shape} must both be "
                f"[levels, k] with at most {self.levels} levels"
            )
        levels, width = tokens.shape
        if counts is None:
            kept = np.full(levels, width, dtype=np.int32)
        else:
            kept = np.asarray(counts, dtype=np.int32)
            if kept.shape != (levels,) or (kept < 0).any() or (kept > width).any():
                raise ArenaError(f"counts must be {levels} numbers from 0 to {width}: {kept}")
        if budget < 0:
            raise ArenaError(f"budget {budget} is negative")
        tail = np.asarray(context[-self._context :], dtype=np.int64)
        if len(tail) == 0 or tail[-1] != root:
            raise ArenaError(f"the context must end with the root {root}, it ends {tail.tolist()}")
        if self.backend == "twin":
            tree, pool = self._search(tokens, probabilities, kept, tail, budget)
            return tree, pool if candidates else None
        return self._native(tokens, probabilities, kept, tail, budget, candidates)

    def _native(
        self,
        tokens: np.ndarray,
        probabilities: np.ndarray,
        counts: np.ndarray,
        tail: np.ndarray,
        budget: int,
        candidates: bool,
    ) -> tuple[DraftTree, Candidates | None]:
        size = budget + 1
        arrays: tuple[np.ndarray, ...] = (
            np.empty(size, dtype=np.int64),
            np.empty(size, dtype=np.int32),
            np.empty(size, dtype=np.float32),
            np.empty(size, dtype=np.float32),
            np.empty(size, dtype=np.float32),
        )
        result = self._search(tokens, probabilities, counts, tail, budget, *arrays, candidates)
        nodes, pool = (result[0], Candidates(*result[1:])) if candidates else (result, None)
        if nodes < size:
            arrays = tuple(array[:nodes] for array in arrays)
        return DraftTree(*arrays), pool
