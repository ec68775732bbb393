"""The real page on a port, asked for what it must not give: files, routes, too much, secrets."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace

import pytest

gr = pytest.importorskip("gradio")
import httpx  # noqa: E402
from recorded import recording  # noqa: E402
from scripted import ScriptedEngine, ScriptedTokenizer, steps_of  # noqa: E402
from starlette.datastructures import Headers  # noqa: E402
from starlette.exceptions import HTTPException  # noqa: E402

from app.arena import Arena  # noqa: E402
from app.guard import MAX_BODY, UPLOAD, Members  # noqa: E402
from app.page import build_page  # noqa: E402
from app.queueing import EACH, LONGEST_NAME  # noqa: E402
from app.serve import close, launch  # noqa: E402
from app.uploads import COUNTED, MOST, Uploads  # noqa: E402

TOKEN = "hf_SecretOfThisMachine"
ACCOUNTS = [("ada", "pass:word"), ("bob", "0ther-w0rd")]
JOIN = "/gradio_api/queue/join"
TRAVERSALS = [
    "../" * 12 + "etc/passwd",
    "..%2f" * 12 + "etc%2fpasswd",
    "..%252f" * 12 + "etc%252fpasswd",
    "%2e%2e/" * 12 + "etc/passwd",
    "....//" * 12 + "etc/passwd",
    "..\\" * 12 + "etc\\passwd",
    "/etc/passwd",
    "%2fetc%2fpasswd",
    "//etc/passwd",
    "C:/Windows/win.ini",
]


def engine() -> ScriptedEngine:
    """Its runs last a second where the prompt says slow, fail where it says fail."""
    tokenizer = ScriptedTokenizer(["Hello", " world"])
    steps = steps_of(tokenizer.encode("Hello world. " * 40), [2])

    def script(prompt: str):
        return (
            [*steps[:2], RuntimeError(f"cannot read {Path.home()}/head.bin")]
            if "fail" in prompt
            else steps
        )

    def pace(prompt: str) -> float:
        return 20.0 if "slow" in prompt else 0.0

    return ScriptedEngine(dict.fromkeys(("ar", "dart", "eagle3"), script), tokenizer, pace=pace)


class Site:
    """A page on a port, and its visitors."""

    def __init__(self, address: str, page, folder: Path):
        self.address, self.page, self.folder = address, page, folder
        self.http = httpx.Client(base_url=address, timeout=60)

    @cached_property
    def config(self) -> dict:
        return self.http.get("/config").json()

    def event(self, name: str, trigger: str = "click", **values) -> dict:
        """What a browser sends for a button. values: elem_id, with _ for -, to the value sent."""
        parts = {part["id"]: part for part in self.config["components"]}
        button = next(i for i, part in parts.items() if part["props"].get("elem_id") == name)
        event = next(e for e in self.config["dependencies"] if [button, trigger] in e["targets"])
        data = []
        for key in event["inputs"]:
            props = parts[key]["props"]
            data.append(
                values.get((props.get("elem_id") or "").replace("-", "_"), props.get("value"))
            )
        return {"data": data, "fn_index": event["id"], "trigger_id": button}

    def join(self, event: dict, session: str, who: str | None = None) -> httpx.Response:
        """Queue an event, for a visitor at the address ``who``."""
        headers = {"x-forwarded-for": who} if who else {}
        return self.http.post(JOIN, json={**event, "session_hash": session}, headers=headers)

    def messages(self, session: str) -> Iterator[dict]:
        with self.http.stream(
            "GET", "/gradio_api/queue/data", params={"session_hash": session}
        ) as lines:
            for line in lines.iter_lines():
                if line.startswith("data:"):
                    yield json.loads(line[5:])

    def ends(self, event: dict, session: str) -> str:
        """All that a visitor is told of an event, as text."""
        answer = self.join(event, session)
        if answer.status_code != 200:
            return answer.text
        told = []
        for message in self.messages(session):
            told.append(message)
            if message["msg"] in ("process_completed", "unexpected_error"):
                break
        return json.dumps(told)

    def upload(
        self, content: bytes, name: str = "run.json", who: str | None = None
    ) -> httpx.Response:
        headers = {"x-forwarded-for": who} if who else {}
        return self.http.post(UPLOAD, files={"files": (name, content)}, headers=headers)


@contextmanager
def served(folder: Path, **options) -> Iterator[Site]:
    run = folder / "runs"
    run.mkdir(exist_ok=True)
    recording().save(run / "shipped.json")
    arena = Arena(engine(), max_length=30_000)
    page = build_page(arena, recordings=run)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    launch(page, **{"host": "127.0.0.1", "port": port, **options})
    try:
        yield Site(f"http://127.0.0.1:{port}", page, folder)
    finally:
        close(page)
        arena.close()
        logging.getLogger("uvicorn.error").disabled = False


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Iterator[Path]:
    """Where uploads go, of a machine with a token."""
    folder = tmp_path_factory.mktemp("machine")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADIO_TEMP_DIR", str(folder / "gradio"))
        patch.setenv("HF_TOKEN", TOKEN)
        yield folder


@pytest.fixture(scope="module")
def site(folder) -> Iterator[Site]:
    with served(folder) as site:
        yield site


def is_quiet(text: str) -> bool:
    """Nothing of this machine is in what a visitor is told."""
    inside = (
        TOKEN,
        "Traceback",
        "site-packages",
        ".py",
        str(Path.home()),
        os.getcwd(),
        "/tmp/",
        "root:",
    )
    found = [secret for secret in inside if secret in text]
    assert not found, (found, text[:2000])
    return True


# Routes and files ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/gradio_api/file=/etc/passwd",
        "/gradio_api/file=https://example.com/",
        "/gradio_api/file/etc/passwd",
        "/file=/etc/passwd",
        "/file/etc/passwd",
        "/gradio_api/proxy=https://example.com/",
        "/gradio_api/proxy=http://127.0.0.1:1/",
        "/proxy=https://x.hf.space/",
        "/gradio_api/stream/a/b/1/playlist.m3u8",
        "/gradio_api/stream/a/b/1/playlist-file",
        "/gradio_api/stream/a/b/1/c.ts",
        "/gradio_api/custom_component/x/client/component/index.js",
        "/gradio_api/deep_link?session_hash=x",
        "/gradio_api/runs",
        "/gradio_api/run-history/buckets",
        "/gradio_api/token",
        "/gradio_api/openapi.json",
        "/gradio_api/vibe-code",
        "/gradio_api/dev/reload",
        "/gradio_api/profiling/traces",
        "/gradio_api/queue/status",
        "/gradio_api/call/x/y",
        "/gradio_api/mcp/sse",
        "/monitoring",
        "/monitoring/summary",
        "/monitoring/x",
        "/svelte/../../../../etc/passwd",
        "/pwa_icon",
        "/docs",
        "/redoc",
        "/openapi.json",
        "/.env",
        "/app.py",
    ],
)
def test_the_frameworks_other_routes_are_not_there(site, path):
    answer = site.http.get(path)
    assert (answer.status_code, answer.json()) == (404, {"detail": "Not Found"})


@pytest.mark.parametrize(
    "path",
    ["/gradio_api/call/x", "/gradio_api/api/predict", "/gradio_api/run/other",
     "/gradio_api/stream/x", "/gradio_api/process_recording", "/gradio_api/vibe-edit",
     "/gradio_api/undo-vibe-edit", "/gradio_api/run-history/connect", "/run/predict", "/upload"],
)  # fmt: skip
def test_nothing_can_be_sent_to_other_routes(site, path):
    assert site.http.post(path, json={"data": []}).status_code == 404


@pytest.mark.parametrize(
    "base", ["/assets/", "/static/", "/theme.css/", "/gradio_api/heartbeat/../"]
)
@pytest.mark.parametrize("path", TRAVERSALS)
def test_no_file_outside_the_frameworks_own_folders_is_read(site, base, path):
    with socket.create_connection(("127.0.0.1", httpx.URL(site.address).port)) as line:
        # By hand: clients tidy paths up before they send them.
        line.sendall(
            f"GET {base}{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
        )
        answer = b"".join(iter(lambda: line.recv(65536), b"")).decode("utf-8", "replace")
    assert answer.split()[1] in ("400", "403", "404")
    assert is_quiet(answer)


def files(site: Site, path: str, **more) -> dict:
    return {"path": path, "meta": {"_type": "gradio.FileData"}, **more}


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "pyproject.toml", "../../etc/passwd", "file:///etc/passwd", "https://example.com/",
     "http://127.0.0.1:1/", "HTTP://127.0.0.1:1/", "shipped.json", "x" * 22 + "/../shipped.json",
     "x" * 22 + "/run.json", ""],
)  # fmt: skip
def test_a_file_is_only_ever_one_that_was_uploaded(site, path, monkeypatch):
    """Not in the place of a recording, nor in that of a prompt, a number or a name."""
    asked = []
    monkeypatch.setattr(
        "gradio.processing_utils.async_ssrf_protected_download",
        lambda *arguments, **options: asked.append(arguments),
    )
    named = [files(site, path), files(site, path, url="https://example.com/x.json", is_stream=True)]
    for number, file in enumerate(named):
        for event in (
            site.event("load-run", "upload", load_run=file),
            site.event("load-run", "upload", load_run=[file]),
            site.event("run", prompt=file),
            site.event("run", prompt="Hello", knob_tree_budget={"value": file}),
            site.event("replay", recorded=file),
        ):
            told = site.ends(event, f"file{number}{hash(path)}")
            assert is_quiet(told.replace(path, "") if len(path) > 3 else told)
            assert "The sky" not in told and '"success": true' not in told
            words = ("is not here (any more)", "could not be taken in", "Unprocessable", "Write a")
            assert any(word in told for word in words), told
        body = {**site.event("clear"), "data": [file], "session_hash": "direct"}
        assert is_quiet(site.http.post("/gradio_api/run/predict", json=body).text)
    assert not asked


def test_no_listed_run_is_reached_by_another_name(site):
    (site.folder / "outside.json").write_text((site.folder / "runs" / "shipped.json").read_text())
    for name in (
        "../outside.json",
        str(site.folder / "outside.json"),
        "shipped.json/../../outside.json",
    ):
        told = site.ends(site.event("replay", recorded=name, speed="at once"), "listed")
        assert is_quiet(told.replace(name, "")) and "The sky" not in told
    told = site.ends(site.event("replay", recorded="shipped.json", speed="at once"), "listed2")
    assert "The sky" in told and '"success": true' in told


@pytest.mark.parametrize(
    "name",
    ["run.json", "../../../etc/run.json", "..\\..\\run.json", "/etc/cron.d/run.json", ".bashrc",
     "..", "a\x00b.json", "x" * 500 + ".json", "<script>.json", "é🎉.json"],
)  # fmt: skip
def test_a_recording_is_stored_under_a_name_that_nobody_can_guess(site, name):
    data = (site.folder / "runs" / "shipped.json").read_bytes()
    (handle,) = site.upload(data, name).json()
    stored = site.folder / "gradio" / handle
    assert stored.read_bytes() == data
    assert stored.parent.parent == site.folder / "gradio"
    assert len(stored.parent.name) == 22 and not stored.name.startswith(".")
    assert str(stored) in site.page.upload_file_set  # to be deleted in time
    (again,) = site.upload(data, name).json()
    assert again.split("/")[0] != handle.split("/")[0]
    for asked in (handle, str(stored)):
        assert site.http.get(f"/gradio_api/file={asked}").status_code == 404


def test_an_uploaded_recording_plays(site):
    (handle,) = site.upload((site.folder / "runs" / "shipped.json").read_bytes()).json()
    event = site.event("load-run", "upload", load_run=files(site, handle), speed="at once")
    told = site.ends(event, "mine")
    assert "The sky" in told and '"success": true' in told and is_quiet(told)
    assert "not a recorded run" in site.ends(
        site.event("load-run", "upload", load_run=files(site, site.upload(b"{}").json()[0])), "none"
    )


# How much -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "size"),
    [(JOIN, MAX_BODY), ("/gradio_api/run/predict", MAX_BODY), ("/login", MAX_BODY),
     ("/gradio_api/component_server", MAX_BODY), ("/gradio_api/cancel", MAX_BODY), (UPLOAD, MOST)],
)  # fmt: skip
def test_too_large_a_request_is_refused(site, path, size):
    sent = 0

    def parts():
        nonlocal sent
        if path == UPLOAD:
            yield b'--x\r\nContent-Disposition: form-data; name="files"; filename="a"\r\n\r\n'
        for _ in range(size // 2**16 + 1):
            sent += 2**16
            yield b"[" * 2**16

    kinds = {
        UPLOAD: "multipart/form-data; boundary=x",
        "/login": "application/x-www-form-urlencoded",
    }
    kind = kinds.get(path, "application/json")
    answer = site.http.post(path, content=parts(), headers={"content-type": kind})
    assert (answer.status_code, sent > size) == (413, True)
    assert answer.json() == {"detail": f"the request is larger than {size} bytes"}


def test_the_longest_prompt_fits(site):
    event = site.event("run", prompt="🎉" * 20_000)
    body = json.dumps({**event, "session_hash": "long"})  # escaped: twelve bytes a character
    assert len(body) > 240_000
    answer = site.http.post(JOIN, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 200
    answer = site.join(site.event("run", prompt="x" * 20_001), "longer")
    assert answer.status_code == 422
    assert "20,001 characters; the page takes up to 20,000" in answer.text


@pytest.mark.parametrize("body", [b"[" * 100_000, b"{", b"\xff\xfe", b'{"data": 1}', b"null"])
@pytest.mark.parametrize("path", [JOIN, "/gradio_api/run/predict", "/gradio_api/component_server"])
def test_what_is_no_event_is_refused_in_words(site, path, body):
    answer = site.http.post(path, content=body, headers={"content-type": "application/json"})
    assert 400 <= answer.status_code < 500 and is_quiet(answer.text)


def test_an_upload_is_one_file(site):
    for sent in ({}, {"other": ("x", b"")}):
        assert site.http.post(UPLOAD, files=sent or None).status_code == 400
    two = [("files", ("a.json", b"{}")), ("files", ("b.json", b"{}"))]
    answer = site.http.post(UPLOAD, files=two)
    assert answer.status_code == 400 and "Too many files" in answer.text
    assert site.http.post(UPLOAD, data={"files": "no file"}).status_code == 400


def test_uploads_have_their_measure(monkeypatch):
    """In all and for each, in half an hour; what failed is not counted."""
    monkeypatch.setattr("app.uploads.EACH", 3000)
    monkeypatch.setattr("app.uploads.ALL", 8000)
    clock = [0.0]
    uploads = Uploads(SimpleNamespace(preprocess_data=None), now=lambda: clock[0])

    def bring(who: str, size: int = 1000) -> int:
        request = SimpleNamespace(scope={"client": (who, 1)}, headers={"content-length": str(size)})
        try:
            uploads._reserve(request)
        except Exception as error:
            return error.status_code
        return 200

    assert [bring("203.0.113.1") for _ in range(4)] == [200, 200, 200, 429]
    assert [bring("127.0.0.1") for _ in range(4)] == [200] * 4  # this machine's own
    assert [bring("203.0.113.2") for _ in range(2)] == [200, 503]
    assert bring("203.0.113.2", 10**30) == 429  # whatever it says
    clock[0] = COUNTED + 1
    assert bring("203.0.113.1") == 200

    class Slow:
        scope, headers = {"client": ("203.0.113.3", 1)}, {"content-length": "10"}

        def form(self, **options):
            clock[0] += 2 * COUNTED  # it counts no more when it fails
            bring("203.0.113.1")
            raise HTTPException(400, "cut short")

    with pytest.raises(HTTPException, match="cut short"):
        asyncio.run(uploads.take(Slow()))


def test_what_the_framework_leaves_behind_is_removed(site):
    uploads = site.folder / "gradio"
    site.upload(b"{}")
    old = [uploads / "tmpabc", uploads / "A", uploads / ("B" * 22)]
    old[0].write_bytes(b"")
    kept = [uploads / "notes.txt", uploads / "tmpdata"]
    for path in old[1:]:
        path.mkdir()
    for path in kept:
        path.write_text("mine")
    for path in old + kept:
        os.utime(path, (1, 1))
    fresh = uploads / "tmpnew"
    fresh.write_bytes(b"")
    site.upload(b"{}")
    assert [path.exists() for path in old] == [False] * 3
    assert all(path.exists() for path in [*kept, fresh])


def test_nobody_fills_the_queue_alone(site):
    event = site.event("run", prompt="slow")
    first, second = "203.0.113.1", "203.0.113.2"
    try:
        with ThreadPoolExecutor(12) as pool:  # at the same moment, for a check takes a moment
            asked = [pool.submit(site.join, event, f"a{n}", first) for n in range(12)]
            answers = [future.result() for future in asked]
        taken = [n for n, answer in enumerate(answers) if answer.status_code == 200]
        assert len(taken) == EACH
        refused = next(answer for answer in answers if answer.status_code != 200)
        assert refused.status_code == 429
        assert (
            f"{EACH} runs from your address are under way or wait already"
            in refused.json()["detail"]
        )
        assert site.join(event, "b", second).status_code == 200  # others are let in
        assert site.join(event, "own").status_code == 200
        cancel = {
            "session_hash": f"a{taken[-1]}",
            "fn_index": event["fn_index"],
            "event_id": answers[taken[-1]].json()["event_id"],
        }
        assert site.http.post("/gradio_api/cancel", json=cancel).status_code == 200
        assert site.join(event, "again", first).status_code == 200
        assert site.join(event, "more", first).status_code == 429
    finally:
        for line in site.page._queue.event_queue_per_concurrency_id.values():
            line.queue.clear()


def test_of_what_nobody_reads_little_is_kept(folder, monkeypatch):
    """Gradio keeps all that was told to 2000 sessions, and the names of all there were."""
    monkeypatch.setattr("app.queueing.UNREAD", 2)
    with served(folder) as site:
        queue, event = site.page._queue, site.event("run", prompt="Hello")

        def kept() -> list[str]:
            names = list(queue.pending_event_ids_session)
            assert names == list(queue.pending_messages_per_session)
            return names

        def over() -> bool:
            return not len(queue) and not any(queue.active_jobs)

        def left_unread(session: str, who: str) -> None:
            assert site.join(event, session, who).status_code == 200
            until = time.monotonic() + 120
            while not over() and time.monotonic() < until:
                time.sleep(0.02)
            assert over()

        left_unread("other", "203.0.113.2")
        for n in range(4):
            left_unread(f"unread{n}", "203.0.113.1")
        assert kept() == ["other", "unread1", "unread2", "unread3"]
        for session in ("read", "last"):
            assert '"success": true' in site.ends(event, session)
        assert kept() == ["other", "unread1", "unread2", "unread3", "last"]
        assert '"success": true' in site.ends(event, "unread3")  # a tab may ask again
        answer = site.join(event, "x" * (LONGEST_NAME + 1))
        assert answer.status_code == 400 and "a session's name" in answer.json()["detail"]


def test_no_run_gets_round_the_queue(site):
    body = {**site.event("run", prompt="Hello"), "session_hash": "round"}
    assert site.http.post("/gradio_api/run/predict", json=body).status_code == 404


# What visitors are told ---------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/config", "/gradio_api/info", "/theme.css", "/healthz"])
def test_nothing_of_the_machine_is_in_the_page(site, path, monkeypatch):
    answer = site.http.get(path)
    assert answer.status_code == 200
    assert TOKEN not in answer.text and "Traceback" not in answer.text
    for place in (str(Path.home()), str(site.folder), os.getcwd(), "site-packages"):
        assert f'"{place}' not in answer.text and f"{place}/" not in answer.text


def test_an_engine_that_fails_is_told_without_its_words(site):
    told = site.ends(site.event("run", prompt="fail"), "fails")
    assert "An internal error ended this engine (RuntimeError)" in told and is_quiet(told)


@pytest.mark.parametrize("error", [RuntimeError, KeyError, OSError, gr.Error, SystemError])
@pytest.mark.parametrize(
    ("place", "event", "trigger"),
    [("app.page.checked", "run", "click"), ("app.page.check_prompt", "run", "click"),
     ("app.replays.Recording.load", "replay", "click"),
     ("app.page.read_link", "link-opened", "click")],
)  # fmt: skip
def test_no_exception_reaches_a_visitor(site, error, place, event, trigger, monkeypatch):
    def fails(*arguments):
        raise error("cannot open /tmp/secret.py")

    monkeypatch.setattr(place, fails)
    monkeypatch.setattr("app.replays._kept", {})  # no recording is read already
    told = site.ends(site.event(event, trigger, prompt="Hello"), f"{place}{error.__name__}")
    if error is not gr.Error:  # which is for visitors
        assert is_quiet(told)
    assert (
        "internal error" in told
        or "could not" in told.lower()
        or '"error": null' in told
        or (error is gr.Error)
    )


def test_no_exception_of_a_direct_call_reaches_a_visitor(site, monkeypatch):
    def fails(*arguments):
        raise OSError("cannot open /tmp/secret.py")

    monkeypatch.setattr("app.page.read_link", fails)
    body = {**site.event("link-opened"), "data": ["#x"], "session_hash": "s"}
    answer = site.http.post("/gradio_api/run/predict", json=body)
    assert (answer.status_code, answer.json()) == (500, {"error": None})
    asked = {"data": ["x", "csv"], "session_hash": "s", "fn_name": "record"}
    body = {**asked, "component_id": part_of(site, "status")}
    assert site.http.post("/gradio_api/component_server", json=body).status_code == 200
    for changed in (
        {"component_id": 10**6},
        {"component_id": None},
        {"component_id": 1},
        {"component_id": [1]},
        {"fn_name": "__class__"},
        {"fn_name": "launch"},
        {"session_hash": []},
    ):
        answer = site.http.post("/gradio_api/component_server", json={**body, **changed})
        assert answer.status_code in (400, 404) and is_quiet(answer.text)
    for index in (10**6, -1, None, "x"):
        answer = site.http.post(JOIN, json={"data": [], "fn_index": index, "session_hash": "s"})
        assert answer.status_code in (400, 404, 422) and is_quiet(answer.text)


def part_of(site, panel: str) -> int:
    return next(p["id"] for p in site.config["components"] if p["props"].get("elem_id") == panel)


def asks(site, name: str, data) -> httpx.Response:
    """A panel's script asks the server. name: of the panel, and of the function behind a dot."""
    panel, function = name.split(".")
    where = {"component_id": part_of(site, panel), "fn_name": function}
    body = {"data": data, "session_hash": "s", **where}
    return site.http.post("/gradio_api/component_server", json=body)


def test_the_pages_own_server_functions_give_a_visitors_runs_only(site):
    for data in (["x", "csv"], ["../../etc/passwd", "json"], ["x", "x"]):
        answer = asks(site, "status.record", data)
        assert (answer.status_code, answer.text) == (200, '""')
    assert asks(site, "tree.tree", ["x", "dart", 1]).text == '""'


@pytest.fixture
def errors(caplog, capfd) -> Iterator[Callable[[], str]]:
    """All that the server has written of errors."""
    servers = logging.getLogger("uvicorn.error")
    servers.addHandler(caplog.handler)
    yield lambda: caplog.text + capfd.readouterr().err
    servers.removeHandler(caplog.handler)


def test_what_no_page_sends_is_refused_in_a_sentence_and_logged_by_none(site, errors):
    """A program's calls, and those of a tab that was open before the server was started again."""
    functions = site.config["dependencies"]
    assert len(functions) > 10
    told = 0
    for function in functions:
        count = len(function["inputs"])
        path = {"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}}
        for data in ([], *([value] * count for value in (None, {"a": 1}, "x", [1], 1e308, path))):
            event = {"data": data, "fn_index": function["id"]}
            called = site.http.post("/gradio_api/run/predict", json={**event, "session_hash": "s"})
            texts = [called.text]
            if function["queue"]:
                texts.append(site.ends(event, f"misfit{told}"))
            for text in texts:
                assert is_quiet(text)
                told += "load it again" in text
    assert told > len(functions)
    for path in (JOIN, "/gradio_api/run/predict"):
        for wrong in ({"fn_index": 10**6}, {"fn_index": -1}, {"fn_index": None}, {}):
            answer = site.http.post(path, json={"data": [], "session_hash": "s", **wrong})
            assert answer.status_code in (400, 404) and is_quiet(answer.text)
    for name, right in (("tree.tree", ["x", "dart", 1]), ("status.record", ["x", "csv"])):
        for data in (
            right[:-1],
            [*right, 1],
            [[x] for x in right],
            dict.fromkeys(right),
            "x",
            None,
        ):
            answer = asks(site, name, data)
            assert answer.status_code == 400 and "load it again" in answer.text
    answer = site.http.post("/gradio_api/component_server", files={"a": ("b", b"c")})
    assert answer.status_code == 404 and "load it again" in answer.text
    answer = site.http.get("/gradio_api/queue/data", params={"session_hash": "nobody's"})
    assert answer.status_code == 404 and "load it again" in answer.text
    assert "Traceback" not in errors()


def test_a_server_function_that_fails_is_told_to_the_log_alone(site, errors, monkeypatch):
    def fails(*arguments):
        raise OSError("cannot open /tmp/secret.py")

    monkeypatch.setattr("app.arena.Arena.finished", fails)
    answer = asks(site, "status.record", ["x", "csv"])
    assert answer.status_code == 500 and is_quiet(answer.text)
    assert "cannot open /tmp/secret.py" in errors()


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "text/html; charset=utf-8"),
        ("/config", "application/json"),
        ("/healthz", "application/json"),
        ("/theme.css", "text/css; charset=utf-8"),
        ("/nowhere", "application/json"),
        ("/gradio_api/login_check", "application/json"),
    ],
)
def test_every_answer_says_what_it_is_and_who_may_frame_it(site, path, kind):
    answer = site.http.get(path)
    assert answer.headers["content-type"] == kind
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "same-origin"
    assert answer.headers["content-security-policy"] == "frame-ancestors 'self'"


def test_the_charts_script_is_a_script_packed_or_not(site, monkeypatch):
    from app import serve
    from app.panels import PLOTLY

    packed = site.http.get(f"/{PLOTLY}", headers={"accept-encoding": "gzip, deflate, br"})
    assert packed.headers["content-encoding"] == "gzip"
    assert int(packed.headers["content-length"]) < 2_000_000
    plain = site.http.get(f"/{PLOTLY}", headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert packed.content == plain.content == serve.PLOTLY_FILE.read_bytes()
    for answer in (packed, plain):
        assert answer.headers["content-type"] == "text/javascript; charset=utf-8"
        assert answer.headers["vary"] == "Accept-Encoding"
    monkeypatch.setattr(serve.gzip, "compress", None)  # the next visitor's is packed already
    assert site.http.get(f"/{PLOTLY}").status_code == 200


def test_a_local_page_has_a_local_name(site):
    answer = site.http.get("/", headers={"host": "rebound.example:30000"})
    assert answer.status_code == 400
    assert (
        "called 'rebound.example:30000', expected 127.0.0.1 or localhost" in answer.json()["detail"]
    )
    assert "--root-path" in answer.json()["detail"]
    assert site.http.get("/", headers={"host": "localhost:5"}).status_code == 200


def test_behind_a_proxy_it_has_the_name_that_it_is_given(folder):
    with served(folder, root_path="http://arena.example") as site:
        for host in ("arena.example", "localhost"):
            answer = site.http.get("/config", headers={"host": host})
            assert answer.json()["root"] == "http://arena.example"


def test_another_sites_page_cannot_start_a_run(site):
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "cors"}
    answer = site.http.post(JOIN, json={"data": []}, headers=headers)
    assert answer.status_code == 403


# With a password ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def closed_site(folder) -> Iterator[Site]:
    with served(folder, auth=ACCOUNTS, root_path="/arena") as site:
        yield site


def logged_in(
    site: Site, name: str = "ada", password: str = "pass:word", **options
) -> httpx.Client:
    """A client that has tried to log in; ``answer`` is what it was told."""
    http = httpx.Client(base_url=site.address, timeout=60, **options)
    http.answer = http.post("/login", data={"username": name, "password": password})
    return http


@pytest.mark.parametrize("prefix", ["", "/arena"])
def test_without_the_password_there_is_the_question_only(closed_site, prefix):
    def get(path):
        return closed_site.http.get(prefix + path)

    page = get("/")
    assert page.status_code == 200 and '"auth_required":true' in page.text
    for known in ("shipped.json", "scripted", "Run the race", "knob-", "ada", "pass:word"):
        assert known not in page.text
    for path in ("/config", "/gradio_api/info", "/gradio_api/app_id", "/gradio_api/user",
                 "/gradio_api/heartbeat/x", "/gradio_api/queue/data?session_hash=x",
                 "/gradio_api/upload_progress?upload_id=x", "/gradio_api/login_check"):  # fmt: skip
        answer = get(path)
        assert (answer.status_code, answer.json()) == (401, {"detail": "Not authenticated"})
    for path in (JOIN, UPLOAD, "/gradio_api/run/predict", "/gradio_api/cancel", "/gradio_api/reset",
                 "/gradio_api/component_server"):  # fmt: skip
        answer = closed_site.http.post(prefix + path, json={"session_hash": "x", "data": []})
        assert answer.status_code == 401
    for path in ("/healthz", "/theme.css", "/robots.txt"):
        assert get(path).status_code == 200


@pytest.mark.parametrize("account", ACCOUNTS)
def test_with_the_password_there_is_the_page(closed_site, account):
    with closing(logged_in(closed_site, *account)) as http:
        assert http.answer.status_code == 200
        assert http.get("/config").status_code == 200
        text = http.get("/").text
        assert "Run the race" in text and account[1] not in text + http.get("/config").text
        assert http.get("/config", headers={"host": "arena.example"}).status_code == 200
        assert http.post(UPLOAD, files={"files": ("a.json", b"{}")}).status_code == 200
        others = "; ".join(f"{name}={value}" for name, value in http.cookies.items())
        strange = {"cookie": f'of-another-server={{"a": [1, 2]}}; {others}'}
        assert httpx.get(f"{closed_site.address}/config", headers=strange).status_code == 200
        http.get("/logout")
        assert http.get("/config").status_code == 401


@pytest.mark.parametrize("cookie", ["x", "", "\x00", "a=b; c", "access-token-=1"])
def test_no_made_up_cookie_gets_in(closed_site, cookie):
    """Not on a route that Gradio itself leaves open either."""
    name = f"access-token-unsecure-{closed_site.page.app.cookie_id}"
    for header in (cookie, f"{name}={cookie}"):
        cookies = {"cookie": header.replace("\x00", "%00")}
        with httpx.Client(base_url=closed_site.address, headers=cookies) as http:
            assert http.get("/config").status_code == 401
            assert http.post("/gradio_api/reset", json={"event_id": "x"}).status_code == 401


def test_who_guesses_must_wait(closed_site):
    """Even with the right password then; others and who is in already need not."""
    guesser = {"x-forwarded-for": "203.0.113.9"}
    with closing(logged_in(closed_site, headers=guesser)) as inside:
        for _ in range(10):
            wrong = logged_in(closed_site, "ada", "guess", headers=guesser).answer
            assert (wrong.status_code, wrong.json()) == (400, {"detail": "Incorrect credentials."})
        spent = logged_in(closed_site, headers=guesser).answer
        assert spent.status_code == 429 and "too many wrong passwords" in spent.json()["detail"]
        assert inside.get("/config").status_code == 200
    assert logged_in(closed_site).answer.status_code == 200


def test_guesses_at_once_do_not_get_ahead_of_the_count():
    members = Members(SimpleNamespace(tokens={}, cookie_id="x"), "", asked=True)
    scope = {"path": "/login", "method": "POST", "client": ("203.0.113.9", 1)}
    begun = [members.check(scope, Headers()) for _ in range(12)]
    assert begun[:10] == [None] * 10 and [status for status, _ in begun[10:]] == [429, 429]
    members.seen(scope, 429)
    assert members.check(scope, Headers()) is not None
    members.seen(scope, 200)  # one was right
    assert members.check(scope, Headers()) is None


# On a Space ---------------------------------------------------------------------------------------


def test_a_space_is_framed_by_its_hub_and_told_apart_by_its_proxy(folder, monkeypatch):
    monkeypatch.setenv("SPACE_ID", "someone/arena")
    monkeypatch.delenv("FORWARDED_ALLOW_IPS", raising=False)
    monkeypatch.setattr("gradio.utils.get_space", lambda: None)  # no reloader
    monkeypatch.setattr("gradio.http_server.get_space", lambda: None)
    with served(folder) as site:
        policy = site.http.get("/").headers["content-security-policy"]
        assert policy.split() == [
            "frame-ancestors", "'self'", "https://huggingface.co", "https://*.huggingface.co",
            "https://*.hf.space",
        ]  # fmt: skip
        assert site.http.get("/", headers={"host": "someone-arena.hf.space"}).status_code == 200
        assert "10.0.0.0/8" in os.environ["FORWARDED_ALLOW_IPS"]
        monkeypatch.delenv("FORWARDED_ALLOW_IPS")
