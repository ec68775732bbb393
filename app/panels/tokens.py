"""The token panel: one engine's text as it grows, each token showing who made it; once it is there,
also as a document.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gradio as gr

from app.panels.base import panel


def token_panel(value: dict, *, rendered_of: Callable[[str, str], str], **options: Any) -> gr.HTML:
    """A panel for a value of ``view.RunView.panel``.

    ``rendered_of(run, engine)`` gives that engine's answer as safe HTML (``app.markdown``), "" if
    the run is not kept: the browser asks once its visitor wants to see it.
    """

    def rendered(run: str, engine: str) -> str:
        return rendered_of(run, engine)

    shell = '<section class="lane"></section>'
    return panel("tokens.js", shell, value, server_functions=[rendered], **options)
