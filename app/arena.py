"""What lies behind the page: the engine, the thread that runs it, and the runs of the page's
visitors.

Without an engine it still replays recorded runs, and then nothing here needs torch.
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from app.controls import SLOTS
from app.events import weight
from app.facts import facts_of
from app.race import Ended, Judged, Lane, Moved, race
from app.recording import Recording, replay
from app.runner import Job, Run, Runner
from app.view import Baseline, RunView
from dart_core.errors import ArenaError
from dart_core.names import told_facts

if TYPE_CHECKING:
    from dart_core.check import Verdict
    from dart_core.engine import Engine, GenerationSettings
    from dart_core.sampling import SamplingParams
    from dart_core.step import Step

log = logging.getLogger(__name__)

RACERS = ("dart", "eagle3")
DRAFT_KNOBS = (
    "tree_budget", "auto_budget", "ngram", "ngram_weight", "beam", "eagle3_depth", "eagle3_top_k",
    "prompt_lookup", "candidates",
)  # fmt: skip
SAMPLING_KNOBS = ("temperature", "top_k", "top_p", "seed")
KEPT_RUNS = 24  # whose trees can still be asked for, once they are over
KEPT_BYTES = 256 * 2**20  # of them all, about
KEPT_EACH = 6  # of them of one session: nobody's runs displace everybody's
OTHERS = 3  # times what it takes to show a run once, until it is shown again
LONGEST_PAUSE = 5.0  # seconds of that: a run that nobody looks at is soon taken for abandoned
WARM_UP_PROMPT = (
    "Explain in a few sentences how a lighthouse works and why it was built by the sea."
)
WARM_UP_TOKENS = {"dart": 16, "eagle3": 16, "ar": 32}
WARM_UP_SECONDS = 4.0  # per engine: a slow machine must not wait for its page

Event = Moved | Ended | Judged


@dataclass(frozen=True, slots=True)
class Order:
    """What a device is asked to run: plain values, for the device may be another process's.

    settings: GenerationSettings. The rest: see ``race``.
    """

    prompt_ids: Sequence[int]
    settings: Any
    engines: Sequence[str]
    at_once: bool
    max_seconds: float


@dataclass(frozen=True, slots=True)
class Ask:
    """What a visitor asks for: a prompt, the (prompt, answer) pairs before it, and the settings of
    ``controls.checked``.
    """

    prompt: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    turns: tuple[tuple[str, str], ...] = ()

    @property
    def engines(self) -> list[str]:
        """Who runs, in the order of the panels."""
        return [self.settings[slot] for slot in SLOTS if self.settings.get(slot)]

    @property
    def at_once(self) -> bool:
        return self.settings["mode"] == "at-once"

    def messages(self) -> list[dict[str, str]]:
        """The conversation as chat messages, the prompt last."""
        messages = []
        for prompt, answer in self.turns:
            messages.append({"role": "user", "content": prompt})
            messages.append({"role": "assistant", "content": answer})
        return [*messages, {"role": "user", "content": self.prompt}]


class Visit:
    """One visitor's run: the device's side and the page's side, kept in step.

    ``start`` sets the run going once it is watched: a run whose page was lost while it began never
    comes to the device. held: about how many bytes are kept with it, 0 for what is shown alone.
    """

    def __init__(
        self,
        session: str,
        run: Run[Event],
        start: Callable[[Run[Event]], None],
        view: RunView,
        header: dict[str, Any],
        held: int = 0,
    ):
        self.session = session
        self.view = view
        self.header = header  # of the run's recording
        self.left = False  # cleared, or another run was begun: nothing more of it is shown
        self.done = False  # it has ended, and the view has all of it
        self._run = run
        self._start = start
        self._held = held
        self._started = threading.Lock()  # taken by who starts or ends it
        self._lock = threading.Lock()
        self._unwatched = threading.Event()
        self._unwatched.set()

    @property
    def watched(self) -> bool:
        """Somebody is in ``paced``."""
        return not self._unwatched.is_set()

    @property
    def over(self) -> bool:
        """The run has ended, and nobody waits to see the rest of it."""
        return self._run.ended.is_set() and not self.watched

    @cached_property
    def weight(self) -> int:
        """About how many bytes a run takes that is over."""
        return self._held or sum(map(weight, self.view.events))

    @property
    def failed(self) -> Exception | None:
        return self._run.error

    @property
    def conversation(self) -> tuple[tuple[str, str], ...]:
        """The (prompt, answer) pairs so far, this run's included once it has a text."""
        turns = tuple((prompt, answer) for prompt, answer in self.view.turns)
        answer = self.view.answer()
        return (*turns, (self.view.prompt, answer)) if answer else turns

    def advance(self, wait: float) -> None:
        """Show what has happened by now; wait up to ``wait`` seconds for something to happen."""
        with self._lock:
            for event in self._run.drain(wait):
                self.view.take(event)
            self.done = self._run.done
            self.view.judging = not self.done

    def paced(self, pace: float) -> Iterator[None]:
        """Advance until the run is over, at most once per ``pace`` seconds, and no more often than
        leaves most of the time to others, however much there is to show. Its end is left to the
        caller: shown here too, it would come a second time, over what the page says by then.
        """
        self._unwatched.clear()
        if self._started.acquire(blocking=False):
            self._start(self._run)
        try:
            while True:
                began = time.monotonic()
                self.advance(wait=0.25)
                if self.done:
                    return
                told = time.monotonic()
                yield
                now = time.monotonic()
                time.sleep(max(pace - (now - began), min(OTHERS * (now - told), LONGEST_PAUSE)))
        finally:
            self._unwatched.set()

    def stop(self) -> None:
        """Ask the device to end the run after its present step; returns at once."""
        self._run.stop.set()
        if self._started.acquire(blocking=False):
            self._run.execute()  # which says that it was stopped

    def leave(self) -> None:
        """Stop, and show nothing more of this run."""
        self.left = True
        self.stop()

    def settle(self, timeout: float = 60.0) -> None:
        """Wait for the end of a stopped run, and of who watches it, and show all of it; of a run
        that was left the end does not matter.
        """
        deadline = time.monotonic() + timeout
        while not (self.done or self.left) and time.monotonic() < deadline:
            self.advance(wait=0.05)
        self._unwatched.wait(max(0.0, deadline - time.monotonic()))  # what comes next is the last
        self.advance(wait=0.0)


class Arena:
    """One engine, one device thread, and everybody's runs.

    engine: None for a page of recorded runs alone; absence: why, in words for visitors. max_length:
    tokens of prompt and answer together. max_seconds: real seconds for one run. ``device`` is who
    turns orders into events, at first this process.
    """

    def __init__(
        self,
        engine: Engine | None = None,
        *,
        runner: Runner | None = None,
        max_length: int = 2048,
        max_seconds: float = 600.0,
        absence: str = "no model is loaded",
    ):
        self.engine = engine
        self.absence = absence
        self.device: Callable[[Order, threading.Event], Iterator[Event]] = self.run
        self.max_length = max_length
        self.max_seconds = max_seconds
        self.baseline: Baseline | None = None
        self.runner = runner or Runner()
        self._visits: dict[str, Visit] = {}  # run -> visit, the newest last
        self._lock = threading.Lock()

    @property
    def _loaded(self) -> Engine:
        if self.engine is None:
            raise ArenaError(self.absence)
        return self.engine

    @property
    def engines(self) -> tuple[str, ...]:
        """The loaded engines, in the order their panels prefer."""
        loaded = self.engine.drafters if self.engine else ()
        return tuple(engine for engine in (*RACERS, "ar") if engine in loaded)

    @property
    def ngrams(self) -> tuple[str, ...]:
        """The loaded n-grams, the default first."""
        return tuple(self.engine.ngrams) if self.engine else ()

    @property
    def thinks(self) -> bool:
        """Whether the target has a thinking mode."""
        return bool(self.engine and self.engine.thinks)

    @property
    def facts(self) -> dict[str, Any]:
        """What is loaded, where and in what precision, in words for visitors."""
        return told_facts(self.engine.facts) if self.engine else {}

    def begin(self, session: str, ask: Ask) -> Visit:
        """One visitor's run, which starts once it is watched. Raises ArenaError for a prompt the
        engine cannot take.
        """
        settings = dict(ask.settings)
        sampled = settings["temperature"] > 0
        if sampled and settings["seed"] is None:
            settings["seed"] = secrets.randbelow(2**31)
        prompt_ids = self._loaded.chat_ids(
            ask.messages(), enable_thinking=settings.get("thinking", False)
        )
        order = Order(
            prompt_ids, self._generation(settings), ask.engines, ask.at_once, self.max_seconds
        )
        header = {
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "facts": self.facts,
            "settings": {**settings, "max_length": self.max_length},
            "engines": ask.engines,
            "at_once": ask.at_once,
            "turns": [list(turn) for turn in ask.turns],
            "prompt": ask.prompt,
            "prompt_ids": list(prompt_ids),
            "baseline": self.baseline and asdict(self.baseline),
        }
        view = self._view(header, self.token_text)
        run = Run(self._job(order))
        return self._remember(Visit(session, run, self.runner.take, view, header))

    def begin_replay(self, session: str, recording: Recording, speed: float = 1.0) -> Visit:
        """Show a recorded run again, ``speed`` times as fast as it was; no device is needed."""

        def job(stop: threading.Event) -> Iterator[Event]:
            return replay(recording, speed=speed, max_seconds=self.max_seconds, stop=stop)

        def start(run: Run[Event]) -> None:
            threading.Thread(target=run.execute, name="arena-replay", daemon=True).start()

        view = self._view(recording.header, recording.token_text, replayed=True)
        return self._remember(
            Visit(session, Run(job), start, view, recording.header, recording.weight())
        )

    def _view(
        self, header: Mapping[str, Any], token_text: Callable[[int], str], replayed: bool = False
    ) -> RunView:
        settings, baseline = header.get("settings", {}), header.get("baseline")
        return RunView(
            secrets.token_urlsafe(12),
            header["engines"],
            token_text,
            baseline=Baseline(**baseline) if baseline else None,
            seed=settings.get("seed") if settings.get("temperature") else None,
            prompt=header.get("prompt", ""),
            turns=header.get("turns", ()),
            facts=facts_of(header, replayed=replayed),
            replayed=replayed,
        )

    def _remember(self, visit: Visit) -> Visit:
        """Keep a new run, which is its session's latest from now on."""
        with self._lock:
            before = self._newest(visit.session)
            self._visits[visit.view.run] = visit
            self._forget(visit.session)
        if before:  # a replay, say: both would take turns on the page
            before.leave()
        return visit

    def _forget(self, session: str) -> None:
        """Forget old runs that are over, and the largest of them before many others; those under
        way are as few as the page's queue lets run at once.
        """
        over = [visit for visit in self._visits.values() if visit.over]
        theirs = [visit for visit in over if visit.session == session]
        old = {*over[:-KEPT_RUNS], *theirs[:-KEPT_EACH]}
        kept = [visit for visit in over if visit not in old]
        while sum(visit.weight for visit in kept) > KEPT_BYTES:
            largest = max(kept, key=lambda visit: visit.weight)
            kept.remove(largest)
            old.add(largest)
        for visit in old:
            del self._visits[visit.view.run]

    def latest(self, session: str) -> Visit | None:
        """The latest run of a session, over or not."""
        with self._lock:
            return self._newest(session)

    def _newest(self, session: str) -> Visit | None:
        visits = reversed(self._visits.values())
        return next((visit for visit in visits if visit.session == session), None)

    def finished(self, run: str) -> bool:
        """Whether a run is kept, and all of it was shown."""
        visit = self._visits.get(run)
        return visit is not None and visit.done

    def conversation(self, run: str) -> tuple[tuple[str, str], ...]:
        """The (prompt, answer) pairs up to a run's. Raises ArenaError if it is not kept."""
        visit = self._visits.get(run)
        if visit is None:
            raise ArenaError("This conversation is no longer kept: press Run to begin another.")
        return visit.conversation

    def tree(self, run: str, engine: str, step: int) -> str:
        """One step's tree of a recent run as JSON text, "" if it is not kept."""
        visit = self._visits.get(run)
        return visit.view.tree(engine, step) if visit else ""

    def text(self, run: str, engine: str) -> str:
        """The answer of one engine in a recent run, "" if it is not kept."""
        visit = self._visits.get(run)
        lane = visit.view.lanes.get(engine) if visit else None
        return lane.text if lane else ""

    def recording(self, run: str) -> Recording | None:
        """A recent run as a recording: what its visitor was shown, so far."""
        visit = self._visits.get(run)
        if visit is None:
            return None
        view = visit.view
        return Recording.of(visit.header, list(view.events), view.token_text)

    def run(self, order: Order, stop: threading.Event) -> Iterator[Event]:
        """Race on an order's prompt, in this process, and judge where texts part."""

        def lane(engine: str) -> Lane:
            return Lane(
                engine,
                lambda: self._loaded.stream(
                    order.prompt_ids, engine=engine, settings=order.settings
                ),
                self._loaded.detokenizer(),
            )

        if order.settings.draft.auto_budget and not stop.is_set():
            _ = self._loaded.verify_cost  # measured now if it was not: before any clock runs
        steps: dict[str, list] = {engine: [] for engine in order.engines}
        for event in race(
            [lane(engine) for engine in order.engines],
            stop=stop,
            at_once=order.at_once,
            max_seconds=order.max_seconds,
            max_tokens=order.settings.max_new_tokens,
        ):
            if isinstance(event, Moved):
                steps[event.engine].append(event.step)
            yield event
        if not stop.is_set():
            yield from self._judge(order.prompt_ids, steps, order.settings.sampling)

    def warm_up(self, say: Callable[[str], None] = lambda line: None) -> None:
        """Run every engine once, so that no visitor pays for first times, and measure plain
        decoding's rate.
        """
        rates = {}
        for order in self.warm_ups():
            (engine,) = order.engines
            run = self.runner.start(self._job(order))
            run.ended.wait()
            if run.error is not None:
                raise run.error
            for event in run.drain():
                if isinstance(event, Moved):
                    rates[engine] = event.tokens_per_second
                elif isinstance(event, Ended) and event.reason == "error":
                    say(f"warm-up of {engine} failed: {event.message}")
        told = {name: rate for name, rate in rates.items() if math.isfinite(rate)}
        if told:  # an answer of one token has no rate
            say(
                "warm-up: "
                + ", ".join(f"{name} {rate:.1f} tokens/s" for name, rate in told.items())
            )
        if rates.get("ar", 0) > 0:
            self.baseline = Baseline(rates["ar"], "plain decoding at warm-up on this machine")

    def warm_ups(self) -> Iterator[Order]:
        """A short run of every engine."""
        prompt_ids = self._loaded.chat_ids([{"role": "user", "content": WARM_UP_PROMPT}])
        for engine, tokens in WARM_UP_TOKENS.items():
            if engine in self._loaded.drafters:
                settings = self._generation({"max_new_tokens": tokens, "auto_budget": True})
                yield Order(prompt_ids, settings, [engine], True, WARM_UP_SECONDS)

    @lru_cache(maxsize=65536)  # noqa: B019  one arena lives as long as the process
    def token_text(self, token: int) -> str:
        """The text of a single token, for labels."""
        return self._loaded.tokenizer.decode([token])

    def close(self) -> None:
        """End the run under way and the device thread."""
        self.runner.close()

    def _job(self, order: Order) -> Job[Event]:
        return lambda stop: self.device(order, stop)

    def _judge(
        self,
        prompt_ids: Sequence[int],
        steps: Mapping[str, list[Step]],
        sampling: SamplingParams,
    ) -> Iterator[Judged]:
        """Ask the target why texts part, where two of them do: plain decoding is the measure if it
        took part, else the first panel.
        """
        texts = {engine: [t for step in run for t in step.tokens] for engine, run in steps.items()}
        measure = "ar" if "ar" in texts else next(iter(texts))
        for engine, tokens in texts.items():
            pairs = zip(texts[measure], tokens, strict=False)
            place = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
            if place is None:
                continue
            try:
                verdict = self._loaded.judge(prompt_ids, steps[measure], steps[engine], sampling)
            except Exception:
                log.exception("the divergence of %s from %s could not be judged", engine, measure)
                continue
            yield Judged(engine, measure, place, verdict.status, self._reason(verdict, sampling))

    def _reason(self, verdict: Verdict, sampling: SamplingParams) -> str:
        if verdict.gap is None or verdict.difference is None:
            return verdict.reason
        here, there = (self.token_text(token) for token in (verdict.found, verdict.expected))
        figures = (
            f"it scores “{there}” and “{here}” {abs(verdict.gap):.2g} apart, and the two ways of "
            f"computing them differ by {verdict.difference:.2g}"
        )
        drawn = "" if sampling.greedy else ", with this seed's noise"
        if verdict.status == "tie":
            dtype = self._loaded.facts.get("dtype", "this precision")
            return f"a rounding tie in the target, usual in {dtype}: {figures}{drawn}."
        return (
            f"that is a bug, not rounding: {figures}{drawn}. Please report it with this run's "
            "download."
        )

    def _generation(self, settings: Mapping[str, Any]) -> GenerationSettings:
        from dart_core.drafters import DraftSettings  # torch: only where an engine runs
        from dart_core.engine import GenerationSettings
        from dart_core.sampling import SamplingParams

        draft = {name: settings[name] for name in DRAFT_KNOBS if name in settings}
        sampling = {name: settings[name] for name in SAMPLING_KNOBS if name in settings}
        return GenerationSettings(
            max_new_tokens=settings["max_new_tokens"],
            max_length=self.max_length,
            sampling=SamplingParams(**sampling),
            draft=DraftSettings(**draft),
        )
