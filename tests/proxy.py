"""A reverse proxy that serves another address under a path prefix, as sites do with many apps."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import uvicorn
from browsing import free_port, until
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "upgrade", "content-length"}


@contextmanager
def behind_prefix(url: str, prefix: str) -> Iterator[str]:
    """The address of ``url`` under ``prefix``; whatever is asked for outside of it is not found."""
    client = httpx.AsyncClient(base_url=url, timeout=None)

    async def forward(request: Request):
        if not request.url.path.startswith(f"{prefix}/"):
            return PlainTextResponse("outside of the prefix", status_code=404)
        path = request.url.path.removeprefix(prefix)
        asked = client.build_request(
            request.method,
            httpx.URL(path=path, query=request.url.query.encode()),
            headers=[(k, v) for k, v in request.headers.raw if k.decode() not in HOP_BY_HOP],
            content=await request.body(),
        )
        answer = await client.send(asked, stream=True)
        headers = {k: v for k, v in answer.headers.items() if k not in HOP_BY_HOP}
        return StreamingResponse(
            answer.aiter_raw(),
            status_code=answer.status_code,
            headers=headers,
            background=BackgroundTask(answer.aclose),
        )

    methods = ["GET", "POST", "HEAD"]
    app = Starlette(routes=[Route("/{path:path}", forward, methods=methods)])
    port = free_port()
    server = uvicorn.Server(
        uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error", ws="none")
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until(lambda: server.started)
    try:
        yield f"http://127.0.0.1:{port}{prefix}/"
    finally:
        server.should_exit = server.force_exit = True
        thread.join(10)
