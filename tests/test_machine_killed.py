"""Work that is killed anywhere, or finds the disk full: nothing half-written is ever read, and the
work goes on.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from recorded import recording
from safetensors.torch import load_file

from app.recording import Recording
from dart_core.batch import Batch, Share, read_records
from dart_core.errors import ArenaError
from dart_core.heads import DartHead, load_dart_head, save_head
from dart_core.report import write_json
from dart_core.training.answers import AnswerSettings, _State
from dart_core.training.checkpoints import Checkpoint
from dart_core.training.features import FeatureCache, cache_settings, write_cache
from dart_core.training.watch import Journal
from tests.models import head_config, random_head, tiny_target

linux = pytest.mark.skipif(sys.platform != "linux", reason="limits and forks as Linux has them")


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
        settings = cache_settings(self.model, self.sequences, target="tiny", taps=(1, 2), top_k=4)
        write_cache(
            self.folder / "cache", self.model, self.sequences, settings, log=lambda line: None
        )

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
