"""Many prompts from one JSONL file, answered into another, through crashes and by many processes.

Every line of the input gets one line in the output, an answer or an error, in the input's order.
What is written stays: a run that was killed goes on behind its last whole line. Several processes
share the lines by their numbers; each appends to a part of its own beside the output, and whichever
finishes last puts the parts together.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from dart_core.disk import claim, disk_told, written_whole
from dart_core.errors import ArenaError
from dart_core.lfs import refuse_pointer
from dart_core.prompts import json_object

ECHOED = ("id", "prompt", "messages", "turns")  # of an input line, in its output line
OWN = {  # fields of a line that win over the batch's settings, and those settings' names
    **{name: name for name in ("temperature", "top_p", "top_k", "seed", "stop")},
    "max_tokens": "max_new_tokens",
    "max_completion_tokens": "max_new_tokens",
}
FIGURES = (
    "new_tokens", "verify_steps", "tau", "tokens_per_second", "decode_seconds", "total_seconds",
)  # fmt: skip
KEPT = ("error", *FIGURES)
OPENING = b'{"line": '  # of every output line
GO_ON = "the same command goes on from there"


@dataclass(frozen=True, slots=True)
class Share:
    """Which of ``count`` processes this one is, from 0; ``local`` counts on this machine alone."""

    index: int = 0
    count: int = 1
    local: int = 0

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] = os.environ) -> Share:
        """As accelerate, torchrun or MPI has started it. Raises ArenaError for variables that make
        no share: lines would be left out in silence.
        """

        def first(*names: str, default: int) -> int:
            for name in names:
                if name in environment:
                    if not re.fullmatch(r"\d{1,9}", value := environment[name]):
                        raise ArenaError(f"{name}={value!r:.60}: expected a number; {remedy}")
                    return int(value)
            return default

        remedy = "unset it, or start with accelerate launch, which sets what it takes"
        count = first("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", default=1)
        index = first("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", default=0)
        if not 0 <= index < count:
            raise ArenaError(
                f"the environment says process {index} of {count} (RANK, WORLD_SIZE or MPI's), "
                f"which are counted from 0: {remedy}"
            )
        local = first("LOCAL_RANK", "MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", default=index)
        return cls(index, count, local)


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the input that is not blank; numbers count all lines, from 1."""

    number: int
    text: bytes


@dataclass(slots=True)
class Totals:
    """What an output holds."""

    answered: int = 0
    failed: int = 0
    new_tokens: int = 0
    verified_tokens: float = 0.0
    verify_steps: int = 0
    decode_seconds: float = 0.0

    def add(self, record: Mapping[str, Any]) -> None:
        if "error" in record:
            self.failed += 1
            return
        self.answered += 1
        # Who has taken figures out of the answers may still go on with them.
        steps = record.get("verify_steps", 0)
        self.new_tokens += record.get("new_tokens", 0)
        self.verify_steps += steps
        self.verified_tokens += (record.get("tau") or 0.0) * steps
        self.decode_seconds += record.get("decode_seconds", 0.0)

    def __str__(self) -> str:
        told = (
            f"{self.answered + self.failed} lines: {self.answered} answered, {self.failed} failed"
        )
        if self.verify_steps:
            told += (
                f"; {self.new_tokens} new tokens, τ {self.verified_tokens / self.verify_steps:.2f}"
            )
        if self.decode_seconds:
            told += (
                f", {self.verified_tokens / self.decode_seconds:.1f} tok/s on the engine's clock"
            )
        return told


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a line's record stands, and its figures."""

    path: Path
    start: int
    length: int
    figures: dict[str, Any]

    @property
    def failed(self) -> bool:
        return "error" in self.figures


@dataclass(slots=True)
class _Scan:
    places: dict[int, _Place] = field(default_factory=dict)  # by line number
    ordered: bool = True  # the output alone holds them, in order, none twice


class Batch:
    """One process's share of a batch: which lines are still to do, and where answers go.

    settings: what the answers' texts depend on, by name, as JSON knows it; every answer holds them.
    Raises ArenaError where another process has this share, the output is not of this input, or it
    was begun with other settings. Lines that failed may be tried again with others.
    """

    def __init__(
        self,
        source: Path,
        output: Path,
        share: Share = Share(),
        *,
        limit: int | None = None,
        retry_errors: bool = False,
        settings: Mapping[str, Any] | None = None,
    ):
        self.settings = dict(settings or {})
        self.source, self.output, self.share = source, output, share
        self._given = {line.number: line for line in read_lines(source)}
        self.lines = list(self._given.values())[:limit]
        if output.exists() and output.samefile(source):
            raise ArenaError(f"{output} is the input itself: give the answers another file")
        self._lock = output.with_name(f"{output.name}.lock")
        own = output if share.count == 1 else _part(output, share)
        self._file = _claim(own)
        mine = [line for at, line in enumerate(self.lines) if at % share.count == share.index]
        places = self._scan().places
        self.pending = [
            line
            for line in mine
            if line.number not in places or (retry_errors and places[line.number].failed)
        ]
        self.done = len(mine) - len(self.pending)
        self.written = 0

    def write(self, record: Mapping[str, Any]) -> None:
        """Append a record; it is the system's, whole, before this returns. Raises ArenaError where
        the disk takes no more.
        """
        if self.settings and "error" not in record:
            given = _given(self._given[record["line"]])
            record = {**record, "settings": {**self.settings, **own_settings(given)}}
        text = json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"
        # A JSON escape may hold half a character: it is escaped again.
        rest = memoryview(text.encode(errors="backslashreplace"))
        with disk_told(f"the answer to line {record['line']}", self.output, GO_ON):
            before = self._file.seek(0, os.SEEK_END)
            try:
                while rest:  # a disk that runs full takes a part, and refuses the next
                    rest = rest[self._file.write(rest) :]
            except BaseException:
                self._file.truncate(before)
                raise
        self.written += 1

    def finish(self) -> Totals | None:
        """Close this share. Where every line has its record now, put them into the output, in
        order, and return the totals; None while other processes are at work, or have died. Raises
        ArenaError where one of another batch is writing the output.
        """
        if self.share.count > 1:
            self._file.close()  # a part: it may be removed
        try:
            scan = self._together()
        finally:
            self._file.close()
        if scan is None:
            return None
        totals = Totals()
        for place in scan.places.values():
            totals.add(place.figures)
        return totals

    def _together(self) -> _Scan | None:
        """What the output holds of all processes, in order; None while something is missing."""
        alone = self.share.count == 1
        with _locked(self._lock):
            scan = self._scan()
            complete = all(line.number in scan.places for line in self.lines)
            if complete and not scan.ordered:
                told = disk_told("the answers of all processes", self.output, GO_ON)
                # Who appends to it meanwhile would go on in a file that is replaced.
                with told, nullcontext() if alone else claim(self.output):
                    scan = self._scan()
                    self._merge(scan)
            if complete:
                _discard(_parts(self.output))
            if complete or alone:
                # Who waits for the lock finds everything in order: the file has done its work.
                self._lock.unlink(missing_ok=True)
        return scan if complete else None

    def _merge(self, scan: _Scan) -> None:
        # What a link names is replaced, not the link.
        with written_whole(self.output.resolve()) as partial, partial.open("wb") as whole:
            files = {place.path: place.path.open("rb") for place in scan.places.values()}
            for _, place in sorted(scan.places.items()):
                files[place.path].seek(place.start)
                whole.write(files[place.path].read(place.length))
            for file in files.values():
                file.close()
            whole.flush()
            os.fsync(whole.fileno())  # before the parts go

    def _scan(self) -> _Scan:
        """What is written by now, by all processes. A success wins over a failure."""
        scan, last = _Scan(), 0
        # Parts first: who puts them together writes the output before they go.
        for path in [*_parts(self.output), self.output]:
            with suppress(FileNotFoundError):
                for record, start, length in read_records(path):
                    self._check(record)
                    number = record["line"]
                    scan.ordered &= path == self.output and number > last
                    last = number
                    figures = {name: record[name] for name in KEPT if name in record}
                    known = scan.places.get(number)
                    if known is None or (known.failed and "error" not in record):
                        scan.places[number] = _Place(path, start, length, figures)
        return scan

    def _check(self, record: Mapping[str, Any]) -> None:
        """Raises ArenaError where a record does not answer the input's line of its number, or its
        settings are others than that would have now.
        """
        line = self._given.get(record["line"])
        given = {} if line is None else _given(line)
        echo = {name: record[name] for name in ECHOED if name in record}
        if line is None or any(given.get(name) != value for name, value in echo.items()):
            raise ArenaError(
                f"{self.output} has an answer to line {record['line']} of another input than "
                f"{self.source}: give another output, or remove it"
            )
        begun = record.get("settings")
        if not isinstance(begun, dict):  # older versions did not write them
            return
        own = own_settings(given)
        asked = {**self.settings, **own}
        others = [name for name, value in asked.items() if begun.get(name, value) != value]
        if others:
            was, now = (
                ", ".join(f"{name.replace('_', ' ')} {settings[name]!r}" for name in others)
                for settings in (begun, asked)
            )
            told = f"was begun with {was}; this command says {now}"
            if not own.keys().isdisjoint(others):
                told = f"has line {record['line']} with {was}; {self.source} now says {now}"
            raise ArenaError(f"{self.output} {told}: give the same, or another output")


def own_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """What a line of the input sets of its own, under the names and in the forms of a batch's
    settings; of two names the last of OWN wins, wherever it stands in the line.
    """
    own = {setting: given[name] for name, setting in OWN.items() if given.get(name) is not None}
    if isinstance(own.get("stop"), str):
        own["stop"] = [own["stop"]]
    if own.get("top_p") == 0:
        own["top_p"] = 1.0  # both are off
    return own


def _given(line: Line) -> dict[str, Any]:
    """A line's object; empty for one that holds none."""
    with suppress(ArenaError, UnicodeDecodeError):
        return json_object(line.text.decode())
    return {}


def require_input(path: Path) -> None:
    """Raises ArenaError for an input that cannot be read."""
    with _told(path):
        refuse_pointer(path)


def read_lines(path: Path) -> list[Line]:
    """The input's lines, as bytes: what is wrong in one is its own affair."""
    with _told(path):
        data = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    lines = [Line(number, text) for number, text in enumerate(data.split(b"\n"), 1) if text.strip()]
    if not lines:
        raise ArenaError(f"input {path} is empty; expected one JSON object a line")
    return lines


@contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ArenaError(f"input {path}: {error.strerror or error}") from error


def read_records(path: Path) -> Iterator[tuple[dict[str, Any], int, int]]:
    """The whole records of an output file, each with its place: start and length in bytes. A last
    line that is half written is left out.

    Raises ArenaError for a file that batch has not written.
    """
    start = 0
    with path.open("rb") as file:
        for number, text in enumerate(file, 1):
            try:
                record = json.loads(text) if text.endswith(b"\n") else None
            except ValueError:
                record = None
            if isinstance(record, dict) and isinstance(record.get("line"), int):
                yield record, start, len(text)
                start += len(text)
                continue
            half = not text.endswith(b"\n")
            if half and (start or text.startswith(OPENING[: len(text)])):
                return
            raise ArenaError(
                f"{path}, line {number}, is nothing that batch has written: give another output"
            )


def _part(output: Path, share: Share) -> Path:
    return output.with_name(f"{output.name}.part-{share.index:04d}")


def _parts(output: Path) -> list[Path]:
    return sorted(
        path
        for path in output.parent.iterdir()
        if path.name.startswith(f"{output.name}.part-") and path.name[-4:].isdigit()
    )


def _discard(parts: list[Path]) -> None:
    """Remove parts that nobody writes to: who tries errors again may, and will put it in later."""
    for part in parts:
        with suppress(FileNotFoundError, BlockingIOError), part.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            part.unlink()


def _claim(path: Path) -> BinaryIO:
    """The file, open for appending by this process alone, a half-written last line cut off."""
    file = claim(path)
    end = 0
    for _, start, length in read_records(path):
        end = start + length
    file.truncate(end)
    return file


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time, hosts that share the folder included."""
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
