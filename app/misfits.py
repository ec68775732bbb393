"""Calls that the page's own script does not make: a program's, or those of a tab whose page was
served by an earlier start. Each gets a sentence; Gradio would log a traceback for it.
"""

from __future__ import annotations

import logging
from typing import Any

import gradio as gr
from gradio.route_utils import FnIndexInferError
from starlette.requests import Request
from starlette.responses import JSONResponse

log = logging.getLogger(__name__)

NO_SUCH = "This page has nothing of that kind (any more): load it again."
MISFIT = "This does not fit what the page asks for (any more): load it again."
INTERNAL = "an internal error; the server's log has the details"
QUEUED = ("/queue/join", "/run/predict")
ASKED = "/component_server"  # what scripts ask the server for: see panels.base


def refuse_misfits(page: gr.Blocks) -> None:
    """Let what is no value of a function's fields be refused in a sentence, before it is called."""
    take_in = page.preprocess_data

    async def taken_in(function: Any, inputs: list[Any], *rest: Any, **options: Any) -> Any:
        if not function.fn:  # the browser's alone
            raise gr.Error(NO_SUCH, print_exception=False)
        asked = zip(function.inputs, inputs, strict=False)
        if any(isinstance(part, gr.Dataset) and value is None for part, value in asked):
            raise gr.Error(MISFIT, print_exception=False)  # Gradio's function takes it for a pair
        try:
            return await take_in(function, inputs, *rest, **options)
        except gr.Error as error:
            error.print_exception = False
            raise
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            log.debug("what was sent does not fit", exc_info=True)  # or a fault of the page itself
            raise gr.Error(MISFIT, print_exception=False) from error

    page.preprocess_data = taken_in  # type: ignore[method-assign, assignment]


def _refused(request: Request, error: Exception) -> JSONResponse:
    """The answer where Gradio lets an error through that a call made, not what was called."""
    path, missing = request.url.path, isinstance(error, KeyError)
    if path.endswith("/gradio_api/cancel") and missing:  # two clicks on Stop at the same time
        return JSONResponse({"success": True})  # it is cancelled
    unknown = missing and [type(key) for key in error.args] == [int]  # a function's number
    nameless = isinstance(error, FnIndexInferError | UnicodeDecodeError)
    if path.endswith(ASKED) or (path.endswith(QUEUED) and (unknown or nameless)):
        return JSONResponse({"detail": NO_SUCH}, 404)
    raise error


HANDLERS = dict.fromkeys((KeyError, ValueError, FnIndexInferError), _refused)
