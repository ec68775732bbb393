"""Who may use the page: accounts from flags and environment, what is said about it, and in whose
frames it may be shown.

Only the standard library: the page before the page needs it, before anything slow is imported.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence

from dart_core.errors import ArenaError
from dart_core.exposure import listening

VARIABLE = "DART_ARENA_AUTH"
TRIES, TRIED_IN = 10, 300.0  # wrong passwords of one visitor, and the seconds they count for
LOCAL = ("127.0.0.1", "localhost", "::1", "[::1]")
HUB = "https://huggingface.co https://*.huggingface.co https://*.hf.space"  # shows Spaces in frames
Account = tuple[str, str]  # a name and a password


def accounts(flags: Sequence[str]) -> list[Account]:
    """The accounts of ``--auth`` or, without any, of DART_ARENA_AUTH, which has one a line.

    Raises ArenaError for what is no account: it never repeats one.
    """
    source, given = "--auth", list(flags)
    if not given:
        source = VARIABLE
        given = [line for line in os.environ.get(VARIABLE, "").splitlines() if line.strip()]
    found: dict[str, str] = {}
    for place, text in enumerate(given, 1):
        name, colon, password = text.strip().partition(":")
        if not (name.strip() and colon and password):
            raise ArenaError(
                f"{source}: account {place} is not spelled as expected: USER:PASSWORD, with a "
                "colon between them"
            )
        if name.strip() in found:
            raise ArenaError(f"{source}: account {place} has the name of another one")
        found[name.strip()] = password
    return list(found.items())


def exposure(host: str, port: int, share: bool, guarded: bool) -> list[str]:
    """A line for each way in from outside of this machine: who has it, and the remedy."""
    ask = f"ask for a password with --auth USER:PASSWORD (or {VARIABLE})"
    lines = []
    if host not in LOCAL:
        lines.append(
            listening(port, guarded=guarded, what="the page", secret="a password", ask=ask)
        )
    if share:
        if guarded:
            lines.append("note: --share: the public link asks everybody for a password")
        else:
            lines.append(
                "warning: --share: everybody on the internet who has the public link may use the "
                f"page; {ask}, or leave --share out"
            )
    return lines


def on_space() -> bool:
    """Whether this is a Hugging Face Space."""
    return "SPACE_ID" in os.environ


def answer_headers() -> dict[str, str]:
    """What every answer carries, whatever it is."""
    return {
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "same-origin",
        "Content-Security-Policy": f"frame-ancestors 'self' {HUB if on_space() else ''}".rstrip(),
    }


class Tries:
    """Wrong passwords: whoever gave too many must wait, whatever they try next.

    One counts as wrong from the moment it is tried until it proves right: of many at once none gets
    ahead of the count.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic):
        self._now = now
        self._wrong: dict[str | None, deque[float]] = {}

    def wrong(self, who: str | None) -> None:
        self._forget()
        self._wrong.setdefault(who, deque(maxlen=TRIES)).append(self._now())

    def right(self, who: str | None) -> None:
        """The last one was not wrong."""
        if times := self._wrong.get(who):
            times.pop()

    def spent(self, who: str | None) -> bool:
        self._forget()
        return len(self._wrong.get(who, ())) >= TRIES

    def _forget(self) -> None:
        since = self._now() - TRIED_IN
        self._wrong = {
            who: times for who, times in self._wrong.items() if times and times[-1] > since
        }
