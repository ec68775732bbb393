"""What stands before the page: the routes that visitors have, who may use them, and how much.

Gradio brings many routes along. Visitors have those that the page uses; the others (files by their
path, a proxy to other sites, its editor, its monitor) are not there.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from urllib.parse import urlsplit

from gradio.routes import App
from starlette.datastructures import Headers, QueryParams
from starlette.requests import cookie_parser
from starlette.types import Scope

from app.access import LOCAL, Account, Tries, answer_headers, on_space
from app.misfits import NO_SUCH
from app.panels import PLOTLY
from app.uploads import MOST
from dart_core.gate import Check, Gate, Limits, Refusal, called, own_site, route, visitor

MAX_BODY = 512 << 10  # bytes of a request: the longest prompt with every character escaped, twice
API = "/gradio_api"
UPLOAD = f"{API}/upload"
OPEN = {  # what a browser needs to show the page that asks for a password
    "", "/login", "/theme.css", "/favicon.ico", "/manifest.json", "/robots.txt", "/healthz",
    f"/{PLOTLY}", f"{API}/theme.css", f"{API}/startup-events",
}  # fmt: skip
ROUTES = OPEN | {
    "/config", "/logout", UPLOAD,
    *(f"{API}/{name}" for name in (
        "app_id", "cancel", "component_server", "info", "login_check", "queue/data", "queue/join",
        "reset", "run/predict", "upload_progress", "user",
    )),
}  # fmt: skip
OPEN_FOLDERS = ("/assets/", "/static/")
FOLDERS = (*OPEN_FOLDERS, f"{API}/heartbeat/")
PRIVATE = "127.0.0.0/8,::1,10.0.0.0/8,172.16.0.0/12,192.168.0.0/16"  # where a Space's proxy is


def stand_before(
    app: App, *, host: str, port: int, share: bool, root_path: str, auth: Sequence[Account]
) -> None:
    """Put a gate around all that Gradio does; its own way to add a layer is inside of others."""
    prefix = urlsplit(root_path).path.rstrip("/")
    members = Members(app, prefix, asked=bool(auth))
    checks: list[Check] = [lambda scope, headers: _known(route(scope, prefix))]
    if on_space():
        os.environ.setdefault("FORWARDED_ALLOW_IPS", PRIVATE)  # who tells whose a request is
    if auth or not on_space():  # an open Space's hub may look in from its own pages
        checks.append(own_site)
    if host in LOCAL and not (share or root_path or on_space()):
        remedy = f"behind a proxy, say so: --root-path http://NAME:{port}"
        checks.append(called(LOCAL, remedy))
    checks.append(members.check)  # after those: it counts who tries a password
    checks.append(lambda scope, headers: _listening(scope, prefix, app))
    app.middleware_stack = Gate(
        app.build_middleware_stack(),
        Limits(body=MAX_BODY, bodies={UPLOAD: MOST}),
        checks,
        told=lambda status, sentence: {"detail": sentence},
        headers=answer_headers(),
        prefix=prefix,
        seen=members.seen,
    )


def _known(asked: str) -> Refusal | None:
    return None if asked in ROUTES or asked.startswith(FOLDERS) else (404, "Not Found")


def _listening(scope: Scope, prefix: str, app: App) -> Refusal | None:
    """A session to which nothing is told: Gradio would find out within its answer, and fail."""
    if route(scope, prefix) != f"{API}/queue/data":
        return None
    session = QueryParams(scope["query_string"]).get("session_hash")
    told = app.get_blocks()._queue.pending_messages_per_session
    return None if session in told else (404, NO_SUCH)


def _tries_password(scope: Scope, asked: str) -> bool:
    return asked == "/login" and scope["method"] == "POST"


class Members:
    """Lets nobody past the page that asks for a password who has not given it: Gradio itself asks
    on most of its routes only.
    """

    def __init__(self, app: App, prefix: str, asked: bool):
        self._app, self._prefix, self._asked = app, prefix, asked
        self._tries = Tries()

    def check(self, scope: Scope, headers: Headers) -> Refusal | None:
        asked = route(scope, self._prefix)
        if _tries_password(scope, asked):
            if self._tries.spent(visitor(scope)):
                return 429, "too many wrong passwords: wait some minutes"
            self._tries.wrong(visitor(scope))
        if asked in OPEN or asked.startswith(OPEN_FOLDERS) or self._is_in(headers):
            return None
        return 401, "Not authenticated"

    def seen(self, scope: Scope, status: int) -> None:
        if status < 400 and _tries_password(scope, route(scope, self._prefix)):
            self._tries.right(visitor(scope))

    def _is_in(self, headers: Headers) -> bool:
        if not self._asked:
            return True
        cookies = cookie_parser(headers.get("cookie", ""))
        kinds = ("", "unsecure-")  # Gradio's cookies for https and http
        names = (f"access-token-{kind}{self._app.cookie_id}" for kind in kinds)
        return any(cookies.get(name) in self._app.tokens for name in names)
