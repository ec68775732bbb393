"""The draft tree: what is derived from tokens and parents, against walking every node's path."""

from __future__ import annotations

import numpy as np
import pytest

from dart_core.tree import Candidates, DraftTree


def random_tree(nodes: int, seed: int) -> DraftTree:
    rng = np.random.default_rng(seed)
    parents = [-1, *(int(rng.integers(0, node)) for node in range(1, nodes + 1))]
    return DraftTree.of(np.arange(nodes + 1), parents)


@pytest.mark.parametrize("nodes", [0, 1, 6, 7, 8, 60, 61, 300])
def test_depths_and_mask_are_those_of_the_paths(nodes):
    chain = DraftTree.of(np.arange(nodes + 1), np.arange(-1, nodes))
    star = DraftTree.of(np.arange(nodes + 1), [-1, *[0] * nodes])
    for tree in (chain, star, random_tree(nodes, 1), random_tree(nodes, 2)):
        depths, mask = tree.depths(), tree.ancestor_mask()
        assert (depths.dtype, mask.dtype) == (np.int32, bool)
        assert mask.shape == (nodes + 1, nodes + 1)
        for node in range(nodes + 1):
            path = tree.path(node)
            assert depths[node] == len(path) - 1
            assert np.flatnonzero(mask[node]).tolist() == path


@pytest.mark.parametrize(
    ("count", "parents"),
    [(0, []), (1, [0]), (2, [-1, 1]), (2, [-1, -1]), (4, [-1, 0, 3, 0]), (4, [-1, 0, 0])],
)
def test_a_malformed_tree_is_refused(count, parents):
    with pytest.raises(ValueError, match="draft tree"):
        DraftTree.of(range(count), parents)


def test_cutting_keeps_every_column_of_the_nodes_kept():
    tree = DraftTree.of(
        [9, 1, 2, 3], [-1, 0, 0, 2], [0, -1, -2, -3], [1, 0.5, 0.4, 0.3], [0, 1, 2, 3]
    )
    cut = tree.cut_to(np.array([0, 2, 3]))
    assert cut.tokens.tolist() == [9, 2, 3]
    assert cut.parents.tolist() == [-1, 0, 1]
    assert cut.ngram.tolist() == [0, 2, 3]
    pool = Candidates(
        np.array([1, 2, 3, 7]), np.array([-1, -1, 1, 0]), np.zeros(4), np.array([1, 2, 3, -1])
    )
    assert pool.of_tree(np.array([0, 2, 3]), 4).node.tolist() == [-1, 1, 2, -1]


def test_plain_decoding_has_a_root_and_no_drafts():
    tree = DraftTree.root_only(7)
    assert (len(tree), tree.drafted) == (1, 0)
    assert tree.tokens.tolist() == [7] and tree.parents.tolist() == [-1]
    assert tree.scores.tolist() == [0] and tree.probabilities.tolist() == [1]
    assert np.isnan(tree.ngram).all()


def test_the_walk_takes_every_node_that_is_drawn_and_the_first_of_equal_siblings():
    chain = DraftTree.of([5, 6, 7, 8], [-1, 0, 1, 2])
    assert chain.accept([6, 7, 8, 9].__getitem__) == ([0, 1, 2, 3], 9)
    assert chain.accept([6, 9, 8, 9].__getitem__) == ([0, 1], 9)
    twins = DraftTree.of([5, 6, 6, 7], [-1, 0, 0, 1])
    assert twins.accept({0: 6, 1: 7, 3: 8}.__getitem__) == ([0, 1, 3], 8)
