"""A run on disk: everything the page was told, so that it can be shown again at true speed without
a model.

One JSON object: ``schema``, a header (when, facts of machine and models, settings, prompt,
baseline), the texts of all token ids that occur in trees, and the events in the order they
happened. The header is the file's first line, so that a list of many runs is soon made. A file may
come from anybody: reading is bounded, and whatever is wrong is one sentence.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from app.events import ENGINES, MAX_TOKEN, Event, event_to_json, events_from_json, weight
from app.fields import Damage, Fields, check_plain, is_text, shown
from app.race import Ended, Judged, Moved
from dart_core.disk import disk_told, written_whole
from dart_core.errors import ArenaError

SCHEMA = "dart-arena/run/1"
MAX_BYTES = 64 * 2**20  # of a file, and of what it unpacks to
MAX_HEADER = 4 * 2**20  # characters of a header as JSON
MAX_EVENTS = 100_000
MAX_PARTS = 20 * MAX_EVENTS  # objects and lists, which take far more memory than text
LEFT_OUT = "candidates_left_out"  # of a header: steps that were written without
TREES_CUT = "trees_cut"  # of a header: steps of whose tree the accepted path alone was written
GZIP_MAGIC = b"\x1f\x8b"
MAX_PROMPT_IDS = 2**20
MAX_VOCABULARY = 2**19  # no model has as many tokens


@dataclass(slots=True, weakref_slot=True)
class Recording:
    """One run. ``header`` is plain JSON data; ``vocabulary`` maps the token ids in trees to their
    texts.
    """

    header: dict[str, Any] = field(default_factory=dict)
    vocabulary: dict[int, str] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)

    @classmethod
    def of(
        cls, header: Mapping[str, Any], events: Iterable[Event], token_text: Callable[[int], str]
    ) -> Recording:
        """A run as it is recorded: with the texts of all tokens that its trees show."""
        events = list(events)
        tokens: set[int] = set()
        for step in (event.step for event in events if isinstance(event, Moved)):
            for nodes in (step.tree, step.candidates):
                if nodes is not None:
                    tokens.update(nodes.tokens.tolist())
            if step.bonus is not None:
                tokens.add(step.bonus)
        return cls(dict(header), {token: token_text(token) for token in sorted(tokens)}, events)

    def token_text(self, token: int) -> str:
        """The text of a token in a tree."""
        return self.vocabulary.get(token, "\ufffd")

    def weight(self) -> int:
        """About how many bytes of memory the run takes."""
        texts = sum(200 + 4 * len(text) for text in self.vocabulary.values())
        return texts + sum(map(weight, self.events))

    def save(self, path: str | Path) -> None:
        """Write the run as JSON, packed if the name ends in ``.gz``, whole or not at all."""
        data = self.to_text().encode()
        if Path(path).suffix == ".gz":
            data = gzip.compress(data, mtime=0)  # of one run always the same bytes
        with disk_told("the run", path), written_whole(path) as partial:
            partial.write_bytes(data)

    @classmethod
    def load(cls, path: str | Path) -> Recording:
        """Read a run, packed or not. Raises ArenaError for a file that is none, that is damaged or
        that is larger than MAX_BYTES.
        """
        name = Path(path).name
        text = _decode(_read(Path(path), MAX_BYTES), name)
        if text.count("[") + text.count("{") > MAX_PARTS:
            raise ArenaError(f"{name} has more parts than a recorded run may have, {MAX_PARTS}")
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ArenaError(f"{name} is not a recorded run: it is not JSON") from error
        return cls.from_json(data, name)

    def to_text(self) -> str:
        """The run as JSON text: a line for the header, one for the vocabulary, one per event.

        Of a run that would be too large to be loaded again, the last steps are written without what
        was pruned, and where that is not enough, without the drafts that were not accepted: the
        header counts them as ``candidates_left_out`` and ``trees_cut``.
        """
        vocabulary = _dump({str(token): text for token, text in self.vocabulary.items()})
        around = len((_dump(self.header) + vocabulary).encode()) + 200  # and names and brackets
        events, left_out = self._event_lines(MAX_BYTES - around)
        header = {"schema": SCHEMA, **self.header}
        for name, count in left_out.items():
            if count:
                header[name] = count + header.get(name, 0)
        head, lines = _dump(header), ",\n".join(events)
        return f'{head[:-1]},\n"vocabulary":{vocabulary},\n"events":[\n{lines}\n]}}\n'

    def _event_lines(self, most: int) -> tuple[list[str], dict[str, int]]:
        """Every event as JSON; and how many, from the last on, are without some of it for all to
        take ``most`` bytes, by the header's names.
        """
        lines = [_dump(event_to_json(event)) for event in self.events]
        size = sum(len(line.encode()) + 2 for line in lines)
        left_out = {LEFT_OUT: 0, TREES_CUT: 0}
        for name, without in ((LEFT_OUT, _without_candidates), (TREES_CUT, _without_drafts)):
            for place in range(len(lines) - 1, -1, -1):
                if size > most and (bare := without(self.events[place])):
                    size -= len(lines[place].encode())
                    lines[place] = _dump(event_to_json(bare))
                    size += len(lines[place].encode())
                    left_out[name] += 1
        return lines, left_out

    @classmethod
    def from_json(cls, data: Any, name: str = "this file") -> Recording:
        """The run in ``data``. Raises ArenaError if it is none of this schema, or not whole."""
        header = _header(data, name)
        try:
            fields = Fields(data, "the run")
            events = events_from_json(fields.items("events", MAX_EVENTS), header["engines"])
            return cls(header, _vocabulary(fields.fields("vocabulary")), events)
        except Damage as damage:
            raise ArenaError(_damaged(name, damage)) from damage


def read_header(path: str | Path) -> dict[str, Any]:
    """The header of a recorded run, without reading the run where it is the file's first line.

    Raises ArenaError as ``Recording.load`` does.
    """
    name = Path(path).name
    line, _, rest = _read(Path(path), MAX_HEADER, whole=False).partition(b"\n")
    if rest and line.rstrip().endswith(b","):
        try:
            return _header(json.loads(_decode(line, name).rstrip().rstrip(",") + "}"), name)
        except (ValueError, RecursionError):
            pass  # spelled by somebody else, or no run at all: the whole of it will tell
    return Recording.load(path).header


def replay(
    recording: Recording,
    *,
    speed: float = 1.0,
    max_seconds: float = math.inf,
    stop: threading.Event | None = None,
    now: Callable[[], float] = time.monotonic,
) -> Iterator[Event]:
    """The recorded events, each when its engine's own clock says so, ``speed`` times as fast as it
    was; ``math.inf`` waits for nothing.

    max_seconds: real ones, after which all engines end. stop: ends them at once, also while this
    waits. An engine whose end was not recorded is ended with its last event.
    """
    if not speed > 0:
        raise ArenaError(f"a replay's speed is a number above 0, not {speed:g}")
    stop = stop or threading.Event()
    engines = dict.fromkeys(recording.header.get("engines", ()))
    engines |= dict.fromkeys(event.engine for event in recording.events)
    started = now()
    for due, event in _by_clock(recording.events):
        until = started + min(due / speed, max_seconds)
        while not stop.is_set() and (wait := until - now()) > 0:
            stop.wait(min(wait, threading.TIMEOUT_MAX))
        if stop.is_set():
            yield from (Ended(engine, "stopped", "Stopped.") for engine in engines)
            return
        if due / speed > max_seconds:
            told = f"Ended at this page's limit of {max_seconds:g} seconds a run."
            yield from (Ended(engine, "deadline", told) for engine in engines)
            return
        if isinstance(event, Ended):
            engines.pop(event.engine, None)
        yield event
    yield from (Ended(engine, "stopped", "The recording ends here.") for engine in engines)


def _by_clock(events: list[Event]) -> list[tuple[float, Event]]:
    """Events with the second they are due: a move at its engine's clock, an end with the last move,
    a verdict once both texts hold the token it is about; what followed the last move of all keeps
    its order.
    """
    last_move = max((n for n, event in enumerate(events) if isinstance(event, Moved)), default=-1)
    clocks: dict[str, float] = {}
    emitted: dict[str, list[float]] = {}  # engine: the clock at each of its tokens
    timed, latest = [], 0.0
    for place, event in enumerate(events):
        if isinstance(event, Moved):
            clocks[event.engine] = due = event.clock
            emitted.setdefault(event.engine, []).extend([due] * len(event.step.tokens))
        elif isinstance(event, Judged):
            due = max(emitted[engine][event.place] for engine in (event.engine, event.other))
        else:
            due = clocks.get(event.engine, 0.0)
        if place > last_move:
            latest = due = max(latest, due)
        timed.append((due, event))
    return sorted(timed, key=lambda pair: pair[0])  # stable: an engine's own order stays


def _read(path: Path, most: int, *, whole: bool = True) -> bytes:
    """The unpacked bytes of a file, ``most`` of them at most: more is an error if all is wanted."""
    if path.exists() and not (path.is_file() or path.is_dir()):  # to open a pipe waits for a writer
        raise ArenaError(f"cannot read {path.name}: it is a pipe or a device")
    try:
        with path.open("rb") as file:
            packed = file.read(2) == GZIP_MAGIC
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            if size <= MAX_BYTES:
                data = (gzip.GzipFile(fileobj=file) if packed else file).read(most + 1)
    except (OSError, EOFError, zlib.error) as error:
        if reason := getattr(error, "strerror", None):  # the disk's; gzip's have none
            raise ArenaError(f"cannot read {path.name}: {reason}") from error
        raise ArenaError(f"{path.name} is damaged: it cannot be unpacked") from error
    if size > MAX_BYTES or (whole and len(data) > most):
        raise ArenaError(
            f"{path.name} is too large for a recorded run: the limit is {MAX_BYTES >> 20} MB, "
            "unpacked"
        )
    return data


def _without_candidates(event: Event) -> Event | None:
    """The event without what was pruned; None where there is nothing of it."""
    if not isinstance(event, Moved) or event.step.candidates is None:
        return None
    return replace(event, step=replace(event.step, candidates=None))


def _without_drafts(event: Event) -> Event | None:
    """The event with the accepted path alone; None where that is all there is."""
    if not isinstance(event, Moved) or event.step.tree is None:
        return None
    step, tree = event.step, event.step.tree
    if len(tree) == len(step.path):
        return None
    cut = tree.cut_to(np.array(step.path))
    path = tuple(range(len(step.path)))
    return replace(event, step=replace(step, tree=cut, path=path, candidates=None))


def _decode(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ArenaError(f"{name} is not a recorded run: it is no text") from error


def _dump(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _damaged(name: str, damage: Damage) -> str:
    return f"{name} is a damaged recording: {damage}"


def _header(data: Any, name: str) -> dict[str, Any]:
    """The checked header of a run. Raises ArenaError."""
    schema = data.get("schema") if isinstance(data, dict) else data
    if schema != SCHEMA:
        raise ArenaError(
            f"{name} is not a recorded run: expected the schema {SCHEMA!r}, found {shown(schema)}"
        )
    header = {key: data[key] for key in data if key not in ("schema", "vocabulary", "events")}
    try:
        if len(json.dumps(header)) > MAX_HEADER:
            raise Damage("its header is larger than a whole run")
        _check_header(Fields(header, "the header"))
        check_plain(header, "the header")
    except Damage as damage:
        raise ArenaError(_damaged(name, damage)) from damage
    return header


def _check_header(fields: Fields) -> None:
    """Raise Damage unless the page can show this header; names it does not know are let pass."""
    engines = fields.texts("engines", len(ENGINES))
    if not engines or not set(engines) <= set(ENGINES) or len(set(engines)) < len(engines):
        raise fields.wrong("engines", f"a list of different ones of {', '.join(ENGINES)}")
    for name in ("created", "prompt"):
        fields.text(name)
    fields.flag("at_once")
    for name in (LEFT_OUT, TREES_CUT):
        if name in fields:
            fields.whole(name)
    fields.wholes("prompt_ids", MAX_PROMPT_IDS, high=MAX_TOKEN)
    for turn in fields.items("turns", MAX_EVENTS):
        if not isinstance(turn, list) or len(turn) != 2 or not all(map(is_text, turn)):
            raise fields.wrong("turns", "a list of pairs of texts")
    if fields.take("baseline") is not None:
        baseline = fields.fields("baseline")
        baseline.real("tokens_per_second", 1e-6)
        baseline.text("source")
        if len(baseline.data) > 2:
            raise fields.wrong("baseline", "a rate and its source")
    facts = fields.fields("facts")
    for name in ("target", "dart", "eagle3", "ngram", "device", "device_name", "dtype",
                 "not_applied"):  # fmt: skip
        if name in facts:
            facts.text(name)
    if "versions" in facts:
        versions = facts.fields("versions")
        for name in versions.data:
            versions.text(name)
    _check_settings(fields.fields("settings"))


def _check_settings(settings: Fields) -> None:
    if settings.real("temperature", high=100.0) > 0:
        settings.whole("seed")
    settings.real("top_p", high=1.0)
    settings.whole("top_k")
    for name in ("max_new_tokens", "max_length", "tree_budget", "beam", "eagle3_depth",
                 "eagle3_top_k", "prompt_lookup", "seed"):  # fmt: skip
        if name in settings:
            settings.whole(name)
    if "auto_budget" in settings:
        settings.flag("auto_budget")
    if "ngram" in settings and settings.text("ngram") != "off":
        settings.real("ngram_weight", high=100.0)


def _vocabulary(fields: Fields) -> dict[int, str]:
    if len(fields.data) > MAX_VOCABULARY:
        raise Damage(f"a vocabulary of more than {MAX_VOCABULARY} tokens")
    vocabulary = {}
    for key in fields.data:
        if not (key.isascii() and key.isdecimal() and len(key) <= 10 and int(key) <= MAX_TOKEN):
            raise Damage(f"{shown(key)} in the vocabulary is no token id")
        vocabulary[int(key)] = fields.text(key)
    return vocabulary
