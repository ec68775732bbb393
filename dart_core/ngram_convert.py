"""Converting a published ``.trie``, however large: watched, stopped, gone on with, made once.

While it is made, a conversion keeps its parts in a folder beside the file it will become, and a
process that makes it holds that folder's lock. Whatever ends the process, the parts stay and the
next conversion of the same file goes on from them; the result gets its name when it is whole.
"""

from __future__ import annotations

import errno
import os
import shutil
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from dart_core import ngram_twin
from dart_core._native import choose_backend, native
from dart_core.errors import ArenaError
from dart_core.lfs import refuse_pointer
from dart_core.progress import ProgressBar, duration, size

DEFAULT_MEMORY_MIB = 256  # of sort buffers
HEADER = struct.Struct("<QQ")  # of a .trie: order, nodes
NODE_BYTES, CHILD_BYTES = 24, 12
LOOK_AGAIN = 0.25  # seconds, while another process converts
TELL_AGAIN = 15.0  # seconds
READING = 0.7  # share of the time that reading takes; merging takes the rest


def import_trie(
    trie_path: str | Path,
    path: str | Path,
    vocab_size: int | None = None,
    *,
    memory_mib: int = DEFAULT_MEMORY_MIB,
    once: bool = False,
    note: Callable[[str], None] | None = None,
    bar: ProgressBar | None = None,
) -> None:
    """Convert a published ``.trie`` into an ``.ngram`` file: same n-grams, same counts.

    ``vocab_size`` None takes the largest token plus one. Memory stays within ``memory_mib`` and
    some sixty megabytes, whatever the file's size; ``disk_needed`` says what it takes on disk.
    An interrupted or killed conversion of the same file goes on from the parts it left in
    ``parts_folder(path)``. ``once``: a file that is there already is right, and another process
    that makes it is waited for; else that is an error.

    ``note`` takes lines: what it needs, whom it waits for, how far it is (``bar`` shows that
    instead, if given). Raises FileNotFoundError, and ArenaError for a file that is damaged or
    foreign, too little disk, and another process at work. Published layout: fvliang/DART.
    """
    trie_path, path = Path(trie_path), Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder {path.parent} for the output file does not exist")
    note = note or (lambda _: None)
    refuse_pointer(trie_path)
    if behind := _bytes_behind(trie_path):
        note(f"{trie_path.name}: {behind} bytes behind its last node are left out, as published")
    if choose_backend(None) == "twin":  # no extension: slow, and in memory
        ngram_twin.write(ngram_twin.read_trie(trie_path, vocab_size or 0), path)
        return
    status = trie_path.stat()
    identity = f"{trie_path.resolve()}|{status.st_size}|{status.st_mtime_ns}|{vocab_size}"
    with _alone_with(path, once=once, note=note) as parts:
        if once and path.exists():
            _remove(parts)
            return
        try:
            work = native().TrieImport(
                str(trie_path),
                str(path),
                folder=str(parts),
                identity=identity,
                vocab_size=vocab_size or 0,
                memory_bytes=memory_mib << 20,
            )
            _check_disk(work, trie_path, path, vocab_size, note)
            _run(work, bar or ProgressBar(f"converting {trie_path.name}", log=note))
        except ArenaError:  # it would fail the next time as well
            _remove(parts)
            raise
        except BaseException as error:
            kept = (parts / "journal").exists()
            if not kept:
                _remove(parts)
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise ArenaError(_full_disk(path, kept)) from error
            if kept and not isinstance(error, Exception):  # Ctrl-C, SIGTERM
                note(
                    f"what is done, {size(_bytes_on_disk(parts))}, stays in {parts}: the same "
                    "command goes on from there; delete the folder to give it up"
                )
            raise
        _remove(parts)


def _bytes_behind(trie_path: Path) -> int:
    """How far a file goes on behind its last node. What it lacks, or what is none, is found when it
    is read.
    """
    if not trie_path.is_file():  # to open a pipe waits for a writer
        return 0
    with trie_path.open("rb") as file:
        header = file.read(HEADER.size)
    if len(header) < HEADER.size:
        return 0
    order, nodes = HEADER.unpack(header)
    if not (ngram_twin.MIN_ORDER <= order <= ngram_twin.MAX_ORDER and nodes > 0):
        return 0
    # Every node but the root stands in the list of its parent, besides.
    end = HEADER.size + NODE_BYTES * nodes + CHILD_BYTES * (nodes - 1)
    return max(0, trie_path.stat().st_size - end)


def parts_folder(path: str | Path) -> Path:
    """Where a conversion to ``path`` keeps its parts while it is not done."""
    return Path(f"{path}.parts")


def disk_needed(order: int, nodes: int, vocab_size: int | None = None) -> tuple[int, int]:
    """The most bytes on disk that the conversion of a trie takes while it runs, and the most that
    its result takes.

    A node takes order + 1 words of 4 bytes in sorted runs, then up to 3 in the result (2 at the
    greatest length). While the trie is read, one that has children takes order - 1 besides.
    """
    runs = 4 * (order + 1) * nodes
    while_reading = runs + 4 * (order - 1) * nodes + nodes // 4
    result = 12 * nodes + 13 * (vocab_size or min(nodes, ngram_twin.MAX_VOCAB_SIZE)) + 4096
    return max(while_reading, runs + result), result


def _run(work: Any, bar: ProgressBar) -> None:
    """Do all the steps; between two of them signals are heard."""
    total, resumed_at = work.nodes, work.read
    resumed, started = _fraction(work), time.monotonic()
    if resumed_at:
        bar.show(resumed, f"going on from node {resumed_at:,} of {total:,}", now=True)
    try:
        while work.step():
            seconds = max(time.monotonic() - started, 1e-9)
            done = _fraction(work)
            left = duration(seconds * (1 - done) / max(done - resumed, 1e-9))
            if work.read < total:
                rate = (work.read - resumed_at) / seconds
                bar.show(done, f"{work.read:,} of {total:,} nodes, {rate:,.0f}/s, {left} left")
            else:
                bar.show(done, f"merging, {work.merged:,} of {total:,} n-grams, {left} left")
        bar.show(1.0, f"{total:,} nodes in {duration(time.monotonic() - started)}", now=bar.drawn)
    finally:
        bar.close()


def _fraction(work: Any) -> float:
    return (READING * work.read + (1 - READING) * work.merged) / max(1, work.nodes)


def _check_disk(
    work: Any,
    trie_path: Path,
    path: Path,
    vocab_size: int | None,
    note: Callable[[str], None],
) -> None:
    need, result = disk_needed(work.order, work.nodes, vocab_size)
    here = _bytes_on_disk(parts_folder(path))
    free = shutil.disk_usage(path.parent).free
    what = f"{trie_path.name} (order {work.order}, {work.nodes:,} nodes)"
    if free + here < need:
        raise ArenaError(
            f"converting {what} takes up to {size(need)} of disk in {path.parent}, where "
            f"{size(free + here)} are free: free {size(need - free - here)} there, or have it made "
            "on a larger disk (DART_ARENA_CACHE says where the cache is), or take the small n-gram"
        )
    note(
        f"converting {what}, once: takes up to {size(need)} of disk in {path.parent}, "
        f"{size(free + here)} are free; up to {size(result)} stay"
    )


def _full_disk(path: Path, kept: bool) -> str:
    free = size(shutil.disk_usage(path.parent).free)
    then = f"it goes on from what is done, in {parts_folder(path)}" if kept else "start again"
    return f"the disk of {path.parent} ran full, {free} are free: make room there, then {then}"


def _bytes_on_disk(folder: Path) -> int:
    total = 0
    for part in folder.glob("*"):
        try:
            total += part.stat().st_blocks * 512
        except FileNotFoundError:  # another process is done with it
            continue
    return total


@contextmanager
def _alone_with(path: Path, *, once: bool, note: Callable[[str], None]) -> Iterator[Path]:
    """The folder of parts, made if need be, while this process alone uses it."""
    import fcntl

    parts, started, told = parts_folder(path), time.monotonic(), None
    while True:
        parts.mkdir(exist_ok=True)
        try:
            lock = open(parts / "lock", "a+b")  # noqa: SIM115
        except FileNotFoundError:  # its owner is done, and has just removed the folder
            continue
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                who = f"another process ({_owner(lock)}) is converting to {path}"
                if not once:
                    raise ArenaError(f"{who}: wait until it is done, or end it") from None
                now = time.monotonic()
                if told is None or now - told >= TELL_AGAIN:
                    told = now
                    note(f"{who}; waiting for it, {duration(now - started)} so far")
                time.sleep(LOOK_AGAIN)
                continue
            if not _is_still(lock, parts / "lock"):  # what we locked has been removed meanwhile
                continue
            lock.truncate(0)
            lock.write(struct.pack("<q", os.getpid()))
            lock.flush()
            yield parts
            return


def _owner(lock: BinaryIO) -> str:
    lock.seek(0)
    content = lock.read(8)
    return f"pid {struct.unpack('<q', content)[0]}" if len(content) == 8 else "just started"


def _is_still(file: BinaryIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _remove(parts: Path) -> None:
    """Remove the folder, the lock last: who comes next finds all of it, or nothing."""
    for part in parts.iterdir():
        if part.name != "lock":
            part.unlink()
    (parts / "lock").unlink()
    with suppress(OSError):  # the next one has made a lock of its own: the folder is theirs
        parts.rmdir()
