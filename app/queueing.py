"""The page's queue, shared: nobody fills it alone."""

from __future__ import annotations

from collections import Counter
from typing import Any

import gradio as gr
from gradio.queueing import Event, Queue
from starlette.exceptions import HTTPException

from dart_core.gate import visitor

EACH = 4  # runs of one visitor that are under way or wait: a quarter of the queue's places
UNREAD = 16  # sessions of one visitor, the newest, whose runs are over and not read to the end
LONGEST_NAME = 64  # characters of a session's: a browser's has eleven


def share_fairly(page: gr.Blocks) -> None:
    """Let no visitor of the page have more than EACH runs at once, in as many tabs as they like;
    this machine's own are not counted. What was told is kept until it is read, but not of many.
    """
    queue = page._queue
    push = queue.push
    coming: Counter[str] = Counter()  # on their way into the queue: a prompt is checked meanwhile
    sessions: dict[str, str | None] = {}  # and whose they are; the newest last

    async def taken_in(body: Any, request: Any, username: str | None) -> tuple:
        answer = _told(await push(body, request, username))
        sessions.pop(body.session_hash, None)
        sessions[body.session_hash] = visitor(request.scope)
        return answer

    async def fair_push(body: Any, request: Any, username: str | None) -> tuple:
        who, session = visitor(request.scope), body.session_hash or ""
        if len(session) > LONGEST_NAME:
            raise HTTPException(400, f"a session's name has {LONGEST_NAME} characters at most")
        events = _under_way(queue)
        _forget(queue, sessions, {event.session_hash for event in events} | {session}, who)
        if who is None:
            return await taken_in(body, request, username)
        theirs = sum(visitor(event.request.scope) == who for event in events)
        if theirs + coming[who] >= EACH:
            raise HTTPException(
                429,
                f"{EACH} runs from your address are under way or wait already: stop one, or wait.",
            )
        coming[who] += 1
        try:
            return await taken_in(body, request, username)
        finally:
            coming[who] -= 1
            if not coming[who]:
                del coming[who]

    queue.push = fair_push  # type: ignore[method-assign]


def _under_way(queue: Queue) -> list[Event]:
    """The events that run or wait."""
    waiting = [e for line in queue.event_queue_per_concurrency_id.values() for e in line.queue]
    return waiting + [event for job in queue.active_jobs if job for event in job]


def _forget(
    queue: Queue, sessions: dict[str, str | None], active: set[str], who: str | None
) -> None:
    """Drop what Gradio holds for sessions but the ``active`` ones: all that was told to those of
    which nobody reads it, for 2000 of them, and the name of every one.
    """
    over = [session for session in sessions if session not in active]
    unread = [session for session in over if queue.pending_event_ids_session.get(session)]
    kept = {session for session in unread if sessions[session] != who}
    kept.update([session for session in unread if session not in kept][-UNREAD:])
    for session in over:
        if session not in kept:
            del sessions[session]
            queue.pending_messages_per_session.pop(session, None)
            queue.pending_event_ids_session.pop(session, None)


def _told(answer: tuple) -> tuple:
    """Gradio's answer without an exception's own words: they name files and functions."""
    pushed, _, kind = answer
    return (pushed, "This could not be taken in.", kind) if kind == "error" else answer
