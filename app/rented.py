"""A race on a GPU that is rented run by run, as ZeroGPU does it.

The rented worker is a process forked from this one: it gets plain values and yields plain values,
and only in it are there CUDA and threads. It may serve several runs; what they change in it stays
in it.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace

from app.arena import Arena, Event, Order
from app.race import Ended
from dart_core.errors import ArenaError

log = logging.getLogger(__name__)

START_SECONDS = 15  # until a fresh worker has the weights on its GPU and has run every engine once
TOKEN_SECONDS = 0.04  # of plain decoding, rather more than less
SHORTEST = 5  # for a race
LONGEST = 80  # counted 1.5-fold, all that a visitor without an account has in a day: 120


def seconds(order: Order) -> int:
    """For how long a GPU is asked for, to run an order to its end."""
    tokens = order.settings.max_new_tokens * len(order.engines)
    return min(LONGEST, START_SECONDS + max(SHORTEST, math.ceil(TOKEN_SECONDS * tokens)))


class Rented:
    """An ``Arena.device``: all engines of an order run in one call of a rented worker.

    gpu: ``spaces.GPU``, or what decorates a generator function as it does. To be made before the
    page is launched, for ZeroGPU looks for its functions then.
    """

    def __init__(self, arena: Arena, gpu: Callable[..., Callable]):
        warm: set[str] = set()  # engines that have run in this worker

        def work(order: Order) -> Iterator[Event]:
            nobody = threading.Event()
            for short in arena.warm_ups():
                if set(short.engines) <= set(order.engines) - warm:
                    warm.update(short.engines)
                    for _ in arena.run(short, nobody):
                        pass
            yield from arena.run(order, nobody)

        self._work = gpu(duration=seconds)(work)

    def __call__(self, order: Order, stop: threading.Event) -> Iterator[Event]:
        """Raises ArenaError where no GPU is to be had, or it is taken away."""
        running = dict.fromkeys(order.engines)
        refusal = ""
        try:
            if not stop.is_set():
                limit = min(order.max_seconds, seconds(order) - START_SECONDS)
                with closing(self._work(replace(order, max_seconds=limit))) as events:
                    for event in events:
                        if isinstance(event, Ended):
                            running.pop(event.engine, None)
                        yield event
                        if stop.is_set():
                            break
        except Exception as error:
            refusal = _in_words(error)
        if refusal:
            yield from (Ended(engine, "error", refusal) for engine in running)
            raise ArenaError(f"{refusal} The recorded runs below play without one.")
        if stop.is_set():
            yield from (Ended(engine, "stopped", "Stopped.") for engine in running)


def _in_words(error: Exception) -> str:
    title, message = getattr(error, "title", ""), getattr(error, "message", "")
    if title and message:  # a gr.Error, made to be shown: quota, queue, a GPU that was taken away
        reason = " ".join(str(message).split()).rstrip(".")
        return f"No GPU for this run ({title}: {reason})."
    log.error("a rented GPU failed", exc_info=error)
    return f"The rented GPU failed ({type(error).__name__}); the server's log has the details."
