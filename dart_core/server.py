"""An OpenAI-compatible HTTP server over one engine, for programs of the same machine.

One thread has the device and takes one request at a time; the others wait in a bounded queue, of
which no other machine has more than a quarter. A client that goes away gives the device back within
a step.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from types import FrameType
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from dart_core.chat_format import (
    ChatAnswer,
    ChatRequest,
    RequestError,
    closing_fields,
    error_object,
    model_ids,
    model_object,
    no_such_model,
    of_field,
    read_request,
    servers_error,
)
from dart_core.connections import Connection
from dart_core.engine import Engine, GenerationSettings
from dart_core.errors import ArenaError
from dart_core.gate import QUEUE, SHARE, Check, Gate, Limits, bearer, called, own_site, visitor
from dart_core.metrics import summarize
from dart_core.report import figures
from dart_core.step import Step, finish_of
from dart_core.text import TextStream

logger = logging.getLogger(__name__)

MAX_BODY = 2 << 20  # bytes
OPEN_EACH, OPEN_ALL = 32, 128  # requests under way: the device takes one at a time
ANSWER_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}
HEALTH = ("/healthz", "/health")
LOCAL_NAMES = ("localhost", "127.0.0.1")
CLIENT_GONE = 499  # a status that nobody will read


class Run:
    """One answer's steps on their way from the device's thread to the event loop."""

    def __init__(self, source: Generator[Step, None, None]) -> None:
        self._source = source
        self._items: asyncio.Queue = asyncio.Queue()  # short: an answer has few thousand steps
        self._loop = asyncio.get_running_loop()
        self.stop = threading.Event()
        self.future: Future | None = None
        self._queued = time.perf_counter()
        self.queue_seconds = 0.0

    def work(self) -> None:
        """All steps, on the device's thread, as fast as it can: whoever reads slowly must not hold
        the device.
        """
        self.queue_seconds = time.perf_counter() - self._queued
        try:
            with closing(self._source):
                while not self.stop.is_set() and (step := next(self._source, None)) is not None:
                    self._tell(step)
        except ArenaError as error:
            if isinstance(error, MemoryError):
                logger.error("%s", error)  # the operator's to mend, not the client's
                error = servers_error(error)
            self._tell(error)
        except Exception as error:
            logger.exception("an answer failed")
            self._tell(servers_error(error))
        self._tell(None)

    def _tell(self, item: Step | Exception | None) -> None:
        with suppress(RuntimeError):  # the loop is closed: the server has ended
            self._loop.call_soon_threadsafe(self._items.put_nowait, item)

    async def steps(self) -> AsyncIterator[Step]:
        """The steps as they come. Raises what ended the run before its time."""
        while (item := await self._items.get()) is not None:
            if isinstance(item, Exception):
                raise item
            yield item
            if item.finish_reason is not None:
                return
        raise RequestError(
            "the server is going down", status=503, kind="server_error", code="stopped"
        )


class Device:
    """The one thread that runs models, and who waits for it."""

    def __init__(self, queue: int = QUEUE):
        self.queue = queue
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="dart-device")
        self._runs: dict[Run, str | None] = {}  # and whose they are
        self._closed = False

    @property
    def busy(self) -> int:
        """Runs that are on the device or wait for it."""
        return len(self._runs)

    def start(self, source: Generator[Step, None, None], who: str | None = None) -> Run:
        """Queue a run of ``who``, None for this machine's own programs. Raises RequestError: 503
        where too many wait, 429 where too many of theirs do.
        """
        if self._closed or self.busy > self.queue:
            raise RequestError(
                f"{self.queue} requests wait already: try again later",
                status=503,
                kind="server_error",
                code="overloaded",
            )
        each = max(1, self.queue // SHARE)
        if who is not None and list(self._runs.values()).count(who) >= each:
            raise RequestError(
                f"{each} requests from your address run or wait already: try again when one ends",
                status=429,
                kind="rate_limit_error",
                code="rate_limit_exceeded",
            )
        run = Run(source)
        self._runs[run] = who
        run.future = self._pool.submit(run.work)
        run.future.add_done_callback(lambda _: self._runs.pop(run, None))
        return run

    def leave(self, run: Run) -> None:
        """Nobody wants the rest: end the run after its present step, or take it from the queue."""
        run.stop.set()
        if run.future is not None:
            run.future.cancel()

    def close(self) -> None:
        """End every run after its present step, and take no more."""
        self._closed = True
        for run in list(self._runs):
            run.stop.set()


class ChatServer:
    """The routes, over one engine. ``defaults`` stand for what requests leave out; ``log`` gets a
    line per answer.
    """

    def __init__(
        self,
        engine: Engine,
        defaults: GenerationSettings = GenerationSettings(),
        *,
        enable_thinking: bool = False,
        queue: int = QUEUE,
        log: Callable[[str], None] = logger.info,
    ):
        self.engine, self.defaults, self.enable_thinking = engine, defaults, enable_thinking
        self.models = model_ids(engine)
        self.device = Device(queue)
        self.log = log
        self._started = int(time.time())

    def routes(self) -> list[Route]:
        return [
            *(Route(path, self.health) for path in HEALTH),
            Route("/v1/models", self.list_models),
            Route("/v1/models/{model:path}", self.one_model),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
        ]

    def app(self, hosts: Sequence[str] = (), key: str | None = None) -> ASGIApp:
        """hosts: names that requests may call this server by, none for any; a page on some other
        name, which a browser was led to believe is this machine, is turned away. key: what requests
        must bring as ``Authorization: Bearer KEY``, all but those for its health.
        """
        checks: list[Check] = [own_site]
        if hosts:
            checks.append(called(hosts, "start the server with --listen to serve other machines"))
        if key is not None:
            checks.append(bearer(key, HEALTH))
        handlers: dict[Any, Callable[..., Response]] = {
            ArenaError: _refuse,
            HTTPException: _no_such_thing,
            Exception: _fail,
        }
        return Gate(
            Starlette(routes=self.routes(), exception_handlers=handlers),
            Limits(body=MAX_BODY, open_each=OPEN_EACH, open_all=OPEN_ALL),
            checks,
            told=_told,
            headers=ANSWER_HEADERS,
            challenge="Bearer",
        )

    async def health(self, request: Request) -> Response:
        busy = self.device.busy
        return JSONResponse(
            {"status": "ready", "running": min(1, busy), "waiting": max(0, busy - 1)}
        )

    async def list_models(self, request: Request) -> Response:
        data = [model_object(model, self._started) for model in self.models]
        return JSONResponse({"object": "list", "data": data})

    async def one_model(self, request: Request) -> Response:
        model = request.path_params["model"]
        if model not in self.models:
            raise no_such_model(model, self.models)
        return JSONResponse(model_object(model, self._started))

    async def chat(self, request: Request) -> Response:
        asked = read_request(
            await _json_body(request), self.models, self.defaults, self.enable_thinking
        )
        with of_field("messages"):  # a long one takes seconds: in a thread, the others go on
            prompt = await run_in_threadpool(
                self.engine.chat_ids, asked.messages, enable_thinking=asked.enable_thinking
            )
        # Before it waits: what the engine refuses is refused at once.
        steps = self.engine.stream(prompt, asked.engine, asked.settings)
        run = self.device.start(steps, visitor(request.scope))
        answer = _Answer(self, asked, len(prompt), run)
        if asked.stream:
            return _EventStream(answer)
        return await answer.whole(request)

    def serve(
        self, sock: socket.socket, hosts: Sequence[str] = LOCAL_NAMES, key: str | None = None
    ) -> None:
        """Serve a bound socket until a signal ends it. hosts, key: see ``app``."""
        server = _Server(self.app(hosts, key), self.device)
        server.run(sockets=[sock])


class _Answer:
    """One answer while it comes."""

    def __init__(self, server: ChatServer, asked: ChatRequest, prompt_tokens: int, run: Run):
        self.server, self.asked, self.prompt_tokens, self.run = server, asked, prompt_tokens, run
        self.steps: list[Step] = []
        self.format = ChatAnswer(asked)

    async def pieces(self) -> AsyncIterator[str]:
        """The text, as each step finishes some."""
        stream = TextStream(self.server.engine.tokenizer, self.asked.settings.stop)
        async for step in self.run.steps():
            self.steps.append(step)
            yield stream.push(step.tokens)
        yield stream.finish()

    @property
    def reason(self) -> str:
        return finish_of(self.steps)

    def closing(self) -> dict[str, Any]:
        metrics = summarize(self.steps)
        with suppress(OSError):  # nobody reads the log any more; the client reads its answer
            self.server.log(f"{self.asked.model}: {figures(metrics)}, finish {self.reason}")
        return closing_fields(
            self.asked.engine, self.prompt_tokens, self.steps, metrics, self.run.queue_seconds
        )

    async def whole(self, request: Request) -> Response:
        """The answer in one object."""

        async def collect() -> str:
            return "".join([piece async for piece in self.pieces()])

        answer, gone = asyncio.create_task(collect()), asyncio.create_task(_gone(request))
        try:
            await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                return Response(status_code=CLIENT_GONE)
            text = answer.result()
        finally:
            self.server.device.leave(self.run)
            answer.cancel()
            gone.cancel()
        return JSONResponse(self.format.completion(text, self.reason, self.closing()))

    async def events(self) -> AsyncIterator[str]:
        """The answer as server-sent events."""
        yield _event(self.format.chunk({"role": "assistant", "content": ""}))
        try:
            async for piece in self.pieces():
                if piece:
                    yield _event(self.format.chunk({"content": piece}))
        except ArenaError as error:
            yield _event(error_object(error))
            return
        yield _event(self.format.chunk({}, self.reason))
        closing = self.closing()
        if self.asked.stream_usage:
            yield _event(self.format.last_chunk(closing))
        yield "data: [DONE]\n\n"


class _EventStream(StreamingResponse):
    """Leaves the device whatever becomes of the client, even before the first event."""

    def __init__(self, answer: _Answer):
        super().__init__(
            answer.events(), media_type="text/event-stream", headers={"Cache-Control": "no-cache"}
        )
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._answer.server.device.leave(self._answer.run)


class _Server(uvicorn.Server):
    """Ends running answers with the server, within a step."""

    def __init__(self, app: ASGIApp, device: Device):
        super().__init__(
            uvicorn.Config(
                app,
                log_level="warning",
                http=Connection,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=5,
            )
        )
        self._device = device

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._device.close()
        super().handle_exit(sig, frame)


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket that has the port; nobody is answered before it is served. Raises ArenaError."""
    if not 0 <= port <= 65535:
        raise ArenaError(f"--server-port {port}: expected a number from 0 (any free one) to 65535")
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise ArenaError(
            f"port {port} cannot be had ({error.strerror}); choose another: --server-port "
            f"{port % 65535 + 1}"
        ) from error
    return sock


async def _json_body(request: Request) -> Any:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # which no page of another site can send unasked
        raise RequestError(
            f"content-type {kind or 'missing'}; expected application/json", status=415
        )
    try:
        return json.loads(await request.body())
    except ClientDisconnect:
        raise RequestError("the client went away", status=CLIENT_GONE) from None
    except (ValueError, RecursionError) as error:  # also: numbers too long, lists too deep
        raise RequestError(f"the body is not JSON: {error}") from error


async def _gone(request: Request) -> None:
    """Returns once the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n"


def _told(status: int, sentence: str) -> dict[str, Any]:
    """What the gate refuses, as OpenAI's error object."""
    codes = {401: "invalid_api_key", 429: "rate_limit_exceeded", 503: "overloaded"}
    kinds = {429: "rate_limit_error", 503: "server_error"}
    kind = kinds.get(status, "invalid_request_error")
    return error_object(RequestError(sentence, status=status, kind=kind, code=codes.get(status)))


def _refuse(request: Request, error: ArenaError) -> Response:
    if isinstance(error, MemoryError):
        logger.error("%s", error)  # the operator's to mend; to the client it may pass
        error = servers_error(error)
    status = getattr(error, "status", 400)
    headers = {"Retry-After": "1"} if status in (429, 503) else None
    return JSONResponse(error_object(error), status, headers)


def _no_such_thing(request: Request, error: HTTPException) -> Response:
    told = RequestError(f"{request.method} {request.url.path}: {error.detail}")
    return JSONResponse(error_object(told), error.status_code, error.headers)


def _fail(request: Request, error: Exception) -> Response:
    return _refuse(request, servers_error(error))
