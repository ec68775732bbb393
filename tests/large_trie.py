"""A made-up text, and the published ``.trie`` of it, at any size: what no recording can be.

By hand, for 57 million nodes, 2.1 GB, in 2.5 minutes of processor time and 4 GB of memory:

    python tests/large_trie.py large.trie --tokens 96000000

The file is laid out as the published library writes it: nodes in the order in which the text first
shows them, so that a parent may lie far before its children. ``build_ngram`` of ``streams`` with
the same arguments gives the ``.ngram`` that importing the file must give, byte for byte.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np

ORDER = 3
VOCAB = 151_936  # as Qwen3
LENGTH = 1000  # of a stream


def streams(tokens: int, *, seed: int = 0, vocab_size: int = VOCAB) -> np.ndarray:
    """int32 [streams, LENGTH], about ``tokens`` in all.

    A token follows the two before it, by a rank that is small most of the time; else it is drawn
    from the whole vocabulary, by Zipf. That gives few frequent and many rare n-grams, as text does.
    """
    rng = np.random.default_rng(seed)
    count = -(-tokens // LENGTH)
    text = np.empty((LENGTH, count), dtype=np.int32)
    before = last = np.zeros(count, dtype=np.uint64)
    for row in text:
        rank = np.floor(1 / (1 - rng.random(count)) ** 1.1).astype(np.uint64)
        follows = np.where(rng.random(count) < 0.5, last, last + (before << np.uint64(20)))
        place = _mix(follows * np.uint64(1_000_003) + np.minimum(rank, np.uint64(1 << 40)))
        place = np.where(rng.random(count) < 0.15, rng.random(count), place)
        row[:] = np.minimum(np.power(vocab_size, place), vocab_size - 1)  # 1/n: Zipf
        before, last = last, row.astype(np.uint64)
    return np.ascontiguousarray(text.T)


def write_trie(path: Path, text: np.ndarray) -> int:
    """Write the trie of ``text`` (as from ``streams``); returns the number of nodes.

    Takes some 40 bytes of memory a token: the n-grams are found in parts, by first token.
    """
    token, parent, count = _nodes(text)
    nodes = len(token)
    order = np.argsort(parent[1:], kind="stable").astype(np.uint32) + 1  # children by parent
    fan = np.bincount(parent[1:], minlength=nodes)
    ends = np.cumsum(fan)
    with open(path, "wb") as file:
        np.array([ORDER, nodes], dtype="<u8").tofile(file)
        for first in range(0, nodes, 1 << 20):
            last = min(nodes, first + (1 << 20))
            own = fan[first:last]
            starts = 6 * np.arange(last - first) + 3 * (np.cumsum(own) - own)  # in words
            words = np.zeros(6 * len(own) + 3 * own.sum(), dtype="<i4")
            words[starts] = token[first:last]
            words[starts + 1] = parent[first:last]
            words[starts + 3] = count[first:last]
            words[starts + 4] = own
            children = order[ends[first] - own[0] : ends[last - 1]]
            rank = np.arange(len(children)) - np.repeat(np.cumsum(own) - own, own)
            places = np.repeat(starts + 6, own) + 3 * rank
            words[places] = token[children]
            words[places + 1] = children
            words.tofile(file)
    return nodes


def _mix(value: np.ndarray) -> np.ndarray:
    """A hash as float64 in [0, 1)."""
    for factor in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):
        value = (value ^ (value >> np.uint64(31))) * np.uint64(factor)
    return ((value ^ (value >> np.uint64(29))) >> np.uint64(11)) / 2**53


def _nodes(text: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Token, parent and count of every node, in the order of their creation, the root first."""
    flat, total = text.ravel(), text.size
    born = np.zeros((total, ORDER), dtype=bool)  # here a node of that depth is seen first
    parts = [part for _, part in _by_first_token(flat)]
    for positions in parts:
        for depth, (seen, _, _) in enumerate(_grams(flat, positions)):
            born[seen, depth] = True
    number = np.cumsum(born.ravel(), dtype=np.uint32)  # of the node born there, if one is
    nodes = int(number[-1]) + 1
    token, parent = np.zeros(nodes, dtype=np.int32), np.zeros(nodes, dtype=np.uint32)
    count = np.zeros(nodes, dtype=np.int32)
    count[0] = total
    for positions in parts:
        for depth, (seen, times, prefix) in enumerate(_grams(flat, positions)):
            own = number[seen * ORDER + depth]
            token[own] = flat[seen + depth]
            count[own] = times
            if depth:
                parent[own] = number[prefix * ORDER + depth - 1]
    return token, parent, count


def _by_first_token(flat: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Positions of some first tokens each, ascending, about four million at a time."""
    times = np.bincount(flat)
    group = np.cumsum(times) // (4 << 20)
    groups = group[flat].astype(np.int16)
    for number in np.unique(group):
        yield int(number), np.flatnonzero(groups == number)


def _grams(
    flat: np.ndarray, positions: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """By depth: where each n-gram that starts at one of ``positions`` is seen first, how often it
    is, and where its prefix is seen first.
    """
    key = np.zeros(len(positions), dtype=np.uint64)
    first = np.zeros(len(positions), dtype=np.int64)
    for depth in range(ORDER):
        inside = positions % LENGTH + depth < LENGTH
        positions, key, first = positions[inside], key[inside], first[inside]
        key = key * np.uint64(VOCAB) + flat[positions + depth].astype(np.uint64)
        _, index, inverse, times = np.unique(
            key, return_index=True, return_inverse=True, return_counts=True
        )
        yield positions[index], times, first[index]
        first = positions[index][inverse]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    made = write_trie(arguments.output, streams(arguments.tokens, seed=arguments.seed))
    print(f"{arguments.output}: {made:,} nodes, {arguments.output.stat().st_size:,} bytes")
