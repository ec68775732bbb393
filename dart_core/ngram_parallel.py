"""Counting the n-grams of files in several processes: whatever their number, the same bytes.

One process reads the inputs and hands out chunks. Every worker tokenises and counts its chunks in
its share of the memory, in sorted runs, and ends with a file of its own; these are then merged.
Which worker had which chunk does not matter, because counts add up and files are sorted.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from dart_core.errors import ArenaError
from dart_core.ngram import build_ngram, merge_ngrams
from dart_core.ngram_inputs import Chunk, IdReader, TextReader, read_chunks, total_bytes
from dart_core.progress import ProgressBar, duration

AHEAD = 2  # chunks that lie ready at a worker, so that it never waits for the next one


def usable_processors() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def count_files(
    paths: Sequence[str],
    reader: IdReader | TextReader,
    order: int,
    output: str | Path,
    *,
    fingerprint: str = "",
    memory_mib: int,
    workers: int = 1,
    log: Callable[[str], None] | None = None,
) -> int:
    """Count the n-grams of up to ``order`` tokens in all inputs; returns the number of tokens.

    ``output`` appears whole or not at all, the same bytes for any number of ``workers`` and any
    ``memory_mib``, which is the size of all workers' sort buffers together; what does not fit goes
    to scratch files beside ``output``. A worker holds its tokenizer and two chunks besides.
    ``log``: where lines of progress go (default: a bar on stderr).
    """
    output, total = Path(output), total_bytes(paths)
    options: dict[str, Any] = {
        "order": order,
        "vocab_size": reader.vocab_size,
        "fingerprint": fingerprint,
    }
    bar = ProgressBar("counting", log=log)
    tokens, done = 0, 0

    def counted(chunk: Chunk, more: int) -> None:
        nonlocal tokens, done
        tokens, done = tokens + more, max(done, chunk.done)
        rate = tokens / (time.monotonic() - bar.started)
        left = duration(bar.left(done, total))
        bar.show(done / max(1, total), f"{tokens:,} tokens, {rate:,.0f}/s, {left} left")

    if workers == 1:
        streams = _streams(read_chunks(paths), reader, counted)
        build_ngram(streams, path=output, memory_mib=memory_mib, **options)
        bar.close()
        return tokens
    with TemporaryDirectory(prefix=f"{output.name}.parts-", dir=output.parent) as folder:
        parts = [Path(folder) / f"{worker}.ngram" for worker in range(workers)]
        share = {"memory_mib": max(1, memory_mib // workers)}
        pool = _Pool(parts, reader, options | share, counted)
        try:
            pool.run(read_chunks(paths))
        finally:
            pool.close()
        bar.show(1.0, f"{tokens:,} tokens, adding up {workers} files", now=True)
        merge_ngrams(parts, output)
    bar.close()
    return tokens


def _streams(
    chunks: Iterator[Chunk], reader: IdReader | TextReader, counted: Callable[[Chunk, int], None]
) -> Iterator[list[int]]:
    for chunk in chunks:
        tokens = 0
        for stream in reader.streams(chunk):
            tokens += len(stream)
            yield stream
        counted(chunk, tokens)


class _Pool:
    """Worker processes, each with a pipe: chunks go in; counts, or why it failed, come out."""

    def __init__(
        self,
        parts: Sequence[Path],
        reader: IdReader | TextReader,
        options: dict[str, Any],
        counted: Callable[[Chunk, int], None],
    ) -> None:
        # Fresh interpreters: a fork would copy the locks of this process's threads.
        context = multiprocessing.get_context("spawn")
        self.counted = counted
        self.workers: dict[Connection, SpawnProcess] = {}
        self.given: dict[Connection, list[Chunk]] = {}  # not counted yet; without those that ended
        for part in parts:
            ours, theirs = context.Pipe()
            worker = context.Process(
                target=_work, args=(theirs, part, reader, options), daemon=True
            )
            with _uninterrupted():
                worker.start()
            theirs.close()  # so that the end of the worker is the end of the pipe
            self.workers[ours] = worker
            self.given[ours] = []

    def run(self, chunks: Iterator[Chunk]) -> None:
        """Hand all chunks to whoever is free, then wait until every worker has written its file."""
        free = [pipe for _ in range(AHEAD) for pipe in self.workers]
        for chunk in chunks:
            while not free:
                free = self._answers()
            pipe = free.pop(0)
            self.given[pipe].append(chunk)
            self._send(pipe, chunk)
        for pipe in self.workers:
            self._send(pipe, None)
        while self.given:
            self._answers()

    def _answers(self) -> list[Connection]:
        """Wait for answers; returns the pipes that want a chunk more."""
        free: list[Connection] = []
        for pipe in cast(list[Connection], wait(list(self.given))):
            try:
                answer = pipe.recv()
            except (EOFError, ConnectionResetError):
                self.workers[pipe].join()
                raise ArenaError(
                    f"a worker process ended with code {self.workers[pipe].exitcode} before its "
                    "work was done; if memory is short, give fewer --workers or less --memory-mib"
                ) from None
            if isinstance(answer, Exception):
                raise answer
            if answer is None:
                del self.given[pipe]
            else:
                self.counted(self.given[pipe].pop(0), answer)
                free.append(pipe)
        return free

    def _send(self, pipe: Connection, message: Chunk | None) -> None:
        try:
            pipe.send(message)
        except OSError:  # nobody reads it any more: what came out before says why
            while True:
                self._answers()

    def close(self) -> None:
        """End all workers, whatever they are at."""
        for worker in self.workers.values():
            worker.terminate()
        for pipe, worker in self.workers.items():
            worker.join()
            pipe.close()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C and SIGTERM wait: a worker that loses its parent while it starts would print a
    traceback.
    """
    if threading.current_thread() is not threading.main_thread():  # which alone gets them
        yield
        return
    late: list[int] = []
    before: dict[signal.Signals, Any] = {
        number: signal.signal(number, lambda number, _: late.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
        if signal.getsignal(number) is not None
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for missed in late:
            signal.raise_signal(missed)


def _work(
    pipe: Connection, part: Path, reader: IdReader | TextReader, options: dict[str, Any]
) -> None:
    """A worker's life."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent says when to stop
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        streams = _streams(iter(pipe.recv, None), reader, lambda _, count: pipe.send(count))
        build_ngram(streams, path=part, **options)
        pipe.send(None)
    except (EOFError, BrokenPipeError):  # the parent is gone
        pass
    except Exception as error:
        pipe.send(error)
