"""What stands before a server: who may ask, how often at once, how much, and what every answer
carries.

One layer of ASGI, the same around the page and around the API. It refuses before the server behind
it has read anything.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

logger = logging.getLogger(__name__)

QUEUE = 16  # requests that may wait for the device
SHARE = 4  # of these places a visitor may have one in so many
LINGER = 5.0  # seconds that a refused client may go on sending: it reads the answer only then
LINGERED = 64 << 20  # bytes of that, read and thrown away

Refusal = tuple[int, str]  # a status and a sentence
Check = Callable[[Scope, Headers], Refusal | None]


@dataclass(frozen=True, slots=True)
class Limits:
    """body: bytes of a request; bodies: the same for some routes. open_each, open_all: requests
    under way at once, of one visitor and in all. silence: seconds between two parts of a request.
    """

    body: int = 1 << 20
    bodies: Mapping[str, int] = field(default_factory=dict)
    open_each: int = 256
    open_all: int = 800
    silence: float = 120.0


class Gate:
    """``app`` behind the limits and the checks; a check says why a request is refused, or None.

    told: the JSON that a refusal is told in, as the server's clients expect it. headers: of
    every answer. challenge: how a key is to be sent, for who sent none. prefix: the path
    that the server lies under, for ``limits.bodies``. seen: gets (scope, status) of every answer.
    """

    def __init__(
        self,
        app: ASGIApp,
        limits: Limits,
        checks: Sequence[Check] = (),
        *,
        told: Callable[[int, str], dict[str, Any]],
        headers: Mapping[str, str],
        challenge: str = "",
        prefix: str = "",
        seen: Callable[[Scope, int], None] = lambda scope, status: None,
    ):
        self.app, self.limits, self.checks = app, limits, checks
        self.told, self.headers, self.challenge = told, headers, challenge
        self.prefix, self.seen = prefix, seen
        self._open: Counter[str | None] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":  # no server of ours speaks anything else
            return await send({"type": "websocket.close"})
        who = visitor(scope)
        answer = _Answer(self, scope, send)
        if refusal := self._crowded(who):
            return await answer.refuse(refusal, receive)
        self._open[who] += 1
        try:
            await self._admit(scope, receive, answer)
        finally:
            self._open[who] -= 1
            if not self._open[who]:
                del self._open[who]

    def _crowded(self, who: str | None) -> Refusal | None:
        if self._open.total() >= self.limits.open_all:
            return 503, "too many requests are under way: try again in a moment"
        if who is not None and self._open[who] >= self.limits.open_each:
            each = self.limits.open_each
            return 429, f"{each} requests from your address are under way: close some tabs"
        return None

    async def _admit(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        headers = Headers(scope=scope)
        most = self.limits.bodies.get(route(scope, self.prefix), self.limits.body)
        for check in self.checks:
            if refusal := check(scope, headers):
                return await answer.refuse(refusal, receive)
        body = _Body(receive, most, self.limits.silence)
        length = headers.get("content-length", "")
        if length.isascii() and length.isdecimal() and int(length[:20]) > most:
            return await answer.refuse(body.too_large(), receive)
        try:
            await self.app(scope, body, answer.pass_on(body))
        except Exception:
            if not answer.done and body.refusal is None:
                raise
            if body.refusal is None:  # the client has been told: its line is as good as before
                logger.exception("a request failed")
        if body.refusal is not None and not answer.begun:
            await answer.refuse(body.refusal, receive)
        return None


class _Body:
    """A request's body on its way to the app, which gets no more of it than is allowed."""

    def __init__(self, receive: Receive, most: int, silence: float):
        self._receive, self._most, self._silence = receive, most, silence
        self._count = 0
        self._whole = False
        self.refusal: Refusal | None = None

    def too_large(self) -> Refusal:
        return 413, f"the request is larger than {self._most} bytes"

    async def __call__(self) -> Message:
        if self._whole:  # the app waits for its client to leave: as long as it likes
            return await self._receive()
        try:
            message = await asyncio.wait_for(self._receive(), self._silence)
        except TimeoutError:
            raise self._refused((408, f"nothing came for {self._silence:g} seconds")) from None
        self._count += len(message.get("body", b""))
        if self._count > self._most:
            raise self._refused(self.too_large())
        self._whole = not message.get("more_body", False)
        return message

    def _refused(self, refusal: Refusal) -> HTTPException:
        self.refusal = refusal
        return HTTPException(*refusal)


class _Answer:
    """One answer: the app's, with our headers, or a refusal."""

    def __init__(self, gate: Gate, scope: Scope, send: Send):
        self._gate, self._scope, self._send = gate, scope, send
        self.begun = self.done = False

    def pass_on(self, body: _Body) -> Send:
        async def send(message: Message) -> None:
            if body.refusal is not None and not self.begun:
                return  # what the app makes of it is not what the client is to read
            if message["type"] == "http.response.start":
                self._start(message)
            elif message["type"] == "http.response.body":
                self.done = not message.get("more_body", False)
            await self._send(message)

        return send

    def _start(self, message: MutableMapping[str, Any]) -> None:
        self.begun = True
        headers = MutableHeaders(scope=message)
        for name, value in self._gate.headers.items():
            headers[name] = value
        self._gate.seen(self._scope, message["status"])

    async def refuse(self, refusal: Refusal, receive: Receive) -> None:
        status, sentence = refusal
        body = json.dumps(self._gate.told(status, sentence)).encode()
        start: dict[str, Any] = {
            "type": "http.response.start",
            "status": status,
            "headers": [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                (b"cache-control", b"no-store"),
                (b"connection", b"close"),
            ],
        }
        if status == 401 and self._gate.challenge:
            start["headers"].append((b"www-authenticate", self._gate.challenge.encode()))
        if status in (429, 503):
            start["headers"].append((b"retry-after", b"5"))
        self._start(start)
        await self._send(start)
        await self._send({"type": "http.response.body", "body": body, "more_body": True})
        with suppress(TimeoutError):
            await asyncio.wait_for(_drain(receive), LINGER)
        await self._send({"type": "http.response.body", "body": b""})


async def _drain(receive: Receive) -> None:
    count = 0
    while count <= LINGERED:
        message = await receive()
        count += len(message.get("body", b""))
        if not message.get("more_body", False):
            return


def visitor(scope: Scope) -> str | None:
    """Whose request this is: an address (for IPv6 its /64 network, which is one household's), None
    for this machine itself.

    Behind a proxy the server has put its client's address there, where it trusts the proxy: see
    uvicorn's FORWARDED_ALLOW_IPS.
    """
    host = (scope.get("client") or ("", 0))[0]
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    address = getattr(address, "ipv4_mapped", None) or address
    if address.is_loopback:
        return None
    if isinstance(address, IPv6Address):
        return str(ip_network((address, 64), strict=False))
    return str(address)


def route(scope: Scope, prefix: str = "") -> str:
    """A request's path without the prefix that a server lies under, and without a last slash."""
    path = scope["path"]
    if prefix and (path == prefix or path.startswith(f"{prefix}/")):
        path = path[len(prefix) :]
    return path.rstrip("/")


# Checks -------------------------------------------------------------------------------------------


def bearer(key: str, free: Sequence[str] = ()) -> Check:
    """Asks for ``Authorization: Bearer KEY`` on all routes but ``free`` ones."""
    known = hashlib.sha256(key.encode()).digest()  # of one length: the time tells nothing

    def check(scope: Scope, headers: Headers) -> Refusal | None:
        if route(scope) in free:
            return None
        scheme, _, given = headers.get("authorization", "").partition(" ")
        found = hashlib.sha256(given.strip().encode("latin-1")).digest()
        if scheme.lower() == "bearer" and secrets.compare_digest(found, known):
            return None
        return 401, "the API key is missing or wrong: send it as Authorization: Bearer KEY"

    return check


def called(names: Sequence[str], remedy: str) -> Check:
    """Asks that the server be called by one of its names: a page elsewhere, whose name a browser
    was led to believe is this machine's, calls it by another.
    """

    def check(scope: Scope, headers: Headers) -> Refusal | None:
        host = headers.get("host", "")
        if re.sub(r":\d*$", "", host.lower()) in names:
            return None
        return 400, f"called {host[:100]!r}, expected {' or '.join(names)}: {remedy}"

    return check


def own_site(scope: Scope, headers: Headers) -> Refusal | None:
    """Turns away what a page of another site asks for in its visitor's name; following a link is
    no such thing.

    Over plain http a browser says only to servers of its own machine what kind of request it is:
    elsewhere, that a page sends something is seen by where it is from.
    """
    reads = scope["method"] in ("GET", "HEAD")
    site = headers.get("sec-fetch-site")
    if site is None:
        foreign = not reads and _from_elsewhere(headers)
    else:
        foreign = site == "cross-site" and not (
            reads and headers.get("sec-fetch-mode") == "navigate"
        )
    return (403, "a page of another site cannot ask for this") if foreign else None


def _from_elsewhere(headers: Headers) -> bool:
    """Whether a page of another host asks; a proxy may have told the host that it was asked for."""
    page = headers.get("origin") or headers.get("referer")
    if page is None:  # no browser
        return False
    asked = [headers.get("host", ""), headers.get("x-forwarded-host", "")]
    return _hostname(page) not in [_hostname(f"//{host}") for host in asked if host]


def _hostname(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None
