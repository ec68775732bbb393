"""What stands before page and API: sizes, numbers and names of requests, and what answers carry."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from dart_core import gate as module
from dart_core.gate import Gate, Limits, bearer, called, own_site, route, visitor

HEADERS = {"X-Content-Type-Options": "nosniff", "Content-Security-Policy": "frame-ancestors 'self'"}
LIMITS = Limits(body=1000, bodies={"/upload": 5000}, open_each=3, open_all=8, silence=0.2)


async def echo(request: Request) -> PlainTextResponse:
    """Tells how much came; like most servers it takes any failure to read for a bad request."""
    try:
        return PlainTextResponse(str(len(await request.body())))
    except Exception:
        return PlainTextResponse("could not read", status_code=400)


async def broken(request: Request):
    raise RuntimeError("a secret of /srv/secret")


def gated(*checks, limits=LIMITS, app=None, **options) -> Gate:
    routes = [
        Route("/upload", echo, methods=["POST"]),
        Route("/broken", broken),
        Route("/{path:path}", echo, methods=["GET", "POST"]),
    ]
    told = lambda status, sentence: {"detail": sentence}  # noqa: E731
    app = app or Starlette(routes=routes)
    return Gate(app, limits, checks, **{"told": told, "headers": HEADERS, **options})


def ask(gate: Gate, method: str = "GET", path: str = "/", who: str = "203.0.113.1", **options):
    async def asked() -> httpx.Response:
        transport = httpx.ASGITransport(gate, raise_app_exceptions=False, client=(who, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.request(method, path, **options)

    return asyncio.run(asked())


class Line:
    """One request's messages as they come in, and what is answered."""

    def __init__(self, *parts: bytes, path: str = "/", headers=(), last: bool = True, who="x"):
        self.scope = {
            "type": "http", "method": "POST", "path": path, "headers": list(headers),
            "client": (who, 1), "query_string": b"", "http_version": "1.1", "scheme": "http",
            "server": ("localhost", 80), "root_path": "",
        }  # fmt: skip
        self.parts, self.last = list(parts), last
        self.read = 0
        self.sent: list[dict] = []

    async def receive(self) -> dict:
        if not self.parts:
            await asyncio.sleep(3600)
        part = self.parts.pop(0)
        self.read += len(part)
        return {
            "type": "http.request",
            "body": part,
            "more_body": bool(self.parts) or not self.last,
        }

    async def send(self, message: dict) -> None:
        self.sent.append(message)

    @property
    def status(self) -> int:
        return self.sent[0]["status"]


# Sizes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "size", "status"),
    [("/x", 1000, 200), ("/x", 1001, 413), ("/upload", 5000, 200), ("/upload", 5001, 413),
     ("/upload/", 5001, 413), ("/uploads", 1001, 413)],
)  # fmt: skip
@pytest.mark.parametrize("told", [True, False])
def test_a_request_has_a_size_whether_it_says_so_or_not(path, size, status, told):
    async def parts():
        for at in range(0, size, 100):
            yield b"x" * min(100, size - at)

    answer = ask(gated(), "POST", path, content=b"x" * size if told else parts())
    assert answer.status_code == status
    if status == 200:
        assert answer.text == str(size)
    else:
        limit = 5000 if path.startswith("/upload") and path != "/uploads" else 1000
        assert answer.json() == {"detail": f"the request is larger than {limit} bytes"}


def test_what_is_too_large_is_not_read_into_memory(monkeypatch):
    """Refused at once; the rest is read to be thrown away, for a client listens only then."""
    monkeypatch.setattr(module, "LINGERED", 20_000)
    passed = []

    async def app(scope, receive, send):
        while (message := await receive()).get("more_body"):
            passed.append(len(message["body"]))

    for headers in [(b"content-length", b"99999999")], [(b"content-length", b"-1")], []:
        line, before = Line(*[b"x" * 100] * 1000, headers=headers), len(passed)
        asyncio.run(gated(app=app)(line.scope, line.receive, line.send))
        assert line.status == 413
        assert sum(passed[before:]) == (0 if headers and b"9" in headers[0][1] else 1000)
        assert line.read < 25_000
        assert dict(line.sent[0]["headers"])[b"connection"] == b"close"


def test_a_client_that_stalls_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(module, "LINGER", 0.05)
    line = Line(b"x" * 10, last=False)
    asyncio.run(asyncio.wait_for(gated()(line.scope, line.receive, line.send), 20))
    assert line.status == 408
    assert json.loads(line.sent[1]["body"]) == {"detail": "nothing came for 0.2 seconds"}


def test_a_client_may_wait_for_its_answer_as_long_as_it_takes():
    async def slow(scope, receive, send):
        assert (await receive())["type"] == "http.request"
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(receive(), 0.5)  # longer than the silence between two parts
        await send({"type": "http.response.start", "status": 200, "headers": []})

    line = Line(b"")
    asyncio.run(gated(app=slow)(line.scope, line.receive, line.send))
    assert line.status == 200


# Numbers ------------------------------------------------------------------------------------------


def test_nobody_has_more_than_some_requests_open_and_all_together_no_more_than_others():
    opened, over = [], asyncio.Event()

    async def wait(scope, receive, send):
        opened.append(scope["client"][0])
        await over.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def run():
        gate = gated(app=wait)

        def begin(who):
            line = Line(b"", who=who)
            return line, asyncio.create_task(gate(line.scope, line.receive, line.send))

        lines = [begin("203.0.113.1") for _ in range(4)]
        await asyncio.sleep(0.01)
        refused = lines[-1][0]
        assert refused.status == 429
        assert (
            "3 requests from your address are under way"
            in json.loads(refused.sent[1]["body"])["detail"]
        )
        assert dict(refused.sent[0]["headers"])[b"retry-after"]
        lines += [begin("203.0.113.2"), *(begin("127.0.0.1") for _ in range(5))]
        await asyncio.sleep(0.01)
        assert opened == ["203.0.113.1"] * 3 + ["203.0.113.2"] + ["127.0.0.1"] * 4
        assert lines[-1][0].status == 503
        over.set()
        await asyncio.gather(*(task for _, task in lines))
        again, task = begin("203.0.113.1")
        await task
        assert again.status == 200

    asyncio.run(run())


def test_this_machine_itself_is_no_visitor():
    def who(host):
        return visitor({"client": (host, 1)} if host is not None else {})

    assert [who(host) for host in ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1")] == [
        None
    ] * 4
    assert who("203.0.113.7") == who("::ffff:203.0.113.7") == "203.0.113.7"
    assert who("2001:db8:1:2:3:4:5:6") == who("2001:db8:1:2::9") != who("2001:db8:1:3::9")
    assert who("fe80::1%eth0") is not None
    assert who("unknown") == "unknown" and who(None) == ""  # nobody gets in for being nobody


# Names --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "status"),
    [
        (None, 401),
        ("", 401),
        ("Bearer", 401),
        ("Bearer s3cret ", 200),
        ("bearer s3cret", 200),
        ("Bearer s3cret2", 401),
        ("Bearer s3cre", 401),
        ("Basic s3cret", 401),
        ("s3cret", 401),
        (b"Bearer \xff\xfe", 401),
    ],
)
def test_a_key_is_asked_for(given, status):
    gate = gated(bearer("s3cret", ["/healthz"]), challenge="Bearer")
    headers = {} if given is None else {"authorization": given}
    answer = ask(gate, path="/v1/models", headers=headers)
    assert answer.status_code == status
    assert "s3cret" not in answer.text
    assert answer.headers.get("www-authenticate") == ("Bearer" if status == 401 else None)
    assert ask(gate, path="/healthz", headers=headers).status_code == 200
    for path in ("/healthz/../v1/models", "//healthz", "/healthz/x"):
        assert ask(gate, path=path, headers=headers).status_code == status


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost", 200), ("LOCALHOST:30000", 200), ("127.0.0.1:1", 200), ("[::1]:8", 200),
     ("[::1]", 200), ("evil.example", 400), ("localhost.evil.example:30000", 400), ("", 400),
     ("localhost:1@evil.example", 400)],
)  # fmt: skip
def test_a_name_that_a_browser_was_led_to_believe_is_this_machine_is_refused(host, status):
    gate = gated(called(["localhost", "127.0.0.1", "[::1]"], "use --listen"))
    answer = ask(gate, headers={"host": host})
    assert answer.status_code == status
    if status != 200:
        assert answer.json()["detail"].endswith(
            "expected localhost or 127.0.0.1 or [::1]: use --listen"
        )


@pytest.mark.parametrize(
    ("method", "site", "mode", "status"),
    [
        ("POST", "cross-site", "cors", 403),
        ("POST", "cross-site", "navigate", 403),  # a form
        ("GET", "cross-site", "cors", 403),
        ("GET", "cross-site", "no-cors", 403),
        ("GET", "cross-site", "navigate", 200),  # a link
        ("POST", "same-origin", "cors", 200),
        ("GET", "none", "navigate", 200),
        ("POST", None, None, 200),  # no browser
    ],
)
def test_what_another_sites_page_asks_for_is_refused(method, site, mode, status):
    headers = {"sec-fetch-site": site, "sec-fetch-mode": mode} if site else {}
    assert ask(gated(own_site), method, headers=headers).status_code == status


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("POST", {"origin": "http://evil.example"}, 403),
        ("POST", {"referer": "http://evil.example/192.168.0.9"}, 403),
        ("POST", {"origin": "null"}, 403),  # a page without a site of its own
        ("POST", {"origin": "http://[evil"}, 403),
        ("POST", {"origin": "http://192.168.0.9:30000"}, 200),
        ("POST", {"origin": "http://192.168.0.9:8080"}, 200),  # of another port, as of old
        ("POST", {"origin": "http://arena.example", "x-forwarded-host": "arena.example"}, 200),
        ("GET", {"referer": "http://evil.example/"}, 200),  # a link, as far as can be told
    ],
)
def test_over_plain_http_in_a_network_too(method, headers, status):
    """Browsers send no Sec-Fetch headers there."""
    headers = {"host": "192.168.0.9:30000", **headers}
    assert ask(gated(own_site), method, headers=headers).status_code == status


def test_the_prefix_of_a_server_is_no_part_of_its_routes():
    def asked(path, prefix="/arena"):
        return route({"path": path}, prefix)

    assert asked("/arena/upload") == asked("/upload/") == asked("/upload") == "/upload"
    assert asked("/arena") == asked("/arena/") == asked("/") == ""
    assert asked("/arenas/upload") == "/arenas/upload"


# Answers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/", 200), ("POST", "/", 413), ("GET", "/broken", 500)]
)
def test_every_answer_carries_the_headers_and_is_seen(method, path, status):
    seen = []
    gate = gated(seen=lambda scope, status: seen.append((scope["path"], status)))
    answer = ask(gate, method, path, content=b"x" * 2000 if method == "POST" else b"")
    assert answer.status_code == status
    assert {name: answer.headers[name] for name in HEADERS} == HEADERS
    assert "secret" not in answer.text
    assert seen == [(path, status)]


def test_a_failure_that_was_told_leaves_the_line_as_good_as_it_was(caplog):
    def failing(*messages):
        async def app(scope, receive, send):
            await send({"type": "http.response.start", "status": 500, "headers": []})
            for more in messages:
                await send({"type": "http.response.body", "body": b"x", "more_body": more})
            raise RuntimeError("afterwards")

        line = Line(b"")
        asyncio.run(gated(app=app)(line.scope, line.receive, line.send))

    failing(True, False)
    assert "a request failed" in caplog.text and "RuntimeError: afterwards" in caplog.text
    for cut_short in ((), (True,)):
        with pytest.raises(RuntimeError):
            failing(*cut_short)


def test_what_is_no_request_is_not_let_in():
    sent = []

    async def send(message):
        sent.append(message)

    async def app(scope, receive, send):
        sent.append(scope["type"])

    async def run(kind):
        await gated(app=app)({"type": kind, "path": "/", "headers": []}, None, send)

    asyncio.run(run("websocket"))
    assert sent == [{"type": "websocket.close"}]
    asyncio.run(run("lifespan"))
    assert sent[1:] == ["lifespan"]
