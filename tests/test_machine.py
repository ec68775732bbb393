"""The machine under it: killed anywhere, disks that are full or read-only, clocks that jump, memory
that runs out in the middle, signals in every phase. Nothing half-written is ever read, and work
goes on.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import resource
import signal
import sys
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from recorded import recording
from safetensors.torch import load_file
from tiny_trio import make_trio, trio_flags

from app import replays
from app.recording import Recording
from dart_core import engine as engines
from dart_core import hub
from dart_core.batch import Batch, Share, read_records
from dart_core.cache import KVCache
from dart_core.cli import main
from dart_core.disk import disk_trouble, written_whole
from dart_core.engine import Engine, GenerationSettings
from dart_core.errors import ArenaError
from dart_core.heads import DartHead, load_dart_head, save_head
from dart_core.memory import OutOfMemory
from dart_core.ngram import open_published
from dart_core.references import Remote
from dart_core.report import write_json
from dart_core.target import Target
from dart_core.training.answers import AnswerSettings, _State
from dart_core.training.checkpoints import Checkpoint
from dart_core.training.features import FeatureCache, write_cache
from dart_core.training.watch import Journal
from tests.models import head_config, random_head, tiny_target

ROOT = Path(__file__).resolve().parent.parent
linux = pytest.mark.skipif(sys.platform != "linux", reason="limits and forks as Linux has them")


# Work that is killed, or finds the disk full ------------------------------------------------------


class Work:
    """Something that writes into ``folder``. ``run`` does it, or goes on with it; ``check`` looks
    at what is there as its readers do, at any time; ``whole`` says whether all of it is there.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.prepare()

    def prepare(self) -> None:
        """What is there before."""


class Answers(Work):
    """``batch``, by two processes one after the other."""

    def prepare(self) -> None:
        self.source, self.output = self.folder / "in.jsonl", self.folder / "out.jsonl"
        self.source.write_text("".join(f'{{"prompt": "{n}"}}\n' for n in range(5)))

    def run(self) -> None:
        for index in range(2):
            batch = Batch(self.source, self.output, Share(index, 2))
            try:
                for line in batch.pending:
                    text = f"answer {line.number} " * 20
                    batch.write({"line": line.number, "prompt": str(line.number - 1), "a": text,
                                 "new_tokens": 1, "verify_steps": 0, "tau": None,
                                 "decode_seconds": 0.0})  # fmt: skip
            finally:
                batch.finish()

    def check(self) -> None:
        for path in self.folder.glob("out.jsonl*"):
            if path.suffix not in (".lock", ".partial"):
                for record, _, _ in read_records(path):
                    assert record["a"] == f"answer {record['line']} " * 20

    def whole(self) -> bool:
        lines = [record["line"] for record, _, _ in read_records(self.output)]
        assert sorted(path.name for path in self.folder.iterdir()) == ["in.jsonl", "out.jsonl"]
        return lines == [1, 2, 3, 4, 5]


class Conversations(Work):
    """``train data``: batches of conversations, and how far they are."""

    def run(self) -> None:
        output = self.folder / "chat.jsonl"
        state = _State(output, AnswerSettings(conversations=6).lasting())
        while state.written < 6:
            records = [{"text": f"conversation {state.written + n} " * 9} for n in range(2)]
            state.add(records, dropped=0, seconds=1.0)

    def check(self) -> None:
        _State(self.folder / "chat.jsonl", AnswerSettings(conversations=6).lasting())

    def whole(self) -> bool:
        lines = (self.folder / "chat.jsonl").read_text().splitlines()
        return [json.loads(line)["text"].split()[1] for line in lines] == list("012345")


class Features(Work):
    """``train features``: shards of sequences."""

    def prepare(self) -> None:
        self.model = tiny_target("llama").model
        self.sequences = [FakeSequence(length) for length in (3, 4, 5)]

    def run(self) -> None:
        options = {"taps": (1, 2), "top_k": 4, "log": lambda line: None}
        write_cache(self.folder / "cache", self.model, self.sequences, **options)

    def check(self) -> None:
        if (self.folder / "cache" / "cache.json").exists():
            cache = FeatureCache(self.folder / "cache")
            for index in range(len(cache)):
                assert cache[index].tokens.tolist() == [7] * len(self.sequences[index].tokens)

    def whole(self) -> bool:
        return len(FeatureCache(self.folder / "cache")) == 3


class FakeSequence:
    def __init__(self, length: int):
        self.tokens = torch.full((length,), 7, dtype=torch.int32).numpy()
        self.supervised = torch.ones(length, dtype=torch.bool).numpy()


class Training(Work):
    """``train dart``: checkpoints, the head, the log."""

    is_main_process = True

    def prepare(self) -> None:
        self.step = 0
        target = tiny_target("llama")
        self.config = head_config(target, draft_length=2, draft_vocab_size=32)
        self.target_config = target.config

    def wait_for_everyone(self) -> None:
        """There is nobody else."""

    def save_state(self, folder: str) -> None:
        for name in ("model", "optimiser", "progress"):
            Path(folder).mkdir(exist_ok=True)
            torch.save({"step": self.step, "filler": torch.zeros(300)}, Path(folder, name))

    def load_state(self, folder: str) -> None:
        steps = {torch.load(Path(folder, name))["step"] for name in ("model", "optimiser")}
        steps.add(torch.load(Path(folder, "progress"))["step"])
        (self.step,) = steps  # of one moment, all of them

    def run(self) -> None:
        checkpoint = Checkpoint(self, self.folder)
        self.step = 0
        checkpoint.load()
        journal = Journal(self.folder, self.step, "curves")
        while self.step < 3:
            self.step += 1
            journal.add({"step": self.step, "loss": 1.0})
            checkpoint.save()
            journal.draw()
            save_head(self.head(self.step), self.folder)

    def head(self, step: int) -> DartHead:
        head = random_head(DartHead, self.config, seed=0)
        head.fc.weight.fill_(step)
        return head

    def check(self) -> None:
        Checkpoint(self, self.folder).load()
        if (self.folder / "config.json").exists():
            options = {"dtype": torch.float32, "device": "cpu"}
            head = load_dart_head(self.folder, target_config=self.target_config, **options)
            assert len(head.fc.weight.unique()) == 1
        elif (self.folder / "model.safetensors").exists():
            load_file(self.folder / "model.safetensors")

    def whole(self) -> bool:
        self.check()
        lines = (self.folder / "log.jsonl").read_text().splitlines()
        return self.step == 3 and [json.loads(line)["step"] for line in lines] == [1, 2, 3]


class Export(Work):
    """A recorded run and a report, over those of before."""

    def prepare(self) -> None:
        self.new = recording()
        self.old = Recording({**self.new.header, "prompt": "old"}, self.new.vocabulary,
                             self.new.events)  # fmt: skip
        for name in ("a.json", "a.json.gz"):
            self.old.save(self.folder / name)
        write_json({"text": "old" * 300}, str(self.folder / "report"))

    def run(self) -> None:
        for name in ("a.json", "a.json.gz"):
            self.new.save(self.folder / name)
        write_json({"text": "new" * 300}, str(self.folder / "report"))

    def check(self) -> None:
        for name in ("a.json", "a.json.gz"):
            assert Recording.load(self.folder / name).header["prompt"] in (
                "old", self.new.header["prompt"],
            )  # fmt: skip
        report = json.loads((self.folder / "report").read_text())["text"]
        assert report in ("old" * 300, "new" * 300)

    def whole(self) -> bool:
        prompts = [Recording.load(self.folder / name).header["prompt"]
                   for name in ("a.json", "a.json.gz")]  # fmt: skip
        return prompts == [self.new.header["prompt"]] * 2


WORKS = [Answers, Conversations, Features, Training, Export]


def died(work: Callable[[], None], at: int | None = None, most_bytes: int | None = None) -> bool:
    """Whether ``work``, in a child of this process, was killed: at its ``at``-th deed on a file
    (one that it opens to write is empty then), or in the middle of writing one longer than
    ``most_bytes``.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        pid = os.fork()
    if pid == 0:
        deeds = 0

        def kill(event: str, arguments: tuple) -> None:
            nonlocal deeds
            writes = event == "open" and isinstance(arguments[1], str) and arguments[1] != "r"
            changes = event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate")
            if writes or changes:
                deeds += 1
                if deeds == at:
                    if writes and "w" in arguments[1]:
                        open(arguments[0], "w").close()
                    os.kill(os.getpid(), signal.SIGKILL)

        try:
            torch.set_num_threads(1)  # the others stayed behind
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            if most_bytes is not None:
                signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
                resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, resource.RLIM_INFINITY))
            sys.addaudithook(kill)
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) in (signal.SIGKILL, signal.SIGXFSZ)
        return True
    assert status == 0
    return False


@linux
@pytest.mark.parametrize("kind", WORKS)
def test_killed_before_any_deed_it_goes_on(kind, tmp_path):
    """Every time a little later, each time going on with what was left."""
    work = kind(tmp_path)
    kills = 0
    while died(work.run, at=kills + 1):
        kills += 1
        work.check()
    assert kills >= 4
    assert work.whole()


@linux
@pytest.mark.parametrize("kind", WORKS)
def test_killed_twice_at_the_same_deed(kind, tmp_path):
    """What a kill leaves behind does not stop the next attempt."""
    work = kind(tmp_path)
    for _ in range(2):
        assert died(work.run, at=3)
        work.check()
    work.run()
    assert work.whole()


@linux
@pytest.mark.parametrize("kind", WORKS)
def test_killed_in_the_middle_of_writing(kind, tmp_path):
    work, most, kills = kind(tmp_path), 3, 0
    while died(work.run, most_bytes=most):
        work.check()
        most, kills = 8 * most, kills + 1
    assert kills >= 2
    assert work.whole()


@contextmanager
def no_room(most_bytes: int) -> Iterator[None]:
    """No file can grow beyond so many bytes: as on a full disk, but for the error's number."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@linux
@pytest.mark.parametrize("kind", WORKS)
def test_a_full_disk_is_told_and_loses_nothing(kind, tmp_path):
    work = kind(tmp_path)
    for most in (0, 150):
        told = rf"could not be written to {tmp_path}.*: the disk is full, .* are free: make room"
        with pytest.raises(ArenaError, match=told), no_room(most):
            work.run()
        work.check()
        assert not list(tmp_path.rglob("*.partial"))
        for answers in tmp_path.glob("out.jsonl*"):
            assert answers.read_bytes()[-1:] in (b"", b"\n")
    work.run()
    assert work.whole()


def test_a_part_that_is_still_written_to_stays(tmp_path):
    """Of two processes that try errors again the first one done leaves the other its file."""
    work = Answers(tmp_path)
    record = {"prompt": "x", "error": "no"}
    work.output.write_text("".join(
        json.dumps({"line": n, **record, "prompt": str(n - 1)}) + "\n" for n in range(1, 6)
    ))  # fmt: skip
    both = [Batch(work.source, work.output, Share(n, 2), retry_errors=True) for n in range(2)]
    figures = {"new_tokens": 1, "verify_steps": 0, "tau": None, "decode_seconds": 0.0}
    for n, batch in enumerate(both):
        batch.write({"line": 1 + n, "prompt": str(n), **figures})
    assert str(both[0].finish()).startswith("5 lines: 2 answered, 3 failed")
    both[1].write({"line": 4, "prompt": "3", **figures})
    assert str(both[1].finish()).startswith("5 lines: 3 answered, 2 failed")
    assert [record["line"] for record, _, _ in read_records(work.output)] == [1, 2, 3, 4, 5]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]


# What a disk says, in words -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "the disk is full"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "the disk is full"),
        (OSError(errno.EROFS, "Read-only file system"), "Read-only file system: make it one"),
        (PermissionError(errno.EACCES, "Permission denied"), "Permission denied: make it one"),
        (RuntimeError("Error while serializing: I/O error: (os error 28)"), "the disk is full"),
        (RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos"), "is full"),
        (OSError(errno.ENOENT, "No such file or directory"), None),
        (RuntimeError("shapes cannot be multiplied"), None),
    ],
)
def test_a_disks_troubles_in_words(error, says, tmp_path):
    told = disk_trouble(error, tmp_path / "not" / "there")
    assert (told is None) == (says is None)
    assert says is None or says in told


def test_what_cannot_be_made_whole_leaves_the_old(tmp_path):
    path = tmp_path / "x"
    path.write_text("old")

    def interrupted() -> None:
        with written_whole(path) as partial:
            partial.write_text("ne")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError(errno.EROFS, "Read-only file system"), "Read-only file system"),
        (OSError(errno.ENOSPC, "No space left on device"), "the disk is full"),
    ],
)
def test_a_hub_cache_that_takes_nothing_is_no_trouble_of_the_network(
    error, says, tmp_path, monkeypatch
):
    def refuse(*arguments, **options):
        raise error

    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(hub, "_ask", lambda *arguments: hub.Listing({}, 0, tmp_path))
    with pytest.raises(ArenaError) as caught:
        hub.fetch(Remote("owner/name"), "target", ["*"], print)
    message = str(caught.value)
    assert f"cannot be kept in the hub cache {tmp_path}: {says}" in message
    assert "HF_HOME" in message and "network" not in message


@pytest.mark.parametrize("damaged", [False, True])
def test_an_ngram_cache_that_is_read_only(damaged, tmp_path, monkeypatch):
    """What is converted in it already is opened; what cannot be made there is told."""
    source, cache = Path(__file__).parent / "golden/dart/trie/a_order3.trie", tmp_path / "cache"
    with open_published(source, cache=cache) as model:
        converted = model.path
    if damaged:
        converted.write_bytes(converted.read_bytes()[:-40])

    def refuse(*arguments, **options):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "unlink", refuse)
    monkeypatch.setattr(Path, "mkdir", refuse)
    if not damaged:
        open_published(source, cache=cache).close()
        return
    with pytest.raises(ArenaError, match=r"cannot be written to .*Read-only.*DART_ARENA_CACHE"):
        open_published(source, cache=cache)


# Signals, in every phase --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def flags(tmp_path_factory) -> list[str]:
    root = make_trio(tmp_path_factory.mktemp("trio"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DART_ARENA_CACHE", str(root / "cache"))
        yield [*trio_flags(root), "--dtype=float32", "--device=cpu", "--max-new-tokens=6"]


ENDINGS = {  # phase -> whose call it is in, and what ends it there
    "load": (engines, "load_models", signal.SIGTERM),
    "prefill": (Target, "prefill", signal.SIGINT),
    "generate": (Target, "verify", signal.SIGTERM),
}


@pytest.mark.parametrize("command", ["generate", "compare", "check", "batch", "bench"])
@pytest.mark.parametrize("phase", ENDINGS)
def test_a_signal_in_any_phase(command, phase, flags, engine, tmp_path, monkeypatch, capsys):
    """One line, the code that shells expect, what is done by then, and nothing half-done."""
    owner, name, ending = ENDINGS[phase]
    real, calls = getattr(owner, name), []
    at = {"load": 1, "prefill": 8, "generate": 40 if command == "compare" else 15}[phase]

    def signalled(*arguments, **options):
        calls.append(name)
        result = real(*arguments, **options)
        if len(calls) == at:
            signal.raise_signal(ending)
        return result

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, signalled)
        if phase != "load":
            patch.setattr(Engine, "load", lambda *arguments, **options: engine)
        source, output = tmp_path / "in.jsonl", tmp_path / "out"
        source.write_text("".join(f'{{"prompt": "Number {n}"}}\n' for n in range(12)))
        files = [str(source), str(output)]
        if command != "batch":
            files = ["--prompt-file", files[0], "--json", files[1]]
        numbers = (signal.SIGINT, signal.SIGTERM)
        handlers = [signal.getsignal(number) for number in numbers]
        assert main([command, *flags, *files]) == 128 + ending
        assert handlers == [signal.getsignal(number) for number in numbers]
        error = capsys.readouterr().err
        word = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}[ending]
        assert error.splitlines()[-1] == word
        assert "Traceback" not in error
    left = sorted(path.name for path in tmp_path.iterdir())
    if phase == "load":
        assert left == (["in.jsonl", "out"] if command == "batch" else ["in.jsonl"])
        return
    assert left == ["in.jsonl", "out"]
    if command == "batch":
        assert [record["line"] for record, _, _ in read_records(output)]
        monkeypatch.setattr(Engine, "load", lambda *arguments, **options: engine)
        assert main([command, *flags, *files, "--limit", "3"]) == 0  # it goes on
    else:
        data = json.loads(output.read_text())
        assert data["results" if command != "bench" else "interrupted"]


def test_a_second_sigterm_ends_a_command_at_once(flags, monkeypatch):
    """It would be heard no more if it fell into what the first one has begun."""
    seen = []

    def stubborn(*arguments, **options):
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            seen.append(signal.getsignal(signal.SIGTERM))

    monkeypatch.setattr("dart_core.engine.load_models", stubborn)
    assert main(["generate", *flags, "--prompt", "x"]) == 143
    assert seen == [signal.SIG_DFL]


# Memory that runs out in the middle ---------------------------------------------------------------


@pytest.fixture(scope="module")
def engine(flags) -> Engine:
    given = dict(flag.removeprefix("--").split("=", 1) for flag in flags)
    names = {"base": "target", "dart": "dart", "eagle3": "eagle3", "ngram": "ngram"}
    paths = {ours: given[f"{name}-model-name-or-path"] for name, ours in names.items()}
    return Engine.load(**paths, dtype=torch.float32, device="cpu")


CUDA_SAYS = "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 4 GiB"


@contextmanager
def short_of_memory(owner, name: str, at: int) -> Iterator[None]:
    """The ``at``-th call of a module's forward asks for more than there is."""
    real, calls = getattr(owner, name), []

    def forward(*arguments, **options):
        calls.append(1)
        if len(calls) == at:
            raise torch.OutOfMemoryError(CUDA_SAYS)
        return real(*arguments, **options)

    setattr(owner, name, forward)
    try:
        yield
    finally:
        delattr(owner, name)


@pytest.mark.parametrize("static", [False, True], ids=["", "static"])
@pytest.mark.parametrize("where", ["target", "head"])
@pytest.mark.parametrize("name", ["dart", "eagle3"])
def test_memory_that_runs_out_in_the_middle_leaves_the_next_run_whole(name, where, static, engine):
    prompt, settings = [5, 9, 23, 4], GenerationSettings(max_new_tokens=8)
    plain = engine.generate(prompt, "ar", settings).output_ids
    owner = engine.target.layers[-1] if where == "target" else engine.drafters[name].head
    if static:
        engine.target.use_static_shapes()
    try:
        for at in (1, 3):
            with short_of_memory(owner, "forward", at), pytest.raises(OutOfMemory) as caught:
                engine.generate(prompt, name, settings)
            assert "2.50 GiB more were asked for" in str(caught.value)
            assert engine.generate(prompt, name, settings).output_ids == plain
    finally:
        engine.target._static = None


def test_who_keeps_the_error_keeps_no_cache(engine, monkeypatch):
    """A notebook holds on to its last error, and with it to all that its frames hold."""
    caches: list[weakref.ref] = []
    real = KVCache.__init__

    def made(self, *arguments, **options):
        real(self, *arguments, **options)
        caches.append(weakref.ref(self))

    monkeypatch.setattr(KVCache, "__init__", made)
    last = engine.target.layers[-1]
    with short_of_memory(last, "forward", 3), pytest.raises(OutOfMemory) as caught:
        engine.generate([5, 9, 23], "dart", GenerationSettings(max_new_tokens=12))
    gc.collect()
    assert caches and all(cache() is None for cache in caches)
    assert isinstance(caught.value.__cause__, torch.OutOfMemoryError)


def test_a_drafter_that_finds_no_room_leaves_no_cache(engine, monkeypatch):
    closed = []
    real = KVCache.close
    monkeypatch.setattr(KVCache, "close", lambda self: (closed.append(1), real(self)))

    def fail(*arguments, **options):
        raise torch.OutOfMemoryError(CUDA_SAYS)

    monkeypatch.setattr(engine.drafters["dart"], "begin", fail, raising=False)
    with pytest.raises(OutOfMemory):
        engine.generate([5, 9, 23], "dart", GenerationSettings(max_new_tokens=4))
    assert closed == [1]


# Clocks that jump ---------------------------------------------------------------------------------


def test_no_time_is_measured_by_a_clock_that_may_jump():
    """``time.time`` only dates what is made, and files; time is measured by monotonic clocks."""
    dating = {"app/uploads.py", "dart_core/chat_format.py", "dart_core/server.py"}
    asked = {
        path.relative_to(ROOT).as_posix()
        for folder in ("app", "dart_core", "launch")
        for path in (ROOT / folder).rglob("*.py")
        if "time.time(" in path.read_text(encoding="utf-8")
    }
    assert asked <= dating


def test_a_jumping_clock_changes_nothing(engine, tmp_path, monkeypatch):
    """Back by a day, forth by a year: limits, waits and bars go on as they were."""
    from app.arena import Arena, Ask
    from app.controls import checked, controls
    from dart_core.progress import ProgressBar

    jumps = iter([0.0, 3e7, -8.64e4] * 10_000)
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + next(jumps))
    arena = Arena(engine, max_length=128, max_seconds=600)
    try:
        table = controls(arena.engines, max_length=128, max_new_tokens=8)
        settings = checked(table, {control.name: control.default for control in table})
        visit = arena.begin("visitor", Ask("Hello", settings))
        for _ in visit.paced(0.0):
            pass
        assert {lane.state for lane in visit.view.lanes.values()} == {"done"}
    finally:
        arena.close()
    lines: list[str] = []
    bar = ProgressBar("work", log=lines.append, seconds=0)
    bar.show(0.5, "half")
    assert 0 <= bar.left(1, 2) < 60
    assert lines == ["work 50 %, half"]


# A server's memory --------------------------------------------------------------------------------


def test_runs_are_read_one_at_a_time_in_one_thread(monkeypatch):
    """Else every thread that ever read a large one keeps as much memory as that took."""
    readers, inside = set(), threading.Lock()

    def load(path):
        assert inside.acquire(blocking=False)
        readers.add(threading.get_ident())
        time.sleep(0.01)
        inside.release()
        return path

    monkeypatch.setattr(Recording, "load", load)
    with ThreadPoolExecutor(8) as visitors:
        assert list(visitors.map(replays.read, range(20))) == list(range(20))
    assert len(readers) == 1
