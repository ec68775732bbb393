"""The draft tree of one step, as the drafter built it and the target judged it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gradio as gr

from app.panels.base import panel


def tree_view(value: dict, *, tree_of: Callable[[str, str, int], str], **options: Any) -> gr.HTML:
    """A tree view for a value of ``view.RunView.trees``.

    ``tree_of(run, engine, step)`` gives the tree of an earlier step as JSON text: the browser asks
    for what its visitor looks at.
    """

    def tree(run: str, engine: str, step: int) -> str:
        return tree_of(run, engine, step)

    shell = '<section class="tree"></section>'
    return panel(("tree-drawing.js", "tree.js"), shell, value, server_functions=[tree], **options)
