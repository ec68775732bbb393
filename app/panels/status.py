"""The status line: the run in a sentence, read out politely once a second, and as files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gradio as gr

from app.panels.base import panel

KINDS = ("json", "csv")


def status_line(value: dict, *, record_of: Callable[[str, str], str], **options: Any) -> gr.HTML:
    """A line for a value of ``view.RunView.status``.

    ``record_of(run, kind)`` gives a run as a file's text, "" if it is not kept. kind: "json", the
    recording, or "csv", its steps.
    """

    def record(run: str, kind: str) -> str:
        return record_of(run, kind) if kind in KINDS else ""

    shell = '<div class="arena-run"></div>'
    return panel("status.js", shell, value, server_functions=[record], **options)
