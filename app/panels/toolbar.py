"""The toolbar: the presenter's mode, and the keys that press the page's buttons."""

from __future__ import annotations

from typing import Any

import gradio as gr

from app.panels.base import panel


def toolbar(**options: Any) -> gr.HTML:
    """A bar that needs no value: all it does happens in the browser."""
    return panel("toolbar.js", '<div class="toolbar"></div>', {}, **options)
