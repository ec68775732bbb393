"""The draft tree: two integer arrays, everything else derived here and nowhere else.

Node 0 is the root, the last committed token (the newest token of the sequence, whose key and value
the target has not computed yet). A drafter and the C++ pruner hand over ``tokens`` and ``parents``;
depths, positions, the ancestor mask and the accept walk follow from them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """Every candidate the search scored for one step, the pruned-away ones included; made only on
    request.

    ``tokens`` int64 [M], ``parents`` int32 [M] (index into these arrays, -1 = child of the root),
    ``scores`` float32 [M] (cumulative), ``node`` int32 [M] (index of the tree node the candidate
    became, -1 = pruned away).
    """

    tokens: np.ndarray
    parents: np.ndarray
    scores: np.ndarray
    node: np.ndarray

    def of_tree(self, kept: np.ndarray, size: int) -> Candidates:
        """The same after a tree of ``size`` nodes was cut to those ``kept``."""
        place = np.full(size + 1, -1, dtype=np.int32)  # the last entry: -1, pruned away
        place[kept] = np.arange(len(kept))
        return replace(self, node=place[self.node])


@dataclass(frozen=True, slots=True, eq=False)
class DraftTree:
    """A draft tree of N nodes, the root included.

    tokens: int64 [N], target vocabulary ids; ``tokens[0]`` is the last committed token. parents:
    int32 [N], ``parents[0] == -1`` and ``parents[i] < i``: parents come before children. scores:
    float32 [N], the drafter's cumulative score of the node (0 for the root), the order it was kept
    by. probabilities: float32 [N], the drafter's probability of the node's token at its place (1
    for the root). ngram: float32 [N], n-gram probability of the token after its context, NaN where
    the n-gram was not asked.
    """

    tokens: np.ndarray
    parents: np.ndarray
    scores: np.ndarray
    probabilities: np.ndarray
    ngram: np.ndarray

    @classmethod
    def root_only(cls, token: int) -> DraftTree:
        """The tree of plain autoregressive decoding: the root and no drafts."""
        return cls.of([token], [-1])

    @classmethod
    def of(
        cls,
        tokens: ArrayLike,
        parents: ArrayLike,
        scores: ArrayLike | None = None,
        probabilities: ArrayLike | None = None,
        ngram: ArrayLike | None = None,
    ) -> DraftTree:
        """Build a tree from array-likes, with neutral values for what is not given. Raises
        ValueError if malformed.
        """
        tokens = np.ascontiguousarray(tokens, dtype=np.int64)
        parents = np.ascontiguousarray(parents, dtype=np.int32)
        count = len(tokens)
        if count == 0 or len(parents) != count or parents[0] != -1:
            raise ValueError(
                f"a draft tree needs a root with parent -1 and one parent per token; "
                f"got {count} tokens and parents {parents[:4].tolist()}..."
            )
        if count > 1 and not ((parents[1:] >= 0) & (parents[1:] < np.arange(1, count))).all():
            raise ValueError(
                "a draft tree lists parents before children; a node here names a later or no parent"
            )

        def filled(values: ArrayLike | None, neutral: float) -> np.ndarray:
            if values is None:
                values = np.full(count, neutral, dtype=np.float32)
            return np.ascontiguousarray(values, dtype=np.float32)

        return cls(
            tokens, parents, filled(scores, 0.0), filled(probabilities, 1.0), filled(ngram, np.nan)
        )

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def drafted(self) -> int:
        """Number of draft nodes: the root is not counted."""
        return len(self.tokens) - 1

    def cut_to(self, kept: np.ndarray) -> DraftTree:
        """The tree of these nodes alone: indices, ascending, the root and every node's parent
        among them.
        """
        place = np.full(len(self) + 1, -1, dtype=np.int32)  # the last entry: the root's parent
        place[kept] = np.arange(len(kept))
        return DraftTree.of(
            self.tokens[kept],
            place[self.parents[kept]],
            self.scores[kept],
            self.probabilities[kept],
            self.ngram[kept],
        )

    def depths(self) -> np.ndarray:
        """Depth of every node, int32 [N]; the root has depth 0. A node's position is committed
        length - 1 + depth.
        """
        depths = [0]
        for parent in self.parents[1:].tolist():
            depths.append(depths[parent] + 1)
        return np.array(depths, dtype=np.int32)

    def ancestor_mask(self) -> np.ndarray:
        """bool [N, N]: entry (i, j) is true where j is i or an ancestor of i, so row i may attend
        to column j.
        """
        # A row is one long integer, bit j for column j: the quickest for small trees and large.
        count = len(self.tokens)
        rows = [1]
        for node, parent in enumerate(self.parents[1:].tolist(), 1):
            rows.append(rows[parent] | 1 << node)
        width = (count + 7) // 8
        packed = b"".join([row.to_bytes(width, "little") for row in rows])
        bits = np.frombuffer(packed, dtype=np.uint8).reshape(count, width)
        return np.unpackbits(bits, axis=1, count=count, bitorder="little").view(bool)

    def path(self, node: int) -> list[int]:
        """Node indices from the root to ``node``, both included."""
        nodes = []
        while node >= 0:
            nodes.append(int(node))
            node = int(self.parents[node])
        return nodes[::-1]

    def accept(self, draw: Callable[[int], int]) -> tuple[list[int], int]:
        """Walk the tree along the target's own draws: the one acceptance rule of every drafter.

        ``draw(node)`` is the token the target itself puts after ``node``. While that token is a
        child, the walk goes on from the child; where it is not, it is the bonus token. Every
        emitted token is thus the target's own draw, greedy or sampled, whatever the tree.

        Returns the accepted nodes (root first, so accepted drafts = len - 1) and the bonus token.
        """
        children: dict[tuple[int, int], int] = {}
        for node in range(len(self.tokens) - 1, 0, -1):  # of equal siblings the first one wins
            children[int(self.parents[node]), int(self.tokens[node])] = node
        path = [0]
        while True:
            token = int(draw(path[-1]))
            child = children.get((path[-1], token))
            if child is None:
                return path, token
            path.append(child)
