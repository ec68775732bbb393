"""The port: held while models load, handed over to the page, and what is said when it is taken."""

from __future__ import annotations

import http.client
import json
import re
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest

from app.waiting import Waiting
from dart_core.errors import ArenaError

ROOT = Path(__file__).resolve().parent.parent
HOST = "127.0.0.1"


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def ask(port: int, path: str = "/", method: str = "GET") -> tuple[int, dict, str]:
    with closing(http.client.HTTPConnection(HOST, port, timeout=60)) as connection:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()


def binds(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


# Before the page ----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/healthz", "/healthz/", "/arena/healthz?x=1"])
def test_health_says_loading(port, path):
    with Waiting(HOST, port):
        status, headers, text = ask(port, path)
    assert status == 503
    assert headers["Content-Type"] == "application/json"
    assert json.loads(text) == {"status": "loading"}
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Content-Security-Policy"] == "frame-ancestors 'self'"
    assert "Python" not in headers["Server"]


def test_a_spaces_hub_may_show_it(port, monkeypatch):
    monkeypatch.setenv("SPACE_ID", "someone/arena")
    with Waiting(HOST, port):
        policy = ask(port)[1]["Content-Security-Policy"]
    assert policy.startswith("frame-ancestors 'self' https://huggingface.co ")


@pytest.mark.parametrize("path", ["/", "/arena/", "/assets/x.js", "/?a=/healthz"])
def test_every_other_path_says_how_far_loading_is(port, path):
    with Waiting(HOST, port) as waiting:
        waiting.say("target: 0.25 GiB in 2 s")
        waiting.say("<script>alert('&')</script> {braces}")
        status, headers, text = ask(port, path)
        assert status == 503
        assert headers["Cache-Control"] == "no-store"
        log = re.search(r'<pre role="log">(.*?)</pre>', text, re.DOTALL)[1]
        assert log == (
            "target: 0.25 GiB in 2 s\n"
            "&lt;script&gt;alert(&#x27;&amp;&#x27;)&lt;/script&gt; {braces}"
        )
        assert not re.search(r"(src|href)=\"(?!data:)|https?:|//", text)  # asks nobody else
        assert ask(port, path, "HEAD")[2] == ""
        assert ask(port, path, "POST")[0] == 503


def test_only_the_newest_lines_stay(port):
    with Waiting(HOST, port) as waiting:
        for number in range(1000):
            waiting.say(f"line {number}.")
        text = ask(port)[2]
    assert "line 999." in text
    assert "line 0." not in text
    assert len(text) < 20_000


def test_a_client_that_says_nothing_holds_nobody_up(port):
    waiting = Waiting(HOST, port)
    with socket.create_connection((HOST, port)):
        assert ask(port, "/healthz")[0] == 503
        waiting.close()
        assert binds(port)


def answers(port: int) -> bool:
    try:
        return ask(port, "/healthz")[0] == 503
    except (OSError, http.client.HTTPException):
        return False


def until(condition, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_so_many_clients_have_a_thread_and_no_more(port, monkeypatch):
    monkeypatch.setattr("app.waiting.CLIENTS", 3)
    monkeypatch.setattr("app.waiting._Handler.timeout", 60.0)
    with Waiting(HOST, port):
        silent = [socket.create_connection((HOST, port), timeout=30) for _ in range(3)]
        until(lambda: not answers(port))  # once all three have been taken in
        assert sum("process_request_thread" in t.name for t in threading.enumerate()) == 3
        silent.pop().close()
        until(lambda: answers(port))
        for client in silent:
            client.close()


def test_the_port_is_held_until_it_is_closed(port):
    waiting = Waiting(HOST, port)
    assert not binds(port)
    with pytest.raises(ArenaError, match=rf"port {port} on 127.0.0.1 is taken.*--server-port"):
        Waiting(HOST, port)
    waiting.close()
    waiting.close()
    assert binds(port)
    Waiting(HOST, port).close()


def test_what_cannot_be_served_is_said_in_words(port, monkeypatch):
    with pytest.raises(ArenaError, match=f"cannot serve on 203.0.113.1:{port}: "):
        Waiting("203.0.113.1", port)  # an address of no machine

    def refused(*arguments):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", refused)
    with pytest.raises(ArenaError, match="port 80 needs more rights"):
        Waiting(HOST, 80)


def test_it_is_up_before_gradio_or_any_model_is_imported():
    code = """
import sys
from app.waiting import Waiting
Waiting("127.0.0.1", 0).close()
print(sorted({"gradio", "torch", "numpy", "plotly", "starlette"} & set(sys.modules)))
"""
    result = subprocess.run(
        [sys.executable, "-B", "-c", code], cwd=ROOT, capture_output=True, text=True
    )
    assert result.stdout.strip() == "[]", result.stderr


# The hand-over ------------------------------------------------------------------------------------


@pytest.fixture
def page():
    gr = pytest.importorskip("gradio")
    with gr.Blocks(title="the page", analytics_enabled=False) as page:
        gr.HTML("ready")
    from app.serve import close

    yield page
    close(page)


def test_the_page_takes_the_port_over(port, page, monkeypatch):
    from gradio.routes import App

    from app.serve import launch

    create, held = App.create_app, []

    def created(*arguments, **options):
        made = create(*arguments, **options)
        held.append(not binds(port))  # Gradio has all it needs but the port
        return made

    monkeypatch.setattr(App, "create_app", created)
    waiting = Waiting(HOST, port)
    seen: list[tuple[int, str]] = []
    over = threading.Event()

    def watch():
        while not over.is_set():
            with suppress(OSError, http.client.HTTPException):  # the port changes hands
                status, _, text = ask(port, "/healthz")
                seen.append((status, json.loads(text)["status"]))
            time.sleep(0.005)

    watcher = threading.Thread(target=watch)
    watcher.start()
    while not seen:
        time.sleep(0.005)
    launch(page, host=HOST, port=port, waiting=waiting)
    deadline = time.monotonic() + 60
    while seen[-1] != (200, "ready") and time.monotonic() < deadline:
        time.sleep(0.005)
    over.set()
    watcher.join()
    assert held == [True]
    assert list(dict.fromkeys(seen)) == [(503, "loading"), (200, "ready")]
    assert "the page" in ask(port)[2]


def test_a_port_lost_on_the_way_is_said(port, page, monkeypatch):
    from app.serve import launch

    waiting = Waiting(HOST, port)
    free = waiting.close
    with socket.socket() as thief:

        def stolen():
            free()
            thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            thief.bind((HOST, port))
            thief.listen()

        monkeypatch.setattr(waiting, "close", stolen)
        with pytest.raises(ArenaError, match=f"port {port} on 127.0.0.1 is taken"):
            launch(page, host=HOST, port=port, waiting=waiting)


@pytest.mark.browser
def test_an_open_tab_follows_the_lines_and_turns_into_the_page(port, page, browser):
    from browsing import Tab, expect

    from app.serve import launch

    waiting = Waiting(HOST, port)
    waiting.say("first <b>line</b>")
    tab = Tab(browser, f"http://{HOST}:{port}/", "pre")
    expect(tab.locate("pre")).to_have_text("first <b>line</b>")
    waiting.say("second line")
    expect(tab.locate("pre")).to_contain_text("second line")
    launch(page, host=HOST, port=port, waiting=waiting)
    expect(tab.locate("gradio-app, .gradio-container").first).to_contain_text("ready")
    assert tab.page.title() == "the page"
    assert not tab.troubles
    tab.close()
