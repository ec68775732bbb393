"""The page before the page: while models load, a small server holds the port and says how far they
are.

Only the standard library: it answers before Gradio or torch are imported.
"""

from __future__ import annotations

import errno
import json
import threading
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any

from app.access import answer_headers
from dart_core.errors import ArenaError

KEPT_LINES = 100
CLIENT_SECONDS = 5.0  # for a request to come in
CLIENTS = 200  # at once, each with a thread; more are sent away
CLOSING_SECONDS = 0.1  # at most, from asking the server to end until it does

# The page asks for itself again and again: new lines are put in place, and once the real page
# answers, it takes over. Without scripts the browser reloads instead.
PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>DART Arena is loading</title>
<link rel="icon" href="data:,">
<noscript><meta http-equiv="refresh" content="3"></noscript>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 1rem/1.6 ui-sans-serif, system-ui, sans-serif; max-width: 60rem; margin: 12vh auto;
  padding: 0 1.5rem; }}
pre {{ font: 0.9rem/1.6 ui-monospace, Menlo, monospace; white-space: pre-wrap; }}
</style>
<h1>DART Arena is loading</h1>
<p>The models are being loaded and warmed up. When they are ready, this turns into the arena.</p>
<pre role="log">{lines}</pre>
<script>
const log = document.querySelector("pre");
setInterval(async () => {{
  try {{
    const answer = await fetch(location.href, {{ cache: "no-store" }});
    if (answer.status < 500) return location.reload();
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const lines = page.querySelector("pre[role=log]")?.textContent ?? log.textContent;
    if (log.textContent !== lines) log.textContent = lines;
  }} catch {{ /* the port changes hands */ }}
}}, 1000);
</script>
"""


class Waiting:
    """Holds ``host:port`` from now on, until ``close``. Raises ArenaError where it cannot be had.

    ``/healthz`` answers 503 and {"status": "loading"}, every other path 503 and the page.
    """

    def __init__(self, host: str, port: int):
        self.host, self.port = host, port
        self._lines: list[str] = []
        try:
            self._server = _Server((host, port), self)
        except PermissionError as error:
            raise ArenaError(
                f"port {port} needs more rights than this user has; choose one above 1023"
            ) from error
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise ArenaError(taken(host, port)) from error
            raise ArenaError(f"cannot serve on {host}:{port}: {error.strerror}") from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(CLOSING_SECONDS,), name="waiting", daemon=True
        )
        self._thread.start()

    def say(self, line: str) -> None:
        """Add a line to the page; the newest ones stay."""
        self._lines = [*self._lines, line][-KEPT_LINES:]

    def page(self) -> str:
        """The page as it is now, as HTML."""
        return PAGE.format(lines=escape("\n".join(self._lines)))

    def close(self) -> None:
        """Free the port; closing twice does nothing."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Waiting:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def taken(host: str, port: int) -> str:
    """What to tell where a port is taken."""
    return f"port {port} on {host} is taken; stop what uses it or choose another with --server-port"


class _Server(ThreadingHTTPServer):
    allow_reuse_port = False  # or another process could have the port as well
    daemon_threads = True

    def __init__(self, address: tuple[str, int], waiting: Waiting):
        self.waiting = waiting
        self._places = threading.BoundedSemaphore(CLIENTS)
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # HTTPServer's asks the network for this machine's name

    def handle_error(self, request: object, client_address: object) -> None:
        """A browser that went away is no news."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = CLIENT_SECONDS
    server_version, sys_version = "DART-Arena", ""  # which Python this is concerns nobody

    def do_GET(self) -> None:
        health = self.path.split("?")[0].rstrip("/").endswith("/healthz")
        text = json.dumps({"status": "loading"}) if health else self.server.waiting.page()
        body = text.encode("utf-8", "replace")
        self.send_response(HTTPStatus.SERVICE_UNAVAILABLE)
        kind = "application/json" if health else "text/html; charset=utf-8"
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Retry-After", "2")
        for name, value in answer_headers().items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_POST = do_GET

    def log_message(self, *arguments: object) -> None:
        """Requests are not logged."""
