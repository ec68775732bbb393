"""Damaged, foreign and hostile n-gram files: refused with the reason, or harmless; no crash."""

from __future__ import annotations

import os
import struct

import numpy as np
import pytest
from golden_dart import DART

from dart_core import ngram_convert, ngram_twin
from dart_core.errors import ArenaError
from dart_core.ngram import (
    NgramModel,
    build_ngram,
    canonical_sha256,
    import_trie,
    merge_ngrams,
    reduce_ngram,
)
from dart_core.pruner import TreePruner


@pytest.fixture
def small(tmp_path):
    rng = np.random.default_rng(5)
    build_ngram([rng.integers(0, 12, size=80)], 4, 12, tmp_path / "small.ngram")
    return tmp_path / "small.ngram"


def refusal(action) -> str:
    """The message of the ArenaError that ``action`` ends in; "" if it succeeds."""
    try:
        action()
    except ArenaError as error:
        return str(error)
    return ""


def use(path, *, write: bool = True) -> None:
    """Everything one can do with a file. Whatever refuses it must name it."""
    if message := refusal(lambda: NgramModel.open(path)):
        assert str(path) in message
        return
    model = NgramModel.open(path)
    for context in ([1], [1, 2], [3, 4, 5], [11, 0, 1, 2]):
        probabilities, matched = model.query(context, range(14))
        assert ((matched >= 0) & (matched < model.order)).all()
        assert (probabilities[matched == 0] == 0).all()
    tokens = np.arange(24).reshape(4, 6) % 13
    tree, _ = TreePruner(model, levels=4).search(
        tokens, np.full((4, 6), 1 / 6, dtype=np.float32), [1, 2, 3], 3, 12
    )
    assert len(tree) == 13
    message = refusal(lambda: canonical_sha256(path))
    assert not message or str(path) in message
    if write:
        output = path.with_name("out.ngram")
        for message in (
            refusal(lambda: merge_ngrams([path, path], output)),
            refusal(lambda: reduce_ngram(path, 2, output)),
        ):
            assert not message or str(path) in message or str(output) in message


def reseal(content: bytearray) -> bytes:
    """Make the header's checksum fit again, as an attacker would."""
    content[248:256] = ngram_twin._checksum(bytes(content[:248]))
    return bytes(content)


def test_truncated_anywhere(small):
    whole = small.read_bytes()
    for size in range(len(whole)):
        small.write_bytes(whole[:size])
        for backend in ("native", "twin"):
            with pytest.raises(ArenaError, match=r"it has \d+ bytes"):
                NgramModel.open(small, backend=backend)


def test_longer_than_it_says(small):
    small.write_bytes(small.read_bytes() + b"\0")
    with pytest.raises(ArenaError, match="its header says"):
        NgramModel.open(small)


def test_every_bit_of_the_header_counts(small):
    whole = small.read_bytes()
    for bit in range(256 * 8):
        content = bytearray(whole)
        content[bit // 8] ^= 1 << bit % 8
        small.write_bytes(content)
        with pytest.raises(ArenaError, match=r"header is damaged|does not start with"):
            NgramModel.open(small)


@pytest.mark.parametrize("resealed", [False, True])
def test_random_damage(resealed, small):
    whole = small.read_bytes()
    rng = np.random.default_rng(6)
    for draw in range(1500):
        content = bytearray(whole)
        for at in rng.integers(0, len(content), size=rng.integers(1, 9)):
            content[at] = rng.integers(256)
        small.write_bytes(reseal(content) if resealed else content)
        use(small, write=draw % 20 == 0)


def test_damage_to_the_structure_is_found_by_walking(small):
    """Any change to a child range or to the order of tokens: nothing is silently left out."""
    nodes = ngram_twin.read(small)
    entries = [sum(len(path) == depth for path in nodes.counts) for depth in range(1, 5)]
    levels, _ = ngram_twin._layout(4, 12, entries)
    whole = small.read_bytes()
    for depth, name in ((1, "begin"), (2, "begin"), (3, "begin"), (2, "token"), (4, "token")):
        level = levels[depth - 1]
        for row in (1, level["rows"] // 2):
            content = bytearray(whole)
            struct.pack_into("<I", content, level[name] + 4 * row, 0xFFFF_FFF0)
            small.write_bytes(content)
            with pytest.raises(ArenaError, match="is damaged"):
                canonical_sha256(small)
            use(small)


def test_every_range_spans_everything(small):
    """Ranges that overlap would make a naive walk visit n to the power of the order entries."""
    streams = np.random.default_rng(9).integers(0, 500, size=(40, 500))
    build_ngram(streams, 5, 500, small)
    with NgramModel.open(small) as model:
        entries = model.entries
    levels, _ = ngram_twin._layout(5, 500, entries)
    content = bytearray(small.read_bytes())
    for depth in range(1, 5):
        rows = levels[depth - 1]["rows"]
        begin = np.zeros(rows + 1, dtype="<u4")
        begin[1::2] = entries[depth]
        begin[-1] = entries[depth]
        offset = levels[depth - 1]["begin"]
        content[offset : offset + begin.nbytes] = begin.tobytes()
    small.write_bytes(content)
    with pytest.raises(ArenaError, match="is damaged"):
        canonical_sha256(small)
    use(small)


@pytest.mark.parametrize(
    ("offset", "layout", "value", "reason"),
    [
        (8, "<I", 2, "version 2"),
        (12, "<I", 1, "order is 1"),
        (12, "<I", 9, "order is 9"),
        (16, "<Q", 0, "vocabulary size is 0"),
        (16, "<Q", 2**63, "vocabulary size"),
        (40, "<Q", 2**60, "level 1 claims"),
        (48, "<Q", 2**32, "level 2 claims"),
        (48, "<Q", 2**32 - 1, "truncated"),
        (32, "<Q", 1, "its header says"),
    ],
)
def test_resealed_headers_that_lie(offset, layout, value, reason, small):
    content = bytearray(small.read_bytes())
    struct.pack_into(layout, content, offset, value)
    small.write_bytes(reseal(content))
    with pytest.raises(ArenaError, match=reason):
        NgramModel.open(small)


@pytest.mark.parametrize("content", [b"", b"x" * 5, b"PK\3\4" * 100, bytes(4096)])
def test_foreign_files(content, tmp_path):
    path = tmp_path / "foreign.ngram"
    path.write_bytes(content)
    for backend in ("native", "twin"):
        with pytest.raises(ArenaError, match="not a usable n-gram file"):
            NgramModel.open(path, backend=backend)
    with pytest.raises(ArenaError, match=r"not a usable \.trie file"):
        import_trie(path, tmp_path / "out.ngram")
    with pytest.raises(ArenaError, match="ngram import"):
        NgramModel.open(DART / "trie" / "a_order3.trie")


def test_missing_files_and_folders(tmp_path):
    for backend in ("native", "twin"):
        with pytest.raises(FileNotFoundError, match=r"no\.ngram"):
            NgramModel.open(tmp_path / "no.ngram", backend=backend)
        with pytest.raises(OSError, match="directory"):
            NgramModel.open(tmp_path, backend=backend)
    with pytest.raises(FileNotFoundError):
        import_trie(tmp_path / "no.trie", tmp_path / "out.ngram")


def test_counts_that_add_up_beyond_their_bits(small):
    content = bytearray(small.read_bytes())
    struct.pack_into("<q", content, 24, 2**62)  # the root's total
    small.write_bytes(reseal(content))
    output = small.with_name("sum.ngram")
    merge_ngrams([small], output)
    with pytest.raises(ArenaError, match=r"sum\.ngram cannot be written: .* more than 64 bits"):
        merge_ngrams([small, small], output)


@pytest.mark.timeout(60)
def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "x.ngram")
    with pytest.raises(ArenaError, match=r"x\.ngram is a pipe"):
        NgramModel.open(tmp_path / "x.ngram", backend="native")
    os.mkfifo(tmp_path / "x.trie")
    with pytest.raises(ArenaError, match=r"x\.trie is a pipe"):
        import_trie(tmp_path / "x.trie", tmp_path / "y.ngram")


def test_a_beam_takes_the_memory_that_its_candidates_need():
    """Not that which its number names: 4096 by 2**20 would be gigabytes."""
    tokens = np.arange(2, dtype=np.int64).reshape(2, 1)
    options = {"levels": 2, "beam": 4096, "backend": "native"}
    tree, _ = TreePruner(None, **options).search(tokens, np.ones((2, 1), np.float32), [1], 1, 4)
    assert len(tree) == 3
    wide = np.zeros((2, 2**20), dtype=np.int64)
    with pytest.raises(ArenaError, match="a beam of 4096 ask for more than 4194304 scores"):
        TreePruner(None, **options).search(wide, wide.astype(np.float32), [1], 1, 4)
    with pytest.raises(ArenaError, match="a beam from 1 to 4096"):
        TreePruner(None, **{**options, "beam": 2**31 - 1})


# Published .trie files: (token, parent, count, [(token, child), ...]) a node


def write_trie(path, order, nodes, *, claimed=None) -> None:
    content = struct.pack("<QQ", order, len(nodes) if claimed is None else claimed)
    for token, parent, count, children in nodes:
        content += struct.pack("<iQiQ", token, parent, count, len(children))
        content += b"".join(struct.pack("<iQ", *child) for child in children)
    path.write_bytes(content)


GOOD = [(0, 0, 2, [(5, 1)]), (5, 0, 2, [(6, 2)]), (6, 1, 1, [])]


def test_a_good_trie_made_by_hand(tmp_path):
    write_trie(tmp_path / "x.trie", 2, GOOD)
    import_trie(tmp_path / "x.trie", tmp_path / "x.ngram")
    nodes = ngram_twin.read(tmp_path / "x.ngram")
    assert nodes.counts == {(): 2, (5,): 2, (5, 6): 1}
    assert nodes.vocab_size == 7


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ([*GOOD[:2], (-1, 1, 1, [])], "token -1"),
        ([*GOOD[:2], (2**30, 1, 1, [])], "outside the vocabulary"),
        ([GOOD[0], (5, 1, 2, [(6, 2)]), GOOD[2]], "before its parent 1"),
        ([*GOOD[:2], (6, 2**40, 1, [])], "before its parent"),
        ([*GOOD[:2], (6, 1, 1, [(7, 3)]), (7, 2, 1, [])], "deeper than the order 2"),
        ([*GOOD[:2], (7, 1, 1, [])], "child lists contradict"),
        ([GOOD[0], (5, 0, 2, []), GOOD[2]], "child lists contradict"),
        ([(0, 0, 2, [(5, 1), (5, 2)]), (5, 0, 2, []), (5, 0, 1, [])], "there twice"),
    ],
)
def test_tries_that_contradict_themselves(nodes, reason, tmp_path):
    write_trie(tmp_path / "x.trie", 2, nodes)
    with pytest.raises(ArenaError, match=reason):
        import_trie(tmp_path / "x.trie", tmp_path / "x.ngram")
    assert [path.name for path in tmp_path.iterdir()] == ["x.trie"]


@pytest.mark.parametrize(("order", "claimed"), [(0, 3), (9, 3), (2**63, 3), (2, 0), (2, 2**63)])
def test_trie_headers_that_lie(order, claimed, tmp_path):
    write_trie(tmp_path / "x.trie", order, GOOD, claimed=claimed)
    with pytest.raises(ArenaError, match=r"order reads|claims"):
        import_trie(tmp_path / "x.trie", tmp_path / "x.ngram")


def test_trie_truncated_anywhere(tmp_path):
    whole = (DART / "trie" / "d_minimal_order4.trie").read_bytes()
    path, output = tmp_path / "x.trie", tmp_path / "x.ngram"
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(ArenaError, match="truncated"):
            import_trie(path, output)
    path.write_bytes(whole)
    import_trie(path, output)


@pytest.mark.parametrize("backend", ["native", "twin"])
def test_a_trie_that_goes_on_behind_its_end(backend, tmp_path, monkeypatch):
    """The published loader ignores what follows; here it is said besides."""
    monkeypatch.setattr(ngram_convert, "choose_backend", lambda _: backend)
    whole, said = (DART / "trie" / "d_minimal_order4.trie").read_bytes(), []
    for name, content in (("x", whole), ("y", whole + b"more")):
        (tmp_path / f"{name}.trie").write_bytes(content)
        import_trie(tmp_path / f"{name}.trie", tmp_path / f"{name}.ngram", note=said.append)
    assert (tmp_path / "y.ngram").read_bytes() == (tmp_path / "x.ngram").read_bytes()
    told = [line for line in said if "behind its last node" in line]
    assert told == ["y.trie: 4 bytes behind its last node are left out, as published"]


def test_trie_with_random_damage(tmp_path):
    whole = (DART / "trie" / "h_reduce_quirk_order3.trie").read_bytes()
    path, output = tmp_path / "x.trie", tmp_path / "x.ngram"
    rng = np.random.default_rng(10)
    imported = 0
    for _ in range(1500):
        content = bytearray(whole)
        for at in rng.integers(0, len(content), size=rng.integers(1, 4)):
            content[at] = rng.integers(256)
        path.write_bytes(content)
        message = refusal(lambda: import_trie(path, output))
        assert not message or str(path) in message
        if not message:  # only counts were hit, which nothing can tell
            imported += 1
            assert canonical_sha256(output) == canonical_sha256(path)
    assert 0 < imported < 1500
