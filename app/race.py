"""One visitor's run over several engines, by a fair clock, as a plain generator.

Every engine has a clock of its own that advances only by the seconds of its own steps, prefill
included. The engine whose clock is behind moves next, so all of them grow as if each had the device
alone, while their steps really interleave on the one device. Nothing here knows about pages,
threads or models: a lane is any iterator of steps.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING, Protocol

from dart_core.errors import ArenaError

if TYPE_CHECKING:
    from dart_core.step import Step

log = logging.getLogger(__name__)


class Detokenizer(Protocol):
    """Ids to text as they come; holds back half a character."""

    def push(self, ids: Sequence[int]) -> str: ...
    def finish(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Moved:
    """One step of one engine.

    pieces: the text each emitted token finished, "" while a character is still incomplete. clock:
    seconds of this engine's own steps so far, prefill included. tokens_per_second, tau: of the
    verify steps so far (NaN before the first one); the prefill and its token count in neither.
    """

    engine: str
    step: Step
    pieces: tuple[str, ...]
    clock: float
    tokens_per_second: float
    tau: float


@dataclass(frozen=True, slots=True)
class Ended:
    """One engine is done.

    reason: "stop" (end of text or a stop string), "length" (the budget), "stopped" (by the
    visitor), "deadline" or "error"; message: what to tell the visitor, "" where there is nothing to
    tell; tail: text that was still held.
    """

    engine: str
    reason: str
    message: str = ""
    tail: str = ""


@dataclass(frozen=True, slots=True)
class Judged:
    """Two engines' texts part, and the target was asked why.

    engine, other: the two engines; place: the first token that differs, from 0; status: "tie" (the
    target's own rounding explains it) or "DIFFERENT" (a bug); message: that in words.
    """

    engine: str
    other: str
    place: int
    status: str
    message: str


class Lane:
    """One engine's part in a race: its stream of steps, its clock and its running totals.

    ``open_stream`` is called when the engine first moves, so that its errors are this lane's own.
    """

    def __init__(
        self,
        engine: str,
        open_stream: Callable[[], Iterator[Step]],
        detokenizer: Detokenizer,
    ):
        self.engine = engine
        self.clock = 0.0
        self.tokens = 0
        self._open_stream = open_stream
        self._stream: Iterator[Step] | None = None
        self._detokenizer = detokenizer
        self._decode_seconds = 0.0
        self._decode_tokens = 0
        self._verify_steps = 0

    def move(self) -> Moved:
        """Take the engine's next step. Raises StopIteration after the last one, or whatever the
        engine raises.
        """
        if self._stream is None:
            self._stream = self._open_stream()
        step = next(self._stream)
        seconds = step.seconds.total
        self.clock += seconds
        self.tokens += len(step.tokens)
        if step.kind == "verify":
            self._verify_steps += 1
            self._decode_tokens += len(step.tokens)
            self._decode_seconds += seconds
        return Moved(
            engine=self.engine,
            step=step,
            pieces=tuple(self._detokenizer.push([token]) for token in step.tokens),
            clock=self.clock,
            tokens_per_second=_ratio(self._decode_tokens, self._decode_seconds),
            tau=_ratio(self._decode_tokens, self._verify_steps),
        )

    def end(self, reason: str, message: str = "") -> Ended:
        """Close the stream, which frees the engine's caches, and say why."""
        self.close()
        return Ended(self.engine, reason, message, tail=self._detokenizer.finish())

    def close(self) -> None:
        """Close the stream; closing twice does nothing, and an engine that fails to close is only
        logged.
        """
        stream, self._stream = self._stream, None
        close = getattr(stream, "close", None)
        if close is not None:
            try:
                close()
            except Exception:
                log.exception("%s failed while its stream was closed", self.engine)


def race(
    lanes: Sequence[Lane],
    *,
    stop: Event,
    at_once: bool = True,
    max_seconds: float = math.inf,
    max_tokens: float = math.inf,
    now: Callable[[], float] = time.monotonic,
) -> Iterator[Moved | Ended]:
    """Run the lanes to their ends and yield what happens, in the order it happens.

    at_once: the lane whose own clock is behind moves next (of equals, the first); otherwise one
    lane after the other. stop: checked before every step. max_seconds: real seconds for the whole
    run. max_tokens: per lane. A lane that fails ends with a message in words, and the others go on.
    All streams are closed when this generator ends or is closed.
    """
    running = list(lanes)
    deadline = now() + max_seconds
    try:
        while running:
            if stop.is_set():
                yield from [lane.end("stopped", "Stopped.") for lane in running]
                return
            if now() >= deadline:
                told = f"Ended at this page's limit of {max_seconds:g} seconds a run."
                yield from [lane.end("deadline", told) for lane in running]
                return
            lane = min(running, key=lambda lane: lane.clock) if at_once else running[0]
            ended = None
            try:
                moved = lane.move()
            except StopIteration:
                ended = lane.end("length")
            except Exception as error:
                if isinstance(error, MemoryError):
                    log.error("%s: %s", lane.engine, error)  # the operator's to mend
                elif not isinstance(error, ArenaError):  # that is the visitor's to mend
                    log.exception("%s failed", lane.engine)
                ended = lane.end("error", in_words(error))
            else:
                yield moved
                if moved.step.finish_reason:
                    ended = lane.end(moved.step.finish_reason)
                elif lane.tokens >= max_tokens:
                    told = f"Ended at this page's limit of {max_tokens:g} tokens a run."
                    ended = lane.end("deadline", told)
            if ended:
                running.remove(lane)
                yield ended
    finally:
        for lane in lanes:
            lane.close()


def in_words(error: BaseException) -> str:
    """An error as a sentence for a visitor: no traceback, no path of this machine."""
    if isinstance(error, MemoryError) or "out of memory" in str(error).lower():
        return "The device ran out of memory. A smaller tree budget or fewer new tokens may fit."
    if isinstance(error, ArenaError):
        return str(error)
    name = type(error).__name__
    return f"An internal error ended this engine ({name}). The server's log has the details."


def _ratio(part: float, whole: float) -> float:
    with suppress(ZeroDivisionError):
        return part / whole
    return math.nan
