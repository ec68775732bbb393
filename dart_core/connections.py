"""What a server takes from a client outside of a request: a head in time, and not too many at once;
an answer that is read. The gate sees whole heads only, and an answer is given once it is written.
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
ARRIVE_SECONDS = 0.1  # for what came with a connection to be read, before it counts as waiting
READ_SECONDS = 60.0  # in which some of an answer must be taken
FILES, SPARE = 8192, 128  # wanted at most, and how many of them are kept for other things


class Connection(H11Protocol):
    """uvicorn's, less patient: of too many connections that have no whole head the oldest goes, and
    so does who takes nothing of an answer any more.

    For the ``http`` of a uvicorn.Config.
    """

    _patience: asyncio.TimerHandle | None = None  # runs while a head is under way
    _reading: asyncio.TimerHandle | None = None  # runs while some of an answer is not sent

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)  # so that it is told when all is sent, and when not
        self._who = visitor({"client": self.client})
        self._await_head()
        if len(self.connections) > most_connections():
            min(self._waiting(), key=Connection._ends)._leave()
        # A server that was busy takes many at once, each with its whole head, which is read next.
        self.loop.call_later(ARRIVE_SECONDS, self._share)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._await_head()
        else:
            self._rest()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._await_reader()

    def resume_writing(self) -> None:
        self._stop_reading()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._rest()
        self._stop_reading()
        super().connection_lost(exc)

    def _waiting(self) -> list[Connection]:
        return [c for c in self.connections if isinstance(c, Connection) and c._patience]

    def _share(self) -> None:
        alike = [c for c in self._waiting() if c._who == self._who] if self._patience else []
        if len(alike) > HEADS_EACH:
            min(alike, key=Connection._ends)._leave()

    def _await_reader(self) -> None:
        left = self.transport.get_write_buffer_size()
        self._reading = self.loop.call_later(READ_SECONDS, self._look_at_reader, left)

    def _look_at_reader(self, before: int) -> None:
        if self.transport.get_write_buffer_size() < before:
            self._await_reader()
        else:
            self._leave()

    def _stop_reading(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

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
        self._stop_reading()
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
