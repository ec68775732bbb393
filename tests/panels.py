"""One panel alone on a page, for tests of its script: the test pushes values, no engine runs."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gradio as gr
from browsing import WAIT, Tab, expect, free_port

from app.serve import close, launch


class PanelPage:
    """A served page with one panel; every test opens its own tab of it."""

    def __init__(self, url: str, pending: deque, ready: str):
        self.url = url
        self._pending = pending
        self._ready = ready

    @contextmanager
    def tab(self, browser, **context) -> Iterator[PanelTab]:
        """A tab of the page; at its end it must have seen no error and no request to elsewhere."""
        tab = PanelTab(browser, self.url, self._ready, self._pending, **context)
        try:
            yield tab
        finally:
            tab.close()
        assert not tab.troubles


class PanelTab(Tab):
    """A visitor's tab. It shows the panel's first value until the test pushes others."""

    def __init__(self, browser, url: str, ready: str, pending: deque, **context):
        self._pending = pending
        pending.clear()  # what a failed test left
        super().__init__(browser, url, ready, **context)

    def push(self, *values: Any, pause: float = 0.0) -> None:
        """Hand the panel ``values`` one by one, as a run streams them; returns when all arrived.

        pause: seconds between two. What the panel draws of them comes a moment later: ``expect``
        and ``wait`` wait for it.
        """
        told = self.page.locator("#pushed input")
        count = int(told.input_value()) + len(values)
        self._pending.append((values, pause))
        self.page.locator("#push").evaluate("node => node.click()")  # leaves focus and mouse alone
        expect(told).to_have_value(str(count), timeout=WAIT)


@contextmanager
def served_panel(build: Callable[[], gr.HTML], ready: str = "#panel") -> Iterator[PanelPage]:
    """A page with the panel that ``build`` makes (give it ``elem_id="panel"``), on a port of its
    own. ready: the selector that says that the panel's script has run.
    """
    pending: deque = deque()

    def stream(count: float):
        values, pause = pending.popleft()
        for place, value in enumerate(values, start=1):
            yield value, count + place
            time.sleep(pause)

    with gr.Blocks(title="panel", analytics_enabled=False, fill_width=True) as page:
        panel = build()
        push = gr.Button("push", elem_id="push")
        pushed = gr.Number(0, precision=0, elem_id="pushed")
        # "multiple": Gradio drops a click that comes before the end of the push before it, and the
        # tests click as soon as its last value is there.
        push.click(stream, pushed, [panel, pushed], show_progress="hidden", trigger_mode="multiple")
    page.queue()
    port = free_port()
    launch(page, host="127.0.0.1", port=port)
    try:
        yield PanelPage(f"http://127.0.0.1:{port}/", pending, ready)
    finally:
        close(page)
