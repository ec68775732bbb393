"""A real Chromium for tests of the page, and what a visitor does in it."""

from __future__ import annotations

import shutil
import socket
import time

import pytest

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
if CHROMIUM is None:
    pytest.skip("no Chromium on this machine", allow_module_level=True)

pytest.importorskip("gradio")
playwright = pytest.importorskip("playwright.sync_api")

WAIT = 120_000  # ms, on a busy machine
expect = playwright.expect
expect.set_options(timeout=WAIT)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def until(condition, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


class Tab:
    """One visitor's tab, and what went wrong in it: script errors and requests to elsewhere."""

    def __init__(self, browser, url: str, ready: str = "body", **context):
        self.context = browser.new_context(
            **{"viewport": {"width": 1440, "height": 900}, **context}
        )
        self.page = self.context.new_page()
        self.troubles: list[str] = []
        self.page.on("pageerror", lambda error: self.troubles.append(f"error: {error}"))
        self.page.on("request", self._request)
        self._streams: set = set()  # open answers of the server to events of the page
        for over in ("requestfinished", "requestfailed"):
            self.page.on(over, lambda request: self._streams.discard(request))
        self._url = url
        self._ready = ready
        self.open()

    def open(self, query: str = "") -> None:
        if query.startswith("#"):
            self.page.goto("about:blank")  # or the tab would keep its page
        self.page.goto(self._url + query)
        self.page.wait_for_selector(self._ready, timeout=WAIT)

    def settle(self) -> None:
        """Until no event is under way. A run's last value comes before its end, and Gradio drops a
        click on Run (``trigger_mode="once"``) in between.
        """
        deadline = time.monotonic() + WAIT / 1000
        while self._streams:
            assert time.monotonic() < deadline, "an event of the page does not end"
            self.page.wait_for_timeout(10)  # ms

    def _request(self, request) -> None:
        if "/queue/data" in request.url:
            self._streams.add(request)
        if not request.url.startswith((self._url, "data:", "blob:")):
            self.troubles.append(f"external request: {request.url}")

    def wait(self, script: str, argument=None) -> None:
        """Until the JavaScript expression, or function of ``argument``, is true; while it throws,
        what it asks for is not there yet.
        """
        tried = (
            f"argument => {{ try {{ const found = ({script}); return typeof found === 'function' "
            "? found(argument) : found; } catch { return false; } }"
        )
        self.page.wait_for_function(tried, arg=argument, timeout=WAIT)

    def locate(self, selector: str):
        return self.page.locator(selector)
