"""How likely a draft node is accepted, by its score: learnt from the text itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dart_core.tree import DraftTree


class Acceptance:
    """The chance of every node of a draft tree to be accepted, by score and depth.

    Scores are cumulative log-probabilities, or nearly: before anything is known a node of score s
    is accepted with probability exp(s). What is learnt is by how much that is off, for each band of
    scores at each depth: accepted nodes ÷ expected ones, recent steps counting most. Where a band
    has seen little, all bands of its depth speak for it. Nodes without a score, which prompt lookup
    copied, are counted apart: how often one is right where its parent was.

    The text that follows a draft shows which of its nodes were right, verified or not: so what is
    learnt does not depend on the sizes chosen.
    """

    BAND, BANDS = 0.5, 14  # of scores; the last band holds all lower ones
    DEPTHS = 3  # told apart; the last holds all deeper ones
    # Expected nodes after which what was seen counts as much as what was believed: with scores,
    # and copied.
    BELIEF, COPIED_BELIEF = 10.0, 3.0
    COPIED = np.array([0.4, 0.7, 0.8])  # by depth: right where the parent was; seen on our prompts
    MEMORY = 0.97  # of what was seen, a tree

    def __init__(self) -> None:
        self._accepted = np.zeros((self.DEPTHS, self.BANDS + 1))  # the last column: copied nodes
        self._expected = np.zeros_like(self._accepted)
        self._open: list[tuple[DraftTree, _Cells, list[int]]] = []  # trees, and their paths so far

    def chances(self, tree: DraftTree) -> np.ndarray:
        """float64 [N], of every node together with its ancestors; the root's is 1."""
        return self._chances(tree, self._cells(tree))

    def _chances(self, tree: DraftTree, cells: _Cells) -> np.ndarray:
        chances = np.minimum(cells.believed * self._ratios()[cells.depth, cells.band], 1.0)
        chances[0] = 1.0
        for node in cells.copied:  # parents come first
            chances[node] *= chances[tree.parents[node]]
        return chances

    def begin_like(self, other: Acceptance) -> None:
        """Begin with half of what another text has taught: this one may be otherwise."""
        self._accepted, self._expected = other._accepted / 2, other._expected / 2

    def drafted(self, tree: DraftTree) -> np.ndarray:
        """A tree was drafted: its chances. ``committed`` will tell what of it was right."""
        cells = self._cells(tree)
        self._open.append((tree, cells, [0]))
        return self._chances(tree, cells)

    def committed(self, tokens: Sequence[int]) -> int:
        """The text went on with ``tokens``. Returns how many drafts were right, at best, of the
        trees of which all is known now.
        """
        still_open, right = [], 0
        for tree, cells, path in self._open:
            if _follow(tree, path, tokens):
                still_open.append((tree, cells, path))
            else:
                self._learn(tree, cells, path)
                right = max(right, len(path) - 1)
        self._open = still_open
        return right

    def _ratios(self) -> np.ndarray:
        """Right nodes ÷ expected ones, [depth, band]."""
        scored = slice(0, self.BANDS)
        depths = (self._accepted[:, scored].sum(1) + self.BELIEF) / (
            self._expected[:, scored].sum(1) + self.BELIEF
        )
        believed = np.repeat(depths[:, None], self.BANDS + 1, axis=1)
        weight = np.full(self.BANDS + 1, self.BELIEF)
        believed[:, self.BANDS], weight[self.BANDS] = 1.0, self.COPIED_BELIEF
        return (self._accepted + weight * believed) / (self._expected + weight)

    def _learn(self, tree: DraftTree, cells: _Cells, path: list[int]) -> None:
        accepted = np.zeros(len(tree))
        accepted[path] = 1.0
        counted = np.ones(len(tree))
        counted[0] = 0.0
        counted[cells.copied] = accepted[tree.parents[cells.copied]]
        for seen, values in ((self._accepted, accepted), (self._expected, cells.believed)):
            seen *= self.MEMORY
            np.add.at(seen, (cells.depth, cells.band), values * counted)

    def _cells(self, tree: DraftTree) -> _Cells:
        scores = tree.scores.astype(np.float64)
        copied = np.flatnonzero(np.isnan(scores))
        scores[copied] = 0.0
        band = np.minimum(np.maximum(-scores / self.BAND, 0), self.BANDS - 1).astype(np.int64)
        believed = np.exp(np.minimum(scores, 0.0))
        depth = np.minimum(np.maximum(tree.depths() - 1, 0), self.DEPTHS - 1)
        band[copied], believed[copied] = self.BANDS, self.COPIED[depth[copied]]
        return _Cells(depth, band, believed, copied)


@dataclass(frozen=True, slots=True)
class _Cells:
    """Where a tree's nodes are counted: by depth and band; the chance each has by its score alone;
    and which nodes are copied.
    """

    depth: np.ndarray
    band: np.ndarray
    believed: np.ndarray
    copied: np.ndarray


def _follow(tree: DraftTree, path: list[int], tokens: Sequence[int]) -> bool:
    """Lengthen ``path`` by the nodes that ``tokens`` lead to; whether it might go on further."""
    for token in tokens:
        below = np.flatnonzero((tree.parents == path[-1]) & (tree.tokens == token))
        if len(below) == 0:
            return False
        path.append(int(below[0]))
    return True
