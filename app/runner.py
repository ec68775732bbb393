"""Who iterates a race: one dedicated thread on this machine.

The thread owns the device, so nothing of torch's per-thread state leaks into the page's handlers. A
run is handed over with a bounded queue and a stop event; whoever watches it drains what has come at
a pace a browser can draw. Anything else that turns a job into events (a function on a rented GPU, a
recording) can take its place.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import copy_context
from typing import Generic, TypeVar

from dart_core.errors import ArenaError

log = logging.getLogger(__name__)
E = TypeVar("E")
Job = Callable[[threading.Event], Iterator[E]]

ABANDONED = 20.0  # seconds without a look at a run after which nobody watches it any more
MOST = 1024  # events that wait for a look, or are taken at one: a stop waits for no more
_WAKE = object()  # tells a waiting reader to look whether the job has ended


class Run(Generic[E]):
    """One job on its way through the runner: drain its events, stop it, wait for it.

    The job runs in the context that made it: a rented GPU asks whose request it is.
    """

    def __init__(self, job: Job[E]):
        self.stop = threading.Event()
        self.ended = threading.Event()
        self.error: Exception | None = None
        self._job = job
        self._context = copy_context()
        self._events: queue.Queue = queue.Queue(maxsize=MOST)
        self._seen = time.monotonic()  # when events were last asked for

    @property
    def done(self) -> bool:
        """The job has ended and all its events were drained."""
        return self.ended.is_set() and self._events.empty()

    def drain(self, wait: float = 0.0) -> list[E]:
        """The events there are by now, MOST at most; waits up to ``wait`` seconds for a first
        one.
        """
        self._seen = time.monotonic()
        batch: list[E] = []
        with suppress(queue.Empty):
            event = self._events.get(timeout=wait) if wait > 0 else self._events.get_nowait()
            while True:
                if event is not _WAKE:
                    batch.append(event)
                if len(batch) == MOST:
                    break
                event = self._events.get_nowait()
        return batch

    def execute(self) -> None:
        """Run the job here and now; called by the runner's thread. Of a run that was stopped
        before, the job says so.
        """
        self._context.run(self._execute)

    def _execute(self) -> None:
        stream = None
        self._seen = time.monotonic()
        try:
            stream = self._job(self.stop)
            for event in stream:
                self._put(event)
        except Exception as error:
            if not isinstance(error, ArenaError):  # that is the visitor's to mend
                log.exception("a run failed")
            self.error = error
        finally:
            if close := getattr(stream, "close", None):
                close()
            self.ended.set()
            with suppress(queue.Full):
                self._events.put_nowait(_WAKE)

    def _put(self, event: E) -> None:
        """Hand an event over. A full queue waits for its reader, unless the run was stopped and
        nobody reads. Whoever watched may be gone without a word: that stops the run as well.
        """
        while True:
            if time.monotonic() - self._seen > ABANDONED:
                self.stop.set()
            try:
                return self._events.put(event, timeout=0.25)
            except queue.Full:
                if self.stop.is_set():
                    return None


class Runner:
    """One thread that runs jobs one after the other."""

    def __init__(self, name: str = "arena-device"):
        self._jobs: queue.SimpleQueue[Run | None] = queue.SimpleQueue()
        self._current: Run | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def start(self, job: Job[E]) -> Run[E]:
        """Queue a job; it gets a stop event that it has to look at between its steps."""
        run: Run[E] = Run(job)
        self.take(run)
        return run

    def take(self, run: Run[E]) -> None:
        """Queue a run."""
        self._jobs.put(run)

    def close(self, timeout: float = 5.0) -> None:
        """Stop the running job after its step, run nothing more, and wait for the thread."""
        self._closed = True
        current = self._current
        if current is not None:
            current.stop.set()
        self._jobs.put(None)
        self._thread.join(timeout)

    def _work(self) -> None:
        while (run := self._jobs.get()) is not None:
            self._current = run
            if self._closed:
                run.stop.set()
            run.execute()
            self._current = None
