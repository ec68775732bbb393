"""n-gram files: recordings of the published library, brute-force counts, native against twin."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from golden_dart import DART, TRIES, queries, tries

from dart_core import ngram_twin
from dart_core.errors import ArenaError
from dart_core.ngram import (
    NgramModel,
    build_ngram,
    canonical_sha256,
    import_trie,
    inspect_ngram,
    merge_ngrams,
    open_published,
    reduce_ngram,
    tokenizer_fingerprint,
)

BACKENDS = ["native", "twin"]


@pytest.fixture(scope="module")
def golden(tmp_path_factory):
    folder = tmp_path_factory.mktemp("golden")
    for name in TRIES:
        import_trie(DART / "trie" / f"{name}.trie", folder / f"{name}.ngram")
    return folder


def random_streams(rng, *, vocab: int, total: int) -> list[np.ndarray]:
    """Streams of skewed tokens, some of them shorter than any order, some empty."""
    weights = 1 / np.arange(1, vocab + 1)
    lengths = [0, 1, 2, 3, 4, *rng.integers(5, 60, size=total // 30)]
    return [rng.choice(vocab, size=n, p=weights / weights.sum()) for n in lengths]


# The published library's files and answers


@pytest.mark.parametrize("name", TRIES)
def test_published_tries_convert_without_loss(name, golden):
    converted, expected = golden / f"{name}.ngram", tries()[name]
    assert canonical_sha256(converted) == expected["canonical_sha256"]
    assert canonical_sha256(DART / "trie" / f"{name}.trie") == expected["canonical_sha256"]
    facts = inspect_ngram(converted)
    assert facts["nodes"] == expected["node_count"]
    assert facts["root_total"] == expected["root_freq"]
    assert list(facts["ngrams"].values()) == expected["depth_counts"][1:]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", TRIES)
def test_published_answers(name, backend, golden):
    model = NgramModel.open(golden / f"{name}.ngram", backend=backend)
    assert len(queries()[name]) > 0
    for case in queries()[name]:
        probabilities, matched = model.query(case["context"], case["tokens"])
        expected = np.array([float(value) for value in case["prob"]], dtype=np.float32)
        np.testing.assert_array_equal(probabilities, expected, err_msg=str(case))
        np.testing.assert_array_equal(matched, case["matched_length"], err_msg=str(case))


@pytest.mark.parametrize("name", TRIES)
def test_twin_writes_the_same_bytes(name, golden, tmp_path):
    nodes = ngram_twin.read_trie(DART / "trie" / f"{name}.trie")
    ngram_twin.write(nodes, tmp_path / "twin.ngram")
    assert (tmp_path / "twin.ngram").read_bytes() == (golden / f"{name}.ngram").read_bytes()


def test_add_all_and_reduce_are_ours(golden, tmp_path):
    for name, threshold in (("f_reduce2_order3", 2), ("g_reduce4_order3", 4)):
        reduce_ngram(golden / "e_addall_order3.ngram", threshold, tmp_path / name)
        assert (tmp_path / name).read_bytes() == (golden / f"{name}.ngram").read_bytes()


# Counting


@pytest.mark.parametrize("order", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("memory_mib", [0, 64], ids=["runs", "memory"])
def test_build_counts_as_brute_force(order, memory_mib, tmp_path):
    rng = np.random.default_rng(order)
    streams = random_streams(rng, vocab=40, total=6000)  # six sorted runs where memory is least
    build_ngram(streams, order, 40, tmp_path / "built.ngram", memory_mib=memory_mib)
    nodes = ngram_twin.build(streams, order, 40)
    assert nodes.counts[()] == sum(map(len, streams))
    ngram_twin.write(nodes, tmp_path / "twin.ngram")
    assert (tmp_path / "built.ngram").read_bytes() == (tmp_path / "twin.ngram").read_bytes()
    assert ngram_twin.read(tmp_path / "built.ngram").counts == nodes.counts


def test_merge_of_parts_is_the_whole(tmp_path):
    streams = random_streams(np.random.default_rng(7), vocab=60, total=3000)
    build_ngram(streams, 3, 60, tmp_path / "whole.ngram")
    parts = [tmp_path / f"part{i}.ngram" for i in range(3)]
    for i, part in enumerate(parts):
        build_ngram(streams[i::3], 3, 60, part)
    merge_ngrams(parts, tmp_path / "merged.ngram")
    assert (tmp_path / "merged.ngram").read_bytes() == (tmp_path / "whole.ngram").read_bytes()
    merge_ngrams(parts[:1], parts[0])  # onto its own input
    build_ngram(streams[0::3], 3, 60, tmp_path / "again.ngram")
    assert parts[0].read_bytes() == (tmp_path / "again.ngram").read_bytes()


def test_merge_and_reduce_as_the_twin(tmp_path):
    rng = np.random.default_rng(8)
    for draw in range(12):
        order = int(rng.integers(2, 6))
        inputs = []
        for i in range(3):
            vocab = int(rng.integers(5, 50))
            streams = random_streams(rng, vocab=vocab, total=600)
            inputs.append(tmp_path / f"{draw}-{i}.ngram")
            build_ngram(streams, order, vocab, inputs[-1])
        merged, twin = tmp_path / "merged.ngram", tmp_path / "twin.ngram"
        merge_ngrams(inputs, merged)
        nodes = ngram_twin.merge([ngram_twin.read(path) for path in inputs])
        ngram_twin.write(nodes, twin)
        assert merged.read_bytes() == twin.read_bytes()
        for threshold in (int(rng.integers(0, 9)), 3):  # the second time, of a reduced file
            reduce_ngram(merged, threshold, merged)
            nodes = ngram_twin.reduce(nodes, threshold)
            ngram_twin.write(nodes, twin)
            assert merged.read_bytes() == twin.read_bytes()


def test_merge_refuses_what_does_not_belong_together(tmp_path):
    for name, order, fingerprint in (("a", 3, "11" * 32), ("b", 4, ""), ("c", 3, "22" * 32)):
        build_ngram([[1, 2, 3]], order, 8, tmp_path / name, fingerprint=fingerprint)
    build_ngram([[1, 2, 3]], 3, 8, tmp_path / "d")
    with pytest.raises(ArenaError, match="order"):
        merge_ngrams([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    with pytest.raises(ArenaError, match="another tokenizer"):
        merge_ngrams([tmp_path / "a", tmp_path / "c"], tmp_path / "out")
    with pytest.raises(ArenaError, match="at least one"):
        merge_ngrams([], tmp_path / "out")
    merge_ngrams([tmp_path / "d", tmp_path / "a"], tmp_path / "out")
    assert NgramModel.open(tmp_path / "out").fingerprint == "11" * 32


@pytest.mark.parametrize("bad", [8, -1, 2**40])
def test_build_refuses_tokens_outside_the_vocabulary(bad, tmp_path):
    with pytest.raises(ArenaError, match=rf"stream 1: token {bad} at position 2 .*vocabulary of 8"):
        build_ngram([[1, 2], [3, 4, bad]], 3, 8, tmp_path / "x.ngram")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("order", "vocab_size"), [(1, 8), (9, 8), (3, 0), (3, 2**23)])
def test_build_refuses_impossible_shapes(order, vocab_size, tmp_path):
    with pytest.raises(ArenaError, match="is outside"):
        build_ngram([[1]], order, vocab_size, tmp_path / "x.ngram")
    with pytest.raises(FileNotFoundError, match="folder"):
        build_ngram([[1]], 3, 8, tmp_path / "no" / "x.ngram")


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "x.ngram"
    build_ngram([[1, 2]], 3, 8, path)
    before = path.read_bytes()
    with pytest.raises(ZeroDivisionError):
        build_ngram((1 / 0 for _ in range(1)), 3, 8, path)
    truncated = tmp_path / "y.trie"
    truncated.write_bytes((DART / "trie" / "a_order3.trie").read_bytes()[:-5])
    with pytest.raises(ArenaError, match="truncated"):
        import_trie(truncated, path)
    assert path.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.ngram", "y.trie"]


# Asking


@pytest.mark.parametrize("backend", BACKENDS)
def test_ngram_that_is_not_in_the_trie(backend, tmp_path):
    build_ngram([[1, 2, 3, 1, 2, 4]], 3, 16, tmp_path / "x.ngram")
    model = NgramModel.open(tmp_path / "x.ngram", backend=backend)
    for context, probabilities, matched in (
        ([], [0, 0, 0], [0, 0, 0]),
        ([9], [0, 0, 0], [0, 0, 0]),
        ([9, 9], [0, 0, 0], [0, 0, 0]),
        ([2], [0.5, 0.5, 0], [1, 1, 0]),
        ([1, 2], [0.5, 0.5, 0], [2, 2, 0]),
        ([7, 1, 2], [0.5, 0.5, 0], [2, 2, 0]),
        ([9, 2], [0.5, 0.5, 0], [1, 1, 0]),
    ):
        answer = model.query(context, [3, 4, 8])
        np.testing.assert_array_equal(answer[0], np.float32(probabilities), err_msg=str(context))
        np.testing.assert_array_equal(answer[1], matched, err_msg=str(context))


@pytest.mark.parametrize("name", TRIES)
def test_native_answers_as_the_twin(name, golden):
    native = NgramModel.open(golden / f"{name}.ngram", backend="native")
    twin = NgramModel.open(golden / f"{name}.ngram", backend="twin")
    rng = np.random.default_rng(1)
    strange = [-1, -(2**31), 2**22, 2**31 - 1, 2**32, 2**62, native.vocab_size]
    seen = [path for path in ngram_twin.read(golden / f"{name}.ngram").counts if path] or [(1,)]
    known = 0
    for _ in range(400):
        path = seen[rng.integers(len(seen))]
        context = [*rng.integers(0, 520, size=rng.integers(0, 7)), *path[:-1]]
        tokens = rng.integers(0, 520, size=rng.integers(0, 90))  # more than one block, and none
        tokens = np.append(tokens, [seen[i][-1] for i in rng.integers(len(seen), size=9)])
        if rng.random() < 0.3:
            context.insert(rng.integers(len(context) + 1), strange[rng.integers(len(strange))])
            tokens = np.append(tokens, strange)
        a, b = native.query(context, tokens), twin.query(context, tokens)
        np.testing.assert_array_equal(a[0], b[0])
        np.testing.assert_array_equal(a[1], b[1])
        known += int((a[1] > 0).sum())
    assert known > 100 or name == "c_empty_order3"


def test_file_is_a_few_lines_of_numpy(tmp_path):
    """The layout in cpp/ngram_format.h, read without any of our code."""
    streams = random_streams(np.random.default_rng(3), vocab=30, total=900)
    build_ngram(streams, 3, 30, tmp_path / "x.ngram")
    data = np.memmap(tmp_path / "x.ngram", dtype="u1", mode="r")
    vocab_size = int(data[16:24].view("<u8")[0])
    entries = data[40:64].view("<u8").astype(int)
    at = 256

    def section(dtype: str, rows: int) -> np.ndarray:
        nonlocal at
        start = -(-at // 64) * 64
        at = start + rows * np.dtype(dtype).itemsize
        return data[start:at].view(dtype)

    present, count, begin = (
        section(d, vocab_size + x) for d, x in (("u1", 0), ("<i4", 0), ("<u4", 1))
    )
    token2, count2, begin2 = (
        section(d, entries[1] + x) for d, x in (("<u4", 0), ("<i4", 0), ("<u4", 1))
    )
    token3, count3 = section("<u4", entries[2]), section("<i4", entries[2])
    assert at == len(data)
    found = {}
    for first in np.flatnonzero(present):
        found[(first,)] = count[first]
        for i in range(begin[first], begin[first + 1]):
            found[(first, token2[i])] = count2[i]
            for j in range(begin2[i], begin2[i + 1]):
                found[(first, token2[i], token3[j])] = count3[j]
    expected = ngram_twin.build(streams, 3, 30).counts
    del expected[()]
    assert found == expected


def _answer(path: str, queue) -> None:
    model = NgramModel.open(path)
    queue.put((model.backend, model.query([1, 2], [3, 4])[0].tolist()))


def test_two_processes_share_a_file(tmp_path):
    build_ngram([[1, 2, 3, 1, 2, 4]], 3, 16, tmp_path / "x.ngram")
    here = NgramModel.open(tmp_path / "x.ngram")
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    others = [
        context.Process(target=_answer, args=(str(tmp_path / "x.ngram"), queue)) for _ in "ab"
    ]
    for process in others:
        process.start()
    answers = [queue.get(timeout=120) for _ in others]
    for process in others:
        process.join()
    assert answers == [("native", [0.5, 0.5])] * 2
    assert here.query([1, 2], [3, 4])[0].tolist() == [0.5, 0.5]


def test_closed_model_says_so(tmp_path):
    build_ngram([[1, 2]], 3, 16, tmp_path / "x.ngram")
    with NgramModel.open(tmp_path / "x.ngram") as model:
        model.prefetch()
    with pytest.raises(ValueError, match="closed"):
        model.query([1], [2])


def test_published_file_is_converted_once(tmp_path, monkeypatch):
    source = tmp_path / "small.trie"
    source.write_bytes((DART / "trie" / "a_order3.trie").read_bytes())
    with open_published(source, cache=tmp_path / "cache", vocab_size=512) as model:
        assert (model.order, model.vocab_size) == (3, 512)
    (converted,) = (tmp_path / "cache" / "ngram").glob("*.ngram")
    stamp = converted.stat().st_mtime_ns
    with open_published(source, cache=tmp_path / "cache", vocab_size=512) as model:
        assert model.path == converted
    assert converted.stat().st_mtime_ns == stamp
    with open_published(converted, cache=tmp_path / "unused") as model:
        assert model.path == converted
    assert not (tmp_path / "unused").exists()
    with pytest.raises(ArenaError, match="outside the vocabulary of 100"):
        open_published(source, cache=tmp_path / "cache", vocab_size=100)


def test_fingerprint_tells_tokenizers_apart():
    class Tokenizer:
        def __init__(self, *tokens):
            self.get_vocab = lambda: {token: i for i, token in enumerate(tokens)}

    assert tokenizer_fingerprint(Tokenizer("a", "b")) == tokenizer_fingerprint(Tokenizer("a", "b"))
    assert tokenizer_fingerprint(Tokenizer("a", "b")) != tokenizer_fingerprint(Tokenizer("b", "a"))


# Without the extension, and without a compiler


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        env={"PATH": "", "PYTHONPATH": ":".join(sys.path), **environment},
    )


def test_without_the_extension_the_twin_answers_and_one_warning_says_so(golden, tmp_path):
    result = run_python(f"""
        import sys
        sys.modules["dart_core._core"] = None  # as if it had not been built
        import numpy as np
        from dart_core.ngram import NgramModel, build_ngram, canonical_sha256, import_trie
        from dart_core.pruner import TreePruner
        build_ngram([[1, 2, 3, 1, 2, 4]], 3, 16, {str(tmp_path / "x.ngram")!r})
        model = NgramModel.open({str(tmp_path / "x.ngram")!r})
        pruner = TreePruner(model, levels=2)
        tree, _ = pruner.search([[3, 4], [1, 2]], np.full((2, 2), 0.5), [1, 2], 2, 3)
        import_trie({str(DART / "trie" / "a_order3.trie")!r}, {str(tmp_path / "a.ngram")!r})
        print(model.backend, pruner.backend, model.query([1, 2], [3, 4])[0].tolist(), len(tree))
        print(canonical_sha256({str(tmp_path / "a.ngram")!r}))
        try:
            NgramModel.open({str(tmp_path / "x.ngram")!r}, backend="native")
        except ValueError as error:
            print(error)
    """)
    assert result.returncode == 0, result.stderr
    first, digest, refusal = result.stdout.splitlines()
    assert first == "twin twin [0.5, 0.5] 4"
    assert digest == tries()["a_order3"]["canonical_sha256"]
    assert "pip install" in refusal
    assert result.stderr.count("RuntimeWarning") == 1
    assert "without its native extension" in result.stderr


def test_importing_compiles_nothing_and_minds_no_lock(tmp_path):
    """A compiler would leave a mark; a lock left by an interrupted build would be waited for."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("cc", "c++", "gcc", "g++", "clang", "clang++", "nvcc", "cmake", "ninja", "make"):
        (tools / name).write_text(f"#!/bin/sh\n: > {tmp_path}/compiled\n")
        (tools / name).chmod(0o755)
    for folder in ("extensions", "extensions/dart_core", "extensions/_core", "cache/dart_core"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "lock").touch()
    result = run_python(
        "import dart_core.ngram, dart_core.pruner, dart_core.drafters; print('imported')",
        PATH=str(tools),
        TORCH_EXTENSIONS_DIR=str(tmp_path / "extensions"),
        XDG_CACHE_HOME=str(tmp_path / "cache"),
        HOME=str(tmp_path),
    )
    assert result.stdout == "imported\n", result.stderr
    assert not (tmp_path / "compiled").exists()
