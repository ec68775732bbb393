"""The page's queue, shared: nobody fills it alone."""

from __future__ import annotations

from collections import Counter
from typing import Any

import gradio as gr
from starlette.exceptions import HTTPException

from dart_core.gate import visitor

EACH = 4  # runs of one visitor that are under way or wait: a quarter of the queue's places


def share_fairly(page: gr.Blocks) -> None:
    """Let no visitor of the page have more than EACH runs at once, in as many tabs as they like;
    this machine's own are not counted.
    """
    queue = page._queue
    push = queue.push
    coming: Counter[str] = Counter()  # on their way into the queue: a prompt is checked meanwhile

    async def fair_push(body: Any, request: Any, username: str | None) -> tuple:
        who = visitor(request.scope)
        if who is None:
            return _told(await push(body, request, username))
        waiting = [
            event for line in queue.event_queue_per_concurrency_id.values() for event in line.queue
        ]
        running = [event for job in queue.active_jobs if job for event in job]
        theirs = sum(visitor(event.request.scope) == who for event in waiting + running)
        if theirs + coming[who] >= EACH:
            raise HTTPException(
                429,
                f"{EACH} runs from your address are under way or wait already: stop one, or wait.",
            )
        coming[who] += 1
        try:
            return _told(await push(body, request, username))
        finally:
            coming[who] -= 1
            if not coming[who]:
                del coming[who]

    queue.push = fair_push  # type: ignore[method-assign]


def _told(answer: tuple) -> tuple:
    """Gradio's answer without an exception's own words: they name files and functions."""
    pushed, _, kind = answer
    return (pushed, "This could not be taken in.", kind) if kind == "error" else answer
