"""Slow Python twin of the native n-gram code: the oracle of its tests, and the fallback without it.

It shares no code with ``cpp/`` but the file format, which cpp/ngram_format.h describes: n-grams are
a dict from token path to count here (the root is the empty path), arrays are numpy memory maps.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dart_core.errors import ArenaError

MAGIC, VERSION = b"DARTNGRM", 1
MIN_ORDER, MAX_ORDER, MAX_VOCAB_SIZE = 2, 8, 1 << 22
HEADER_BYTES, ALIGNMENT = 256, 64
# magic, version, order, vocabulary, root total, file size, entries of 8 levels, fingerprint, spare
_HEADER = struct.Struct("<8sIIQqQ8Q32s112x")


@dataclass(slots=True)
class Nodes:
    """The n-grams of one file. ``counts`` holds every path, the root's ``()`` included."""

    order: int
    vocab_size: int
    counts: dict[tuple[int, ...], int] = field(default_factory=lambda: {(): 0})
    fingerprint: bytes = bytes(32)


def build(streams: Iterable[Sequence[int] | np.ndarray], order: int, vocab_size: int) -> Nodes:
    """Count every n-gram of up to ``order`` tokens in each stream."""
    nodes = Nodes(order, vocab_size)
    for stream in streams:
        tokens = [int(token) for token in stream]
        for position, token in enumerate(tokens):
            if not 0 <= token < vocab_size:
                raise ArenaError(
                    f"token {token} at position {position} is outside the vocabulary of "
                    f"{vocab_size}"
                )
        for start in range(len(tokens)):
            for end in range(start, min(start + order, len(tokens)) + 1):
                path = tuple(tokens[start:end])
                nodes.counts[path] = nodes.counts.get(path, 0) + 1
    return nodes


def merge(inputs: Sequence[Nodes]) -> Nodes:
    """Add the counts of equal n-grams. Orders and known tokenizers must agree."""
    first = inputs[0]
    merged = Nodes(first.order, max(nodes.vocab_size for nodes in inputs))
    for nodes in inputs:
        if nodes.order != first.order:
            raise ArenaError(f"only files of one order can be merged: {first.order}, {nodes.order}")
        if any(nodes.fingerprint):
            if any(merged.fingerprint) and merged.fingerprint != nodes.fingerprint:
                raise ArenaError("the files were made with different tokenizers")
            merged.fingerprint = nodes.fingerprint
        for path, count in nodes.counts.items():
            merged.counts[path] = merged.counts.get(path, 0) + count
    return merged


def reduce(nodes: Nodes, threshold: int) -> Nodes:
    """Keep n-grams counted ``threshold`` times whose prefixes are all kept; take the topmost
    dropped ones off everything above them. The root starts at 0.
    """
    reduced = Nodes(nodes.order, nodes.vocab_size, fingerprint=nodes.fingerprint)
    kept = reduced.counts
    for path in sorted(nodes.counts):
        if not path or path[:-1] not in kept:
            continue
        count = nodes.counts[path]
        if count >= threshold:
            kept[path] = count
        else:
            for length in range(len(path)):
                kept[path[:length]] -= count
    return reduced


def read_trie(path: str | Path, vocab_size: int = 0) -> Nodes:
    """The n-grams of a published ``.trie``; ``vocab_size`` 0 takes the largest token plus one."""
    data = Path(path).read_bytes()
    try:
        order, node_count = struct.unpack_from("<QQ", data)
        nodes, offset = Nodes(order, 0), 16
        paths: list[tuple[int, ...]] = [()]
        if not MIN_ORDER <= order <= MAX_ORDER or not 0 < node_count <= len(data) // 24:
            raise ArenaError(
                f"{path} is not a usable .trie file: order {order}, {node_count} nodes"
            )
        for node in range(node_count):
            token, parent, count, children = struct.unpack_from("<iQiQ", data, offset)
            offset += 24 + 12 * children
            if node > 0:
                paths.append((*paths[parent], token))
            nodes.counts[paths[node]] = count
    except (struct.error, IndexError) as error:
        raise ArenaError(f"{path} is not a usable .trie file: {error} (truncated?)") from None
    tokens = {path[-1] for path in paths[1:]}
    largest = max(tokens, default=0)
    nodes.vocab_size = vocab_size or largest + 1
    if len(nodes.counts) != node_count or max(map(len, paths)) > order:
        raise ArenaError(f"{path} is not a usable .trie file: its nodes contradict each other")
    if min(tokens, default=0) < 0 or largest >= min(nodes.vocab_size, MAX_VOCAB_SIZE):
        raise ArenaError(f"{path} has tokens outside the vocabulary of {nodes.vocab_size}")
    return nodes


def _layout(order: int, vocab_size: int, entries: Sequence[int]) -> tuple[list[dict], int]:
    """Offsets of the sections of each level, and the file's size."""
    levels, offset = [], HEADER_BYTES
    for depth in range(1, order + 1):
        rows = vocab_size if depth == 1 else entries[depth - 1]
        sizes = {"present": rows} if depth == 1 else {"token": 4 * rows}
        sizes["count"] = 4 * rows
        if depth < order:
            sizes["begin"] = 4 * (rows + 1)
        level = {"rows": rows}
        for name, size in sizes.items():
            level[name] = -(-offset // ALIGNMENT) * ALIGNMENT
            offset = level[name] + size
        levels.append(level)
    return levels, offset


def _checksum(data: bytes) -> bytes:
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value.to_bytes(8, "little")


def write(nodes: Nodes, path: str | Path) -> None:
    """Write an ``.ngram`` file; the native writer makes the same bytes."""
    levels: list[list[tuple[int, ...]]] = [[] for _ in range(nodes.order + 1)]
    for key in sorted(nodes.counts):
        levels[len(key)].append(key)
    entries = [len(level) for level in levels[1:]]
    layout, size = _layout(nodes.order, nodes.vocab_size, entries)
    content = bytearray(size)
    header = _HEADER.pack(
        MAGIC,
        VERSION,
        nodes.order,
        nodes.vocab_size,
        nodes.counts[()],
        size,
        *entries,
        *[0] * (MAX_ORDER - nodes.order),
        nodes.fingerprint,
    )
    content[:HEADER_BYTES] = header + _checksum(header)

    def put(depth: int, name: str, values: np.ndarray, dtype: str) -> None:
        data = values.astype(dtype).tobytes()
        offset = layout[depth - 1][name]
        content[offset : offset + len(data)] = data

    for depth in range(1, nodes.order + 1):
        keys = levels[depth]
        tokens = np.array([key[-1] for key in keys], dtype=np.int64)
        counts = np.array([nodes.counts[key] for key in keys], dtype=np.int64)
        if len(counts) and not -(2**31) <= counts.min() <= counts.max() < 2**31:
            raise ArenaError(f"an n-gram's count is beyond 32 bits in level {depth}")
        if depth == 1:
            present = np.zeros(nodes.vocab_size, dtype=np.int64)
            dense = np.zeros(nodes.vocab_size, dtype=np.int64)
            present[tokens], dense[tokens] = 1, counts
            put(depth, "present", present, "u1")
            put(depth, "count", dense, "<i4")
            parents: list[tuple[int, ...]] = [(token,) for token in range(nodes.vocab_size)]
        else:
            put(depth, "token", tokens, "<u4")
            put(depth, "count", counts, "<i4")
            parents = keys
        if depth < nodes.order:
            children: dict[tuple[int, ...], int] = {}
            for key in levels[depth + 1]:
                children[key[:-1]] = children.get(key[:-1], 0) + 1
            sizes = [children.get(parent, 0) for parent in parents]
            put(depth, "begin", np.cumsum([0, *sizes]), "<u4")

    temporary = Path(f"{path}.partial-{os.getpid()}-twin")
    temporary.write_bytes(content)
    temporary.replace(path)


class TwinTrie:
    """An ``.ngram`` file as numpy memory maps, with the lookups of the native ``Trie``."""

    def __init__(self, path: str) -> None:
        with open(path, "rb") as file:
            data = file.read(HEADER_BYTES)
        size = os.path.getsize(path)

        def refuse(reason: str) -> None:
            raise ArenaError(f"{path} is not a usable n-gram file: {reason}")

        if len(data) < HEADER_BYTES:
            refuse(f"it has {len(data)} bytes, fewer than the header's {HEADER_BYTES}")
        (magic, version, order, vocab_size, root, file_size, *entries, fingerprint) = (
            _HEADER.unpack(data[:-8])
        )
        if magic != MAGIC:
            refuse(
                f"it does not start with {MAGIC.decode()}; a published .trie is imported first "
                "(python -m dart_core ngram import)"
            )
        if _checksum(data[:-8]) != data[-8:]:
            refuse("its header is damaged")
        if version != VERSION:
            refuse(f"it has version {version}, this program reads {VERSION}")
        if not MIN_ORDER <= order <= MAX_ORDER or not 0 < vocab_size <= MAX_VOCAB_SIZE:
            refuse(f"its order is {order}, its vocabulary size {vocab_size}")
        layout, expected = _layout(order, vocab_size, entries)
        if not size == file_size == expected:
            refuse(f"it has {size} bytes, its header says {expected}")

        self.path, self.order, self.vocab_size = path, order, vocab_size
        self.root_total, self.fingerprint, self.entries = root, fingerprint, entries[:order]
        types = {"present": "u1", "token": "<u4", "count": "<i4", "begin": "<u4"}
        content = np.memmap(path, dtype="u1", mode="r")
        self._levels: list[dict[str, np.ndarray]] = []
        for level in layout:
            arrays = {}
            for name, dtype in types.items():
                if name in level:
                    rows = level["rows"] + (name == "begin")
                    end = level[name] + rows * np.dtype(dtype).itemsize
                    arrays[name] = content[level[name] : end].view(dtype)
            self._levels.append(arrays)
        for depth, arrays in enumerate(self._levels[:-1], 1):
            if arrays["begin"][0] != 0 or arrays["begin"][-1] != entries[depth]:
                refuse(f"level {depth} does not cover level {depth + 1}")

    def prefetch(self) -> None:
        """Nothing to do: the page cache fills as it is used."""

    def _children(self, path: Sequence[int]) -> tuple[np.ndarray, np.ndarray, np.float32] | None:
        """Tokens and counts of the children of ``path``, and the count of ``path`` itself."""
        row = path[0]
        if not 0 <= row < self.vocab_size:
            return None
        for depth, level in enumerate(self._levels, 1):
            begin, end = int(level["begin"][row]), int(level["begin"][row + 1])
            below = self._levels[depth]
            tokens, counts = below["token"][begin:end], below["count"][begin:end]
            if depth == len(path):
                return tokens, counts, np.float32(level["count"][row])
            at = int(np.searchsorted(tokens, path[depth]))
            if at == len(tokens) or int(tokens[at]) != path[depth]:
                return None
            row = begin + at
        return None

    def query(
        self, context: Sequence[int] | np.ndarray, tokens: Sequence[int] | np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """See ``NgramModel.query``."""
        wanted = np.asarray(tokens, dtype=np.int64)
        probabilities = np.zeros(len(wanted), dtype=np.float32)
        matched = np.zeros(len(wanted), dtype=np.int32)
        context = [int(token) for token in context]
        with np.errstate(divide="ignore", invalid="ignore"):
            for length in range(min(self.order - 1, len(context)), 0, -1):
                found = self._children(context[-length:])
                if found is None or not len(found[0]):
                    continue
                children, counts, total = found
                places = np.searchsorted(children, wanted).clip(max=len(children) - 1)
                hit = (children[places] == wanted) & (matched == 0)
                scale = np.float32(1) / total
                probabilities[hit] = counts[places[hit]].astype(np.float32) * scale
                matched[hit] = length
        return probabilities, matched

    def paths(self) -> Iterator[tuple[tuple[int, ...], int]]:
        """Every n-gram and its count, prefixes first, in ascending order. Checks the structure."""

        def walk(depth: int, row: int, path: tuple[int, ...]) -> Iterator:
            level = self._levels[depth - 1]
            yield path, int(level["count"][row])
            if depth == self.order:
                return
            begin, end = int(level["begin"][row]), int(level["begin"][row + 1])
            tokens = self._levels[depth]["token"][begin:end].astype(np.int64)
            if begin > end or end > self.entries[depth] or (np.diff(tokens) <= 0).any():
                raise ArenaError(f"{self.path} is damaged: a broken child range at level {depth}")
            for offset, token in enumerate(tokens.tolist()):
                yield from walk(depth + 1, begin + offset, (*path, token))

        yield (), self.root_total
        for token in np.flatnonzero(self._levels[0]["present"]).tolist():
            yield from walk(1, token, (token,))


def read(path: str | Path) -> Nodes:
    """All n-grams of an ``.ngram`` file."""
    trie = TwinTrie(str(path))
    return Nodes(trie.order, trie.vocab_size, dict(trie.paths()), trie.fingerprint)
