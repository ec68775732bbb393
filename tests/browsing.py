"""A real Chromium for tests of the page, and what a visitor does in it."""

from __future__ import annotations

import shutil
import socket
import time
from contextlib import suppress
from typing import Any, ClassVar

import pytest

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
if CHROMIUM is None:
    pytest.skip("no Chromium on this machine", allow_module_level=True)

pytest.importorskip("gradio")
playwright = pytest.importorskip("playwright.sync_api")

# Chromium's own address bar is two more pages for every tab, a fifth of the work to open ours. The
# others are Playwright's: of two such lists Chromium heeds the last alone.
OFF = (
    "WebUIOmniboxPopup,WebUIOmniboxAimPopup,WebUIOmniboxFullPopup,"
    "AimEnabled,AvoidCorsURLLoaderRestartOnRedirect,AvoidUnnecessaryBeforeUnloadCheckSync,"
    "DestroyProfileOnBrowserClose,HttpsFirstBalancedModeAutoEnable,HttpsUpgrades,LensOverlay,"
    "MediaRouter,NetworkTimeServiceQuerying,OptimizationHints,PaintHolding,PreconnectToSearch,"
    "ThirdPartyStoragePartitioning"
)
CHROMIUM_ARGS = ["--no-sandbox", "--disable-gpu", f"--disable-features={OFF}"]
WAIT = 120_000  # ms, on a busy machine
QUIET = 200  # ms without a request, after which nothing is under way
expect = playwright.expect
expect.set_options(timeout=WAIT)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def until(condition, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


class Tab:
    """One visitor's tab, and what went wrong in it: script errors and requests to elsewhere."""

    # Pages that were closed, by browser: one in a new context takes twice the work to open.
    _spare: ClassVar[dict[Any, list]] = {}

    def __init__(self, browser, url: str, ready: str = "body", **context):
        self._spares = None if context else self._spare.setdefault(browser, [])
        if self._spares:
            self.page = self._spares.pop()
        else:
            viewport = {"width": 1440, "height": 900}
            self.page = browser.new_context(**{"viewport": viewport, **context}).new_page()
        self.context = self.page.context
        self.context.set_default_timeout(WAIT)  # clicks too
        self.troubles: list[str] = []
        self._handlers: list[tuple] = []
        self.on("pageerror", lambda error: self.troubles.append(f"error: {error}"))
        self.on("request", self._request)
        self._asked: set = set()  # requests without an answer yet
        for over in ("requestfinished", "requestfailed"):
            self.on(over, lambda request: self._asked.discard(request))
        self._url = url
        self._ready = ready
        self.open()

    def on(self, event: str, handler) -> None:
        """As Playwright's ``page.on``, until the tab is closed."""
        self.page.on(event, handler)
        self._handlers.append((event, handler))

    def close(self) -> None:
        """Leave the page, with all that it keeps in the browser. Once more changes nothing."""
        if not self._handlers:
            return
        for event, handler in self._handlers:
            self.page.remove_listener(event, handler)
        self._handlers = []
        if self._spares is not None and len(self.context.pages) == 1:
            with suppress(playwright.Error):
                self.page.evaluate("() => { localStorage.clear(); sessionStorage.clear(); }")
                self.page.goto("about:blank")
                self.page.mouse.move(0, 0)
                self.context.clear_cookies()
                self._spares.append(self.page)
                return
        self.context.close()

    def open(self, query: str = "") -> None:
        if query.startswith("#"):
            self.page.goto("about:blank")  # or the tab would keep its page
        self._asked.clear()
        self.page.goto(self._url + query)
        self.page.wait_for_selector(self._ready, timeout=WAIT)
        self.settle()

    def settle(self) -> None:
        """Until nothing is under way between page and server for a moment. While a page loads,
        Gradio may set a field once more that a visitor has typed into; and a run's last value comes
        before its end, when Gradio still drops a click on Run (``trigger_mode="once"``).
        """
        deadline = time.monotonic() + WAIT / 1000
        quiet = 0
        while quiet < QUIET:
            assert time.monotonic() < deadline, f"no answer to {[ask.url for ask in self._asked]}"
            self.page.wait_for_timeout(20)
            quiet = 0 if self._asked else quiet + 20

    def _request(self, request) -> None:
        if "/heartbeat/" not in request.url:  # that stream stays open
            self._asked.add(request)
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
