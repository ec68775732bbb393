"""Building an n-gram from files: the same bytes from any number of workers, in bounded memory,
whole or not at all.
"""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
from text_models import byte_level

from dart_core import ngram_twin
from dart_core.errors import ArenaError
from dart_core.ngram_inputs import CHUNK_CHARACTERS, IdReader, TextReader, read_chunks
from dart_core.ngram_parallel import count_files

VOCAB = 50


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """(files of several chunks each, one of them gzipped and one empty; all their streams)."""
    folder, rng = tmp_path_factory.mktemp("inputs"), np.random.default_rng(0)
    weights = 1 / np.arange(1, VOCAB + 1)
    streams, paths = [], []
    for name, count in (("a.jsonl", 1800), ("b.jsonl.gz", 700), ("c.jsonl", 0), ("d.jsonl", 5)):
        own = [
            rng.choice(VOCAB, size=rng.integers(0, 40), p=weights / weights.sum()).tolist()
            for _ in range(count)
        ]
        content = "".join(json.dumps(ids) + "\n" for ids in own).encode()
        path = folder / name
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        streams += own
        paths.append(str(path))
    return paths, streams


@pytest.mark.parametrize("order", [2, 3, 5])
def test_the_same_bytes_whatever_the_workers_and_the_memory(order, inputs, tmp_path):
    paths, streams = inputs
    assert len(list(read_chunks(paths))) > 4
    ngram_twin.write(ngram_twin.build(streams, order, VOCAB), tmp_path / "naive.ngram")
    naive = (tmp_path / "naive.ngram").read_bytes()
    for workers, memory_mib in ((1, 64), (1, 0), (2, 1), (3, 64)):
        output, lines = tmp_path / "x.ngram", []
        tokens = count_files(
            paths, IdReader(VOCAB), order, output,
            memory_mib=memory_mib, workers=workers, log=lines.append,
        )  # fmt: skip
        assert output.read_bytes() == naive, (workers, memory_mib)
        assert tokens == sum(map(len, streams))
        assert lines[-1].startswith("counting 100 %") and f"{tokens:,} tokens" in lines[-1]
        output.unlink()
    assert [path.name for path in tmp_path.iterdir()] == ["naive.ngram"]


def test_workers_tokenise_as_one_process_does(tmp_path):
    tokenizer = byte_level(("Ġha",))
    text = tmp_path / "long.txt"
    text.write_text("".join(f"line {i} ha ha\n" for i in range(12_000)))
    talk = tmp_path / "talk.jsonl"
    talk.write_text(
        "".join(json.dumps({"turns": [f"más {i}", "ha ha"]}) + "\n" for i in range(2000))
    )
    files = [str(text), str(talk)]
    reader = TextReader.of(tokenizer, (tokenizer.eos_token_id,), len(tokenizer))
    for workers in (1, 2):
        count_files(
            files, reader, 3, tmp_path / f"{workers}", memory_mib=8, workers=workers, log=str
        )
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()
    pieces = [chunk.lines[0] for chunk in read_chunks(files[:1])]
    assert "".join(pieces) == text.read_text()
    assert len(pieces) > 1 and all(
        p.endswith("\n") and len(p) > CHUNK_CHARACTERS for p in pieces[:-1]
    )
    texts = [text for i in range(2000) for text in (f"más {i}", "ha ha")]
    streams = tokenizer(pieces + texts, add_special_tokens=False)["input_ids"]
    ends = [[]] * (len(pieces) - 1) + [[tokenizer.eos_token_id]] * (1 + len(texts))
    expected = ngram_twin.build(
        [ids + end for ids, end in zip(streams, ends, strict=True)], 3, len(tokenizer)
    )
    assert ngram_twin.read(tmp_path / "1").counts == expected.counts


def test_a_bad_line_is_named_by_whichever_worker_meets_it(inputs, tmp_path):
    paths, _ = inputs
    bad = tmp_path / "bad.jsonl"
    bad.write_text("[1]\n[1, 2, 50]\n")
    for workers in (1, 2):
        with pytest.raises(ArenaError, match=r"bad\.jsonl:2: token 50 is outside the vocabulary"):
            count_files(
                [*paths, str(bad)], IdReader(VOCAB), 3, tmp_path / "x.ngram",
                memory_mib=8, workers=workers, log=str,
            )  # fmt: skip
    assert [path.name for path in tmp_path.iterdir()] == ["bad.jsonl"]


class _Deadly:
    """A reader whose process dies as for want of memory."""

    vocab_size = VOCAB

    def streams(self, chunk):
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_worker_that_dies_is_an_error_and_leaves_nothing(inputs, tmp_path):
    with pytest.raises(ArenaError, match=r"a worker process ended with code -9.*--workers"):
        count_files(inputs[0], _Deadly(), 3, tmp_path / "x.ngram", memory_mib=8, workers=2, log=str)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_build_leaves_the_old_file_and_no_other(ending, inputs, tmp_path):
    (tmp_path / "x.ngram").write_text("old")
    endless = tmp_path / "endless.jsonl"
    os.mkfifo(endless)
    writer = os.open(endless, os.O_RDWR)  # a reader opens it at once, and waits for more
    arguments = [*inputs[0], str(endless), "--token-ids", "--vocab-size", str(VOCAB)]
    arguments += ["--workers", "2", "--output", str(tmp_path / "x.ngram")]
    with subprocess.Popen(
        [sys.executable, "-m", "dart_core", "ngram", "build", *arguments],
        stderr=subprocess.PIPE,
        text=True,
    ) as build:
        while not list(tmp_path.glob("x.ngram.parts-*")) and build.poll() is None:
            time.sleep(0.05)
        build.send_signal(ending)
        code, error = build.wait(120), build.stderr.read()
    os.close(writer)
    assert code == {signal.SIGINT: 130, signal.SIGTERM: 143}[ending], error
    assert "Traceback" not in error
    assert (tmp_path / "x.ngram").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["endless.jsonl", "x.ngram"]


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
@pytest.mark.parametrize(("memory_mib", "enough"), [(1, True), (256, False)])
def test_memory_is_bounded(memory_mib, enough, tmp_path):
    """Four million tokens, 96 MB as records, under a limit of the system's on private memory."""
    code = f"""
        import resource, sys
        import numpy as np
        from dart_core.ngram import build_ngram
        rng = np.random.default_rng(0)
        streams = (rng.integers(0, 300, size=1000) for _ in range(4000))
        line = next(l for l in open("/proc/self/status") if l.startswith("VmData"))
        limit = int(line.split()[1]) * 1024 + (48 << 20)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        build_ngram(streams, 5, 300, sys.argv[1], memory_mib={memory_mib})
    """
    built = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "x.ngram")],
        capture_output=True,
        text=True,
    )
    assert (built.returncode == 0) == enough, built.stderr
    assert (tmp_path / "x.ngram").exists() == enough
