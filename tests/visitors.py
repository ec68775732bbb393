"""Visitors of a served page over plain HTTP, as a browser's tab talks to it: no browser needed."""

from __future__ import annotations

import http.client
import json
import secrets
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

API = "/gradio_api"
QUIET = 60.0  # seconds a stream may stay silent: Gradio sends a heartbeat every 15


class Refused(Exception):
    """The page did not take a request: ``status`` and ``body`` say why."""

    def __init__(self, status: int, body: str):
        super().__init__(f"HTTP {status}: {body[:300]}")
        self.status, self.body = status, body


class Trouble(Exception):
    """What must not happen to a visitor."""


class Site:
    """A page on a port of this machine: what it offers, by the names its own scripts use."""

    def __init__(self, port: int):
        self.port = port
        config = json.loads(self.call("GET", "/config"))
        self.components = {c["id"]: c["props"] for c in config["components"]}
        self.ids = {p["elem_id"]: n for n, p in self.components.items() if p.get("elem_id")}
        self.events = config["dependencies"]

    def call(self, method: str, path: str, body: Any = None, headers: dict | None = None) -> str:
        """One request's answer. Raises Refused for any status but 200. body: bytes as they are,
        anything else as JSON.
        """
        raw = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **(headers or {})}
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=QUIET)) as line:
            line.request(method, path, raw, headers)
            answer = line.getresponse()
            text = answer.read().decode()
        if answer.status != 200:
            raise Refused(answer.status, text)
        return text

    def event(self, button: str, kind: str = "click", queued: bool = True) -> dict[str, Any]:
        """What a button does, as the page's configuration says."""
        trigger = [self.ids[button], kind]
        found = [e for e in self.events if trigger in e["targets"] and e["queue"] is queued]
        return next(event for event in found if not event["cancels"] and event["backend_fn"])

    def values(self, event: dict[str, Any], given: dict[str, Any]) -> list[Any]:
        """An event's inputs: what was given by elem_id, else what the page shows."""
        by_id = {self.ids[name]: value for name, value in given.items()}
        return [by_id.get(n, self.components[n].get("value")) for n in event["inputs"]]


class Tab:
    """One tab: a session of its own, with the connection that tells the page it is open."""

    def __init__(self, site: Site, load: bool = True):
        self.site = site
        self.session = secrets.token_hex(6)
        self.pending: dict[str, Any] | None = None  # the event under way, and its id
        self.runs: set[str] = set()  # that were shown here
        self._lines: list[tuple[http.client.HTTPConnection, http.client.HTTPResponse]] = []
        if load:
            site.call("GET", "/")
        self._open(f"{API}/heartbeat/{self.session}")

    def _open(self, path: str) -> http.client.HTTPResponse:
        line = http.client.HTTPConnection("127.0.0.1", self.site.port, timeout=QUIET)
        line.request("GET", path)
        answer = line.getresponse()
        self._lines.append((line, answer))
        return answer

    def close(self) -> None:
        """Be gone without a word, whatever is under way."""
        for line, answer in self._lines:
            with suppress(OSError):
                answer.close()
            line.close()
        self._lines.clear()

    def send(
        self, event: dict[str, Any], data: list[Any], button: str = "", api: str = "run/predict"
    ):
        """An event of this session, at once; ``queue/join`` puts it into the queue instead."""
        body = {
            "data": data,
            "fn_index": event["id"],
            "trigger_id": self.site.ids.get(button),
            "session_hash": self.session,
            "event_data": None,
        }
        return json.loads(self.site.call("POST", f"{API}/{api}", body))

    def join(self, button: str, **given: Any) -> None:
        """Press a button whose work is queued. given: elem_id, with _ for -, to its value."""
        kind = "upload" if button == "load-run" else "click"
        event = self.site.event(button, kind)
        values = self.site.values(event, {k.replace("_", "-"): v for k, v in given.items()})
        answer = self.send(event, values, button, "queue/join")
        self.pending = {"event": event, "id": answer["event_id"]}

    def stream(self) -> Iterator[dict[str, Any]]:
        """The messages of what was joined, until it is over. Raises Trouble where the page says so
        or falls silent.
        """
        line = self._open(f"{API}/queue/data?session_hash={self.session}")
        try:
            for row in line:
                if not row.startswith(b"data:"):
                    continue
                message = json.loads(row[5:])
                if message["msg"] == "close_stream":
                    return
                with suppress(KeyError, TypeError, IndexError):  # an update of what is shown
                    self.runs.add(message["output"]["data"][0]["run"])
                if message["msg"] == "unexpected_error":
                    raise Trouble(f"unexpected error: {message}")
                yield message
        except TimeoutError as error:
            raise Trouble(f"no message for {QUIET:g} s") from error
        finally:
            connection, _ = self._lines.pop()
            line.close()
            connection.close()

    def stop(self) -> list[Any]:
        """Press Stop; returns what the page then shows, as the browser asks for it."""
        event, pending = self.site.event("stop", queued=False), self.pending
        self.send(event, [])
        self.site.call(
            "POST",
            f"{API}/cancel",
            {
                "session_hash": self.session,
                "fn_index": pending["event"]["id"],
                "event_id": pending["id"],
            },
        )
        after = next(
            e for e in self.site.events
            if e.get("trigger_after") == pending["event"]["id"] and e["backend_fn"]
        )  # fmt: skip
        shown = self.send(after, [])["data"]
        self.runs.add(shown[0]["run"])  # which no update may have told, had it just begun
        return shown

    def clear(self) -> list[Any]:
        """Press Clear, and its question's yes."""
        event = self.site.event("sure", queued=False)
        return self.send(event, self.site.values(event, {}), "sure")["data"]

    def ask(self, component: str, function: str, *data: Any) -> Any:
        """What a panel's script asks the server for, such as a run's file."""
        body = {
            "session_hash": self.session,
            "component_id": self.site.ids[component],
            "fn_name": function,
            "data": data[0] if len(data) == 1 else list(data),
        }
        return json.loads(self.site.call("POST", f"{API}/component_server", body))

    def upload(self, name: str, content: bytes) -> dict[str, Any]:
        """Hand a file over; returns it as an upload button's value."""
        mark = secrets.token_hex(8)
        head = f'Content-Disposition: form-data; name="files"; filename="{name}"'
        body = f"--{mark}\r\n{head}\r\n\r\n".encode() + content + f"\r\n--{mark}--\r\n".encode()
        kind = {"Content-Type": f"multipart/form-data; boundary={mark}"}
        (path,) = json.loads(self.site.call("POST", f"{API}/upload", body, kind))
        return {"path": path, "meta": {"_type": "gradio.FileData"}, "orig_name": name}


def changed(value: Any, edits: list[list[Any]]) -> Any:
    """A streamed output after an update: Gradio sends (action, path, value) of what is new."""
    whole = {"value": json.loads(json.dumps(value))}
    for action, path, new in edits:
        *way, last = ["value", *path]
        inside: Any = whole
        for step in way:
            inside = inside[step]
        if action == "append":
            inside[last] += new
        elif action == "delete":
            del inside[last]
        elif action == "add" and isinstance(inside, list):
            inside.insert(int(last), new)
        else:
            inside[last] = new
    return whole["value"]
