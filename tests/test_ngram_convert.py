"""Converting a published ``.trie``: the right bytes whatever interrupts it, once, in little memory
and with the disk that was stated.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from collections import namedtuple
from pathlib import Path

import large_trie
import numpy as np
import pytest

from dart_core import ngram_convert
from dart_core.cli import main
from dart_core.errors import ArenaError
from dart_core.ngram import (
    NgramModel,
    build_ngram,
    converted_path,
    import_trie,
    open_published,
)
from dart_core.ngram_convert import disk_needed, parts_folder

MEMORY = 1 << 18  # bytes of sort buffer: a run every 16 thousand nodes


@pytest.fixture(scope="module")
def text():
    return large_trie.streams(100_000, seed=3)


@pytest.fixture(scope="module")
def trie(text, tmp_path_factory):
    path = tmp_path_factory.mktemp("large") / "large.trie"
    assert large_trie.write_trie(path, text) > 150_000
    return path


@pytest.fixture(scope="module")
def expected(text, trie):
    """The bytes that a conversion of ``trie`` must give, counted from its text."""
    path = trie.with_name("built.ngram")
    build_ngram(text, large_trie.ORDER, large_trie.VOCAB, path)
    return path.read_bytes()


def run_python(code: str, *arguments: object, **options) -> subprocess.Popen:
    """Starts a process with this code, our folders and a pipe for what it prints."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
        **options,
    )


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("memory_mib", [0, 1, 64])
def test_the_same_bytes_in_any_memory(memory_mib, trie, expected, tmp_path):
    lines, output = [], tmp_path / "x.ngram"
    import_trie(trie, output, large_trie.VOCAB, memory_mib=memory_mib, note=lines.append)
    assert output.read_bytes() == expected
    assert names(tmp_path) == ["x.ngram"]
    need, _ = disk_needed(large_trie.ORDER, trie_nodes(trie), large_trie.VOCAB)
    assert f"takes up to {ngram_convert.size(need)} of disk in {tmp_path}" in lines[0]
    assert lines[-1].startswith("converting large.trie 100 %") and " nodes in " in lines[-1]


def trie_nodes(path: Path) -> int:
    return int(np.fromfile(path, dtype="<u8", count=2)[1])


KILLED = """
    import os, random, signal, sys
    from dart_core._core import TrieImport

    source, output, folder, seed, memory = *sys.argv[1:4], *map(int, sys.argv[4:])
    choose, reached = random.Random(seed), []
    for kill in range(1000):
        pid = os.fork()
        if pid == 0:
            work = TrieImport(
                source, output, folder=folder, identity="x", vocab_size=0, memory_bytes=memory
            )
            steps = choose.randrange(1 + 4 * kill) if seed else kill  # 0: one after the other
            os.write(2, f"{work.read} ".encode())
            while steps > 0 and work.step():
                steps -= 1
            if steps > 0:
                os._exit(0)
            if seed % 2:  # in the middle of a step, by the system: a thread may wait for its turn
                signal.setitimer(signal.ITIMER_REAL, 1e-6 + choose.random() * 0.004)
                while work.step():
                    pass
            os.kill(os.getpid(), signal.SIGKILL)
        choose.random()
        _, status = os.waitpid(pid, 0)
        if status == 0:
            print(kill)
            break
        assert os.WTERMSIG(status) in (signal.SIGKILL, signal.SIGALRM), status
        if os.path.exists(output):  # killed after the end
            print(kill)
            break
"""


@pytest.mark.parametrize("seed", range(6))
def test_killed_anywhere_it_goes_on(seed, trie, expected, tmp_path):
    """Killed again and again, it gets done, because it does not begin again; nothing is ever at the
    output's place but the whole of it.
    """
    output, folder = tmp_path / "x.ngram", tmp_path / "parts"
    folder.mkdir()
    with run_python(KILLED, trie, output, folder, seed, MEMORY) as process:
        out, error = process.communicate(timeout=300)
    assert process.returncode == 0, error
    assert int(out) >= 1  # was killed
    began = [int(part) for part in error.split()]
    assert began == sorted(began) and began[-1] > 16_000
    whole = tmp_path / "whole.ngram"
    import_trie(trie, whole)  # with the largest token plus one, as there
    assert output.read_bytes() == whole.read_bytes()


def convert_until(nodes: int, error: BaseException, monkeypatch, trie, output) -> None:
    """Convert, and have it end in ``error`` when more than ``nodes`` have been read."""
    fraction = ngram_convert._fraction

    def end(work) -> float:
        if work.read > nodes:
            raise error
        return fraction(work)

    with monkeypatch.context() as patch:
        patch.setattr(ngram_convert, "_fraction", end)
        import_trie(trie, output, large_trie.VOCAB, memory_mib=1)


@pytest.fixture
def half_done(trie, tmp_path, monkeypatch):
    """The output's path, with the parts of a conversion beside it that was interrupted."""
    output = tmp_path / "x.ngram"
    with pytest.raises(KeyboardInterrupt):
        convert_until(70_000, KeyboardInterrupt(), monkeypatch, trie, output)
    assert names(tmp_path) == ["x.ngram.parts"]
    assert {"journal", "runs"} <= set(names(parts_folder(output)))
    return output


def go_on(trie, output) -> list[str]:
    """Convert with a bar that shows everything; returns what was said."""
    lines: list[str] = []
    bar = ngram_convert.ProgressBar("converting", log=lines.append, seconds=0)
    import_trie(trie, output, large_trie.VOCAB, memory_mib=1, bar=bar)
    return lines


def test_an_interrupted_conversion_goes_on(half_done, trie, expected, tmp_path):
    lines = go_on(trie, half_done)
    assert "going on from node 65," in lines[0]
    assert half_done.read_bytes() == expected
    assert names(tmp_path) == ["x.ngram"]


def test_one_interrupted_before_its_first_run_leaves_nothing(trie, tmp_path, monkeypatch):
    with pytest.raises(KeyboardInterrupt):
        convert_until(10_000, KeyboardInterrupt(), monkeypatch, trie, tmp_path / "x.ngram")
    assert names(tmp_path) == []


def test_parts_of_another_file_are_not_taken_up(half_done, trie, expected, tmp_path):
    os.utime(trie, ns=(1, 1))  # as if it had been downloaded again
    lines = go_on(trie, half_done)
    assert not any("going on" in line for line in lines)
    assert half_done.read_bytes() == expected


@pytest.mark.parametrize("damage", ["flip", "cut", "runs", "paths", "empty"])
def test_damaged_parts_are_made_again(damage, half_done, trie, expected):
    parts = parts_folder(half_done)
    journal = bytearray((parts / "journal").read_bytes())
    if damage == "flip":
        journal[len(journal) // 2] ^= 4
    elif damage == "cut":
        del journal[-16:]
    elif damage == "empty":
        journal.clear()
    elif damage == "runs":
        os.truncate(parts / "runs", (parts / "runs").stat().st_size - 1)
    else:
        (parts / "paths").unlink()
    (parts / "journal").write_bytes(journal)
    lines = go_on(trie, half_done)
    assert not any("going on" in line for line in lines)
    assert half_done.read_bytes() == expected


def test_a_trie_found_damaged_later_leaves_no_parts(trie, tmp_path):
    content = bytearray(trie.read_bytes())
    content[-24:-20] = (7).to_bytes(4, "little")  # another token in the last node
    source, output = tmp_path / "bad.trie", tmp_path / "x.ngram"
    source.write_bytes(content)
    for _ in range(2):
        with pytest.raises(ArenaError, match="child lists contradict"):
            import_trie(source, output, memory_mib=1)
    assert names(tmp_path) == ["bad.trie"]


# Disk


def disk(monkeypatch, free: int) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**12, 10**12 - free, free))


def test_too_little_disk_is_said_first(trie, tmp_path, monkeypatch):
    need, result = disk_needed(large_trie.ORDER, trie_nodes(trie), large_trie.VOCAB)
    disk(monkeypatch, need - 1_000_000)
    with pytest.raises(ArenaError) as caught:
        import_trie(trie, tmp_path / "x.ngram", large_trie.VOCAB)
    message = str(caught.value)
    assert f"takes up to {ngram_convert.size(need)} of disk in {tmp_path}, where" in message
    assert re.search(r"where 5\.\d+ MB are free: free (1 MB|9\d\d kB) there", message)
    assert "DART_ARENA_CACHE" in message and "small n-gram" in message
    assert names(tmp_path) == []
    disk(monkeypatch, need)
    import_trie(trie, tmp_path / "x.ngram", large_trie.VOCAB)
    assert (tmp_path / "x.ngram").stat().st_size <= result


def test_parts_that_lie_there_count_as_free(half_done, trie, monkeypatch):
    need, _ = disk_needed(large_trie.ORDER, trie_nodes(trie), large_trie.VOCAB)
    disk(monkeypatch, need - 1_000_000)  # more than a megabyte is in the parts
    assert "going on" in go_on(trie, half_done)[0]


def test_the_disk_stated_is_never_exceeded(trie, tmp_path, monkeypatch):
    """At every step, of the largest kind of file: few n-grams have siblings."""
    parts, most, fraction = parts_folder(tmp_path / "x.ngram"), 0, ngram_convert._fraction

    def measured(work) -> float:
        nonlocal most
        most = max(most, ngram_convert._bytes_on_disk(parts))
        return fraction(work)

    monkeypatch.setattr(ngram_convert, "_fraction", measured)
    import_trie(trie, tmp_path / "x.ngram", large_trie.VOCAB, memory_mib=1)
    need, _ = disk_needed(large_trie.ORDER, trie_nodes(trie), large_trie.VOCAB)
    runs = 4 * (large_trie.ORDER + 1) * trie_nodes(trie)
    assert runs < most < need + (1 << 18)  # whole blocks of a few files


@pytest.mark.parametrize("nodes", [5_000, 100_000])
def test_a_disk_that_runs_full_later(nodes, trie, expected, tmp_path, monkeypatch):
    output, full = tmp_path / "x.ngram", OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(ArenaError, match=r"ran full, .* are free: make room there, then"):
        convert_until(nodes, full, monkeypatch, trie, output)
    assert parts_folder(output).exists() == (nodes > 65_536)
    import_trie(trie, output, large_trie.VOCAB)
    assert output.read_bytes() == expected


# Several processes


def test_one_converts_and_the_others_wait(trie, tmp_path, monkeypatch):
    """The first is held up in the middle until all the others have said that they wait."""
    waiting, answers = threading.Semaphore(0), []
    converted = converted_path(trie, cache=tmp_path, vocab_size=large_trie.VOCAB)
    converted.parent.mkdir(parents=True)
    fraction, makers = ngram_convert._fraction, []

    def held_up(work) -> float:
        if not makers:
            makers.append(threading.get_ident())
            for _ in range(3):
                assert waiting.acquire(timeout=120)
        assert makers == [threading.get_ident()]
        return fraction(work)

    def said(line: str) -> None:
        if f"another process (pid {os.getpid()}) is converting to {converted}; waiting" in line:
            waiting.release()

    def ask() -> None:
        with open_published(
            trie, cache=tmp_path, vocab_size=large_trie.VOCAB, progress=said
        ) as model:
            answers.append((model.path, model.entries))

    monkeypatch.setattr(ngram_convert, "_fraction", held_up)
    threads = [threading.Thread(target=ask, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert len(answers) == 4 and len(set(answers)) == 1 and answers[0][0] == converted
    assert names(converted.parent) == [converted.name]


def test_processes_that_start_together_convert_once(trie, expected, tmp_path):
    code = """
        import sys
        from dart_core.ngram import open_published
        lines = []
        open_published(sys.argv[1], cache=sys.argv[2], vocab_size=151936, progress=lines.append)
        print(sum("takes up to" in line for line in lines))
    """
    processes = [run_python(code, trie, tmp_path) for _ in range(3)]
    results = [process.communicate(timeout=300) for process in processes]
    assert all(process.returncode == 0 for process in processes), results
    assert sorted(out.strip() for out, _ in results) == ["0", "0", "1"]
    (converted,) = (tmp_path / "ngram").iterdir()
    assert converted.read_bytes() == expected


def test_a_command_does_not_wait_for_another(trie, tmp_path, capsys):
    output = tmp_path / "x.ngram"
    with ngram_convert._alone_with(output, once=False, note=str):
        assert main(["ngram", "import", str(trie), "--output", str(output)]) == 1
    error = capsys.readouterr().err
    assert f"another process (pid {os.getpid()}) is converting to {output}: wait" in error
    assert error.count("\n") == 1


def test_the_lock_of_a_folder_that_went_away_is_no_lock(tmp_path):
    """Its owner is done and has removed it, while another process was about to lock it."""
    output = tmp_path / "x.ngram"
    with ngram_convert._alone_with(output, once=False, note=str) as parts:
        stale = open(parts / "lock", "a+b")  # noqa: SIM115
        ngram_convert._remove(parts)
    with stale, ngram_convert._alone_with(output, once=False, note=str) as parts:
        assert not ngram_convert._is_still(stale, parts / "lock")


# The command


SLOW = """
    import sys, time
    from dart_core import cli, ngram_convert

    fraction = ngram_convert._fraction

    def slow(work):
        print(work.read, flush=True)
        if work.read > 70_000:
            time.sleep(60)
        return fraction(work)

    ngram_convert._fraction = slow
    sys.exit(cli.main(["ngram", "import", *sys.argv[1:]]))
"""


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_is_interrupted_says_how_to_go_on(ending, trie, tmp_path, capsys):
    output = tmp_path / "x.ngram"
    arguments = [trie, "--output", output, "--memory-mib", 1]
    mend = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.default_int_handler)}
    with run_python(SLOW, *arguments, **mend) as process:
        for line in process.stdout:
            if int(line) > 70_000:
                break
        process.send_signal(ending)
        _, error = process.communicate(timeout=120)
    assert process.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143}[ending], error
    assert "Traceback" not in error
    assert f"stays in {parts_folder(output)}: the same command goes on from there" in error
    assert main(["ngram", "import", *map(str, arguments)]) == 0
    error = capsys.readouterr().err
    assert "takes up to" in error and "100 %" in error and "n-grams" in error
    assert names(tmp_path) == ["x.ngram"]


# Memory


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
@pytest.mark.parametrize(("memory_mib", "enough"), [(1, True), (8, True), (64, False)])
def test_memory_is_bounded(memory_mib, enough, tmp_path):
    """Two million nodes, 32 MB as records, in 16 MiB of private memory: the merge's four or more
    MiB take the place of the sort buffer.
    """
    write_regular_trie(tmp_path / "x.trie", 126)
    code = """
        import resource, sys
        from dart_core.ngram import import_trie
        line = next(l for l in open("/proc/self/status") if l.startswith("VmData"))
        limit = int(line.split()[1]) * 1024 + (16 << 20)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        import_trie(sys.argv[1], sys.argv[2], 127, memory_mib=int(sys.argv[3]))
    """
    with run_python(code, tmp_path / "x.trie", tmp_path / "x.ngram", memory_mib) as process:
        _, error = process.communicate(timeout=300)
    assert (process.returncode == 0) == enough, error
    assert (tmp_path / "x.ngram").exists() == enough
    if enough:
        with NgramModel.open(tmp_path / "x.ngram") as model:
            assert model.entries == (126, 126**2, 126**3)


def write_regular_trie(path: Path, fan: int) -> None:
    """Order 3, every n-gram of tokens 1 to ``fan`` once, level by level."""
    size = [fan**depth for depth in range(4)]
    first = np.cumsum([0, *size])
    with open(path, "wb") as file:
        np.array([3, first[4]], dtype="<u8").tofile(file)
        for depth in range(4):
            children = fan if depth < 3 else 0
            records = np.zeros((size[depth], 6 + 3 * children), dtype="<u4")
            row = np.arange(size[depth])
            records[:, 0] = row % fan + 1 if depth else 0
            records[:, 1] = first[depth - 1] + row // fan if depth else 0
            records[:, 3] = 1
            records[:, 4] = children
            lists = records[:, 6:].reshape(size[depth], children, 3)
            lists[:, :, 0] = np.arange(1, children + 1)
            lists[:, :, 1] = first[depth + 1] + row[:, None] * fan + np.arange(children)
            records.tofile(file)
