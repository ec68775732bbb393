"""What a server takes from a client before there is a request: a head in time, and not too many at
once. The gate sees whole heads only.
"""

from __future__ import annotations

import asyncio
import resource
from functools import cache

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from dart_core.gate import visitor

HEAD_SECONDS = 10.0  # from a request's first byte, or the connection, to the end of its head
HEADS_EACH = 64  # heads that one visitor may have under way
FILES, SPARE = 8192, 128  # wanted at most, and how many of them are kept for other things


class Connection(H11Protocol):
    """uvicorn's, less patient: of too many connections that have no whole head the oldest goes.

    For the ``http`` of a uvicorn.Config.
    """

    _patience: asyncio.TimerHandle | None = None  # runs while a head is under way

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._who = visitor({"client": self.client})
        self._await_head()
        waiting = [c for c in self.connections if isinstance(c, Connection) and c._patience]
        alike = [c for c in waiting if c._who == self._who]
        crowded = len(self.connections) > most_connections()
        if crowded or len(alike) > HEADS_EACH:
            min(waiting if crowded else alike, key=Connection._ends)._leave()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._await_head()
        else:
            self._rest()

    def connection_lost(self, exc: Exception | None) -> None:
        self._rest()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        if self._patience is None:
            self._patience = self.loop.call_later(HEAD_SECONDS, self._leave)

    def _rest(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _ends(self) -> float:
        return self._patience.when() if self._patience else 0.0

    def _leave(self) -> None:
        self._rest()
        self.transport.abort()


@cache
def most_connections() -> int:
    """How many connections the files that this process may open have room for, after it has asked
    the system for more of them.
    """
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if most == resource.RLIM_INFINITY else min(FILES, most)
    if now != resource.RLIM_INFINITY and now < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
    return max(wanted // 2, wanted - SPARE)
