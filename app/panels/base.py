"""A gr.HTML whose content is built by its own script from a JSON value.

The template is one empty element, so an update costs the browser no re-rendering, and no text of a
model ever passes through a template. Functions, not subclasses: Gradio writes a stub file beside
every module that subclasses a component.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gradio as gr

HERE = Path(__file__).parent
STYLE_SHEETS = sorted(HERE.glob("*.css"))


def panel(scripts: str | Sequence[str], shell: str, value: Any, **options: Any) -> gr.HTML:
    """A component that holds ``shell`` and runs ``scripts``, files beside this one, in order and in
    one scope.
    """
    scripts = (scripts,) if isinstance(scripts, str) else scripts
    sources = [(HERE / name).read_text(encoding="utf-8") for name in ("common.js", *scripts)]
    return gr.HTML(
        value=value,
        html_template=shell,
        js_on_load="\n".join(sources),
        apply_default_css=False,
        **options,
    )
