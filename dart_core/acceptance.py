"""How likely a draft node is accepted, by its score: learnt from the text itself."""

from __future__ import annotations

from collections.abc import Sequence

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
        self._open: list[tuple[DraftTree, list[int]]] = []  # trees, and their paths so far

    def chances(self, tree: DraftTree) -> np.ndarray:
        """float64 [N], of every node together with its ancestors; the root's is 1."""
        depth, band, believed, copied = self._cells(tree)
        chances = np.minimum(believed * self._ratios()[depth, band], 1.0)
        chances[0] = 1.0
        for node in copied:  # parents come first
            chances[node] *= chances[tree.parents[node]]
        return chances

    def drafted(self, tree: DraftTree) -> None:
        """A tree was drafted; ``committed`` will tell what of it was right."""
        self._open.append((tree, [0]))

    def committed(self, tokens: Sequence[int]) -> int:
        """The text went on with ``tokens``. Returns how many drafts were right, at best, of the
        trees of which all is known now.
        """
        still_open, right = [], 0
        for tree, path in self._open:
            if _follow(tree, path, tokens):
                still_open.append((tree, path))
            else:
                self._learn(tree, path)
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

    def _learn(self, tree: DraftTree, path: list[int]) -> None:
        depth, band, believed, copied = self._cells(tree)
        accepted = np.zeros(len(tree))
        accepted[path] = 1.0
        counted = np.ones(len(tree))
        counted[0] = 0.0
        counted[copied] = accepted[tree.parents[copied]]
        for seen, values in ((self._accepted, accepted), (self._expected, believed)):
            seen *= self.MEMORY
            np.add.at(seen, (depth, band), values * counted)

    def _cells(self, tree: DraftTree) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Of every node: depth and band to be counted in, the chance it has by its score alone;
        and which nodes are copied.
        """
        scores = tree.scores.astype(np.float64)
        copied = np.flatnonzero(np.isnan(scores))
        scores[copied] = 0.0
        band = np.clip(-scores / self.BAND, 0, self.BANDS - 1).astype(np.int64)
        believed = np.exp(np.minimum(scores, 0.0))
        depth = np.clip(tree.depths() - 1, 0, self.DEPTHS - 1)
        band[copied], believed[copied] = self.BANDS, self.COPIED[depth[copied]]
        return depth, band, believed, copied


def _follow(tree: DraftTree, path: list[int], tokens: Sequence[int]) -> bool:
    """Lengthen ``path`` by the nodes that ``tokens`` lead to; whether it might go on further."""
    for token in tokens:
        below = np.flatnonzero((tree.parents == path[-1]) & (tree.tokens == token))
        if len(below) == 0:
            return False
        path.append(int(below[0]))
    return True
