"""A gr.HTML whose content is built by its own script from a JSON value.

The template is one empty element, so an update costs the browser no re-rendering, and no text of a
model ever passes through a template. Functions, not subclasses: Gradio writes a stub file beside
every module that subclasses a component.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from inspect import signature
from pathlib import Path
from typing import Any

import gradio as gr
from starlette.exceptions import HTTPException

from app.misfits import INTERNAL, MISFIT

log = logging.getLogger(__name__)

HERE = Path(__file__).parent
STYLE_SHEETS = sorted(HERE.glob("*.css"))


def panel(
    scripts: str | Sequence[str],
    shell: str,
    value: Any,
    server_functions: Sequence[Callable[..., str]] = (),
    **options: Any,
) -> gr.HTML:
    """A component that holds ``shell`` and runs ``scripts``, files beside this one, in order and in
    one scope. server_functions: what the scripts may ask the server for; their parameters'
    annotations say what is taken.
    """
    scripts = (scripts,) if isinstance(scripts, str) else scripts
    sources = [(HERE / name).read_text(encoding="utf-8") for name in ("common.js", *scripts)]
    return gr.HTML(
        value=value,
        html_template=shell,
        js_on_load="\n".join(sources),
        server_functions=[_in_turn(function) for function in server_functions],
        apply_default_css=False,
        **options,
    )


def _in_turn(function: Callable[..., str]) -> Callable:
    """The function with a thread of its own, which answers one browser after the other: many that
    ask at once take no thread that runs are shown by. A browser's arguments arrive as one list.
    """
    worker = ThreadPoolExecutor(1, thread_name_prefix="arena-answers")
    kinds = [p.annotation for p in signature(function, eval_str=True).parameters.values()]

    async def answer(asked: list) -> str:
        if not isinstance(asked, list) or [type(value) for value in asked] != kinds:
            raise HTTPException(400, MISFIT)
        try:
            return await asyncio.get_running_loop().run_in_executor(worker, function, *asked)
        except Exception as error:
            log.exception("a question of the page's script could not be answered")
            raise HTTPException(500, INTERNAL) from error

    answer.__name__ = function.__name__  # by which it is called
    return answer
