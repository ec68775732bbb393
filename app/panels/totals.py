"""The table of totals: a figure per row with its definition behind a button, and what the run ran
on.
"""

from __future__ import annotations

from typing import Any

import gradio as gr

from app.panels.base import panel


def totals_table(value: dict, **options: Any) -> gr.HTML:
    """A table for a value of ``view.RunView.totals``; hidden while it has no rows."""
    return panel("totals.js", '<section class="totals"></section>', value, **options)
