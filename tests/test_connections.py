"""What a server takes outside of a request: how long a head may take, and how many at once; how
long an answer may lie there.
"""

from __future__ import annotations

import http.client
import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress

import gradio as gr
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from app.serve import close, launch
from dart_core import connections as module
from dart_core.connections import Connection, most_connections
from dart_core.server import _Server

HALF = b"GET / HTTP/1.1\r\nHost: localhost\r\nX-a: "


async def hello(request):
    return PlainTextResponse("hello " + (await request.body()).decode())


LARGE = b"x" * 8_000_000  # more than the system takes of an answer


async def large(request):
    return Response(LARGE)


APP = Starlette(routes=[Route("/", hello, methods=["GET", "POST"]), Route("/large", large)])


@contextmanager
def serving(server: uvicorn.Server) -> Iterator[int]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        thread = threading.Thread(target=server.run, args=([sock],))
        thread.start()
        try:
            yield sock.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture
def server() -> uvicorn.Server:
    return uvicorn.Server(uvicorn.Config(APP, http=Connection, log_level="error"))


@pytest.fixture
def port(server) -> Iterator[int]:
    with serving(server) as port:
        yield port


def asked(port: int, sent: bytes = b"") -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), timeout=60)
    sock.sendall(sent)
    return sock


def ended(sock: socket.socket) -> bool:
    """Waits for the server to close; fails after the socket's timeout."""
    try:
        return sock.recv(1000) == b""
    except ConnectionResetError:
        return True


def is_open(sock: socket.socket) -> bool:
    sock.setblocking(False)
    try:
        return sock.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False


def answer(port: int, body: bytes = b"") -> str:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("POST", "/", body)
        return connection.getresponse().read().decode()


@pytest.mark.parametrize("sent", [b"", HALF])
def test_a_head_must_come_in_time(port, monkeypatch, sent):
    monkeypatch.setattr(module, "HEAD_SECONDS", 0.2)
    with asked(port, sent) as sock:
        assert ended(sock)


def test_a_second_head_too_and_no_drop_prolongs_it(port, monkeypatch):
    monkeypatch.setattr(module, "HEAD_SECONDS", 0.5)
    with asked(port, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n") as sock:
        got = b""
        while not got.endswith(b"hello "):
            got += (part := sock.recv(1000))
            assert part, got
        sock.sendall(HALF)
        drops = 0
        with suppress(ConnectionError):
            while drops < 100:
                sock.sendall(b"a")
                time.sleep(0.05)
                drops += 1
        assert drops < 100


def test_what_follows_the_head_may_take_longer(port, monkeypatch):
    monkeypatch.setattr(module, "HEAD_SECONDS", 0.2)
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\n"
    with asked(port, head) as sock:
        time.sleep(0.5)
        sock.sendall(b"slow")
        assert sock.recv(1000).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("limit", ["HEADS_EACH", "most_connections"])
def test_of_too_many_the_oldest_goes(port, monkeypatch, limit):
    monkeypatch.setattr(module, "HEAD_SECONDS", 1000)
    monkeypatch.setattr(module, limit, 5 if limit == "HEADS_EACH" else lambda: 5)
    with ExitStack() as stack:
        halves = []
        for _ in range(9):
            halves.append(stack.enter_context(asked(port, HALF)))
            time.sleep(0.02)
        assert all(ended(sock) for sock in halves[:4])
        assert all(is_open(sock) for sock in halves[4:])
        assert answer(port, b"you") == "hello you"


def test_whole_heads_that_come_all_at_once_are_all_answered(server, port):
    """As a proxy sends a browser's, or a class begins: while the server is busy."""
    assert answer(port) == "hello "
    server.servers[0].get_loop().call_soon_threadsafe(time.sleep, 0.3)
    with ExitStack() as stack:
        whole = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
        come = [stack.enter_context(asked(port, whole)) for _ in range(2 * module.HEADS_EACH)]
        assert all(sock.recv(1000).startswith(b"HTTP/1.1 200") for sock in come)


def asked_for_much(port: int) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.settimeout(60)
    sock.connect(("127.0.0.1", port))
    sock.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return sock


def test_an_answer_that_nobody_takes_is_thrown_away(server, port, monkeypatch):
    monkeypatch.setattr(module, "READ_SECONDS", 0.2)
    with asked_for_much(port) as sock:
        assert sock.recv(100).startswith(b"HTTP/1.1 200")
        until = time.monotonic() + 120
        while server.server_state.connections and time.monotonic() < until:
            time.sleep(0.05)
        assert not server.server_state.connections


def test_an_answer_that_is_taken_slowly_comes_whole(port, monkeypatch):
    monkeypatch.setattr(module, "READ_SECONDS", 1.5)
    got, parts = 0, 0
    with asked_for_much(port) as sock:
        while part := sock.recv(100_000):
            got += len(part)
            if got > parts * 100_000:
                parts += 1
                time.sleep(0.03)  # 80 times
            if got > len(LARGE):  # and the head
                break
    assert got > len(LARGE)


def test_as_many_files_as_the_system_lets(monkeypatch):
    asked = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, 1024))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: asked.append(limits))
    assert most_connections.__wrapped__() == 1024 - 128
    assert asked == [(1024, 1024)]
    monkeypatch.setattr(resource, "getrlimit", lambda which: (200, 200))
    assert most_connections.__wrapped__() == 100 and len(asked) == 1


def test_page_and_api_have_them(monkeypatch):
    monkeypatch.setattr(module, "HEAD_SECONDS", 0.2)
    with serving(_Server(APP, None)) as port, asked(port, HALF) as sock:
        assert ended(sock)
    with gr.Blocks() as page:
        gr.Markdown("a page")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    try:
        launch(page, host="127.0.0.1", port=port)
        with asked(port, HALF) as sock:
            assert ended(sock)
    finally:
        close(page)
