"""Put a page on a port: its looks, its own files, its health route."""

from __future__ import annotations

import gzip
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import gradio as gr
import plotly
from gradio import http_server
from gradio.routes import App
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from app.access import Account
from app.guard import UPLOAD, stand_before
from app.misfits import HANDLERS, INTERNAL, refuse_misfits
from app.panels import PLOTLY, STYLE_SHEETS
from app.queueing import share_fairly
from app.recording import MAX_BYTES
from app.uploads import Uploads
from app.waiting import Waiting, taken
from dart_core.connections import Connection
from dart_core.errors import ArenaError

HERE = Path(__file__).parent
PLOTLY_FILE = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
SANS = [
    "ui-sans-serif",
    "system-ui",
    "-apple-system",
    "Segoe UI",
    "Roboto",
    "Liberation Sans",
    "sans-serif",
]
MONO = ["ui-monospace", "SFMono-Regular", "Liberation Mono", "Menlo", "monospace"]
SESSIONS = 128  # of visitors, kept with what they last sent: Gradio takes 150 kB for each


def launch(
    page: gr.Blocks,
    *,
    host: str,
    port: int,
    share: bool = False,
    root_path: str = "",
    auth: Sequence[Account] = (),
    waiting: Waiting | None = None,
) -> tuple[str, str | None]:
    """Serve the page in background threads; returns its local address and its public one.

    auth: who may come in, with one of these names and passwords; without any, everybody. waiting:
    who holds the port until then. Raises ArenaError if the port is taken.
    """
    uploads = Uploads(page)
    share_fairly(page)
    refuse_misfits(page)
    page.api_open = False  # no run but through the queue
    routes = [
        Route("/healthz", lambda request: JSONResponse({"status": "ready"})),
        Route(UPLOAD, uploads.take, methods=["POST"]),
        # A route, not a mount: mounted files are not found behind a proxy that strips a prefix.
        Route(f"/{PLOTLY}", _plotly),
    ]

    def guard(app: App) -> None:
        stand_before(app, host=host, port=port, share=share, root_path=root_path, auth=auth)

    try:
        with _handed_over(waiting, guard):
            _, local, shared = page.launch(
                server_name=host,
                server_port=port,
                share=share,
                root_path=root_path or None,
                auth=list(auth) or None,
                app_kwargs={
                    "routes": routes,
                    "openapi_url": None,
                    "exception_handlers": {**HANDLERS, Exception: _failed},
                },
                theme=_theme(),
                css_paths=[HERE / "page.css", *STYLE_SHEETS],
                max_file_size=MAX_BYTES,
                state_session_capacity=SESSIONS,
                footer_links=["settings"],
                run_history=False,
                enable_monitoring=False,
                mcp_server=False,
                num_workers=0,  # they would serve files on ports of their own
                ssr_mode=False,
                quiet=True,
                prevent_thread_lock=True,
            )
    except OSError as error:
        raise ArenaError(taken(host, port)) from error
    address = f"http://localhost:{port}" if host in ("127.0.0.1", "0.0.0.0") else local.rstrip("/")
    return address, shared


def close(page: gr.Blocks) -> None:
    """Take a page off its port, at once: an open tab holds its connections as long as it likes."""
    if page.is_running:
        logging.getLogger("uvicorn.error").disabled = True  # a traceback for each of those
        page.server.force_exit = True
        page.close(verbose=False)


@contextmanager
def _handed_over(waiting: Waiting | None, guard: Callable[[App], None]) -> Iterator[None]:
    """Free the port at the last moment: Gradio builds its whole server before it binds."""
    start = http_server.start_server

    def take_over(app: App, **options: Any) -> Any:
        guard(app)
        if waiting:
            waiting.close()
        started = start(app, **options)
        started[3].config.http_protocol_class = Connection  # read for each: Gradio lets none be set
        return started

    http_server.start_server = take_over  # type: ignore[assignment]
    try:
        yield
    finally:
        http_server.start_server = start


def _plotly(request: Request) -> Response:
    """Plotly's script, as the installed package brings it."""
    kind = "text/javascript"
    if "gzip" not in request.headers.get("accept-encoding", ""):
        return FileResponse(PLOTLY_FILE, media_type=kind, headers={"Vary": "Accept-Encoding"})
    headers = {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
    return Response(_packed_plotly(), media_type=kind, headers=headers)


@cache
def _packed_plotly() -> bytes:
    """Packed once: Gradio would pack its 4.8 MB anew for every visitor, in 0.2 s of a core."""
    return gzip.compress(PLOTLY_FILE.read_bytes())


def _failed(request: Request, error: Exception) -> JSONResponse:
    """What a visitor is told of an unforeseen error; its traceback is in the log."""
    return JSONResponse({"detail": INTERNAL}, 500)


def _theme() -> gr.Theme:
    return gr.themes.Base(
        primary_hue="blue",
        neutral_hue="slate",
        font=SANS,
        font_mono=MONO,
        radius_size=gr.themes.sizes.radius_lg,
    ).set(
        body_background_fill="var(--page)",
        body_background_fill_dark="var(--page)",
        block_background_fill="var(--card)",
        block_background_fill_dark="var(--card)",
        block_border_color="var(--line)",
        block_border_color_dark="var(--line)",
        button_primary_background_fill="#1d4ed8",
        button_primary_background_fill_hover="#1e40af",
        button_primary_background_fill_dark="#1d4ed8",
        button_primary_background_fill_hover_dark="#2456e0",
        button_primary_text_color="#ffffff",
        button_primary_text_color_dark="#ffffff",
        block_info_text_color="var(--quiet)",
        block_info_text_color_dark="var(--quiet)",
    )
