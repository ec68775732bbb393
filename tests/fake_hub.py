"""A hub on this machine: as much of its HTTP interface as a download needs, and its misfortunes."""

from __future__ import annotations

import hashlib
import json
import socket
import threading
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlparse

LARGE = 10_000  # bytes from which a file is kept as LFS keeps it


class FakeHub:
    """Repositories by id, each a folder, or several by revision. requests: all that were made.

    breaking: file name -> how many bytes of it are sent before the connection breaks, once each
    time that the name is listed. dead: every file's connection breaks.
    """

    def __init__(self) -> None:
        self.revisions: dict[str, dict[str, Path]] = {}
        self.gated: set[str] = set()
        self.requests: list[tuple[str, str, str | None]] = []
        self.breaking: list[tuple[str, int]] = []
        self.dead = False
        self.pretended: dict[str, int] = {}  # file name -> the size that listings say
        self.connections: list[socket.socket] = []
        hub = self

        class Handler(_Handler):
            pass

        Handler.hub = hub
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def add(self, repository: str, folder: Path, revision: str = "main") -> None:
        self.revisions.setdefault(repository, {})[revision] = Path(folder)

    def close(self) -> None:
        """From now on nobody is here: not on the connections either that clients keep open."""
        self.server.shutdown()
        self.server.server_close()
        for connection in self.connections:
            with suppress(OSError):  # it has ended before
                connection.shutdown(socket.SHUT_RDWR)

    def fetched(self) -> list[str]:
        """Names of the files whose contents were asked for, in order."""
        return [
            path.rpartition("/")[2]
            for method, path, _ in self.requests
            if method == "GET" and "/resolve/" in path
        ]

    def folder(self, repository: str, revision: str) -> Path | None:
        """By branch, tag or commit."""
        revisions = self.revisions[repository]
        commits = {commit(folder): folder for folder in revisions.values()}
        return revisions.get(revision) or commits.get(revision)


@contextmanager
def fake_hub():
    hub = FakeHub()
    try:
        yield hub
    finally:
        hub.close()


def commit(folder: Path) -> str:
    return hashlib.sha1(str(folder).encode()).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: FakeHub

    def setup(self) -> None:
        super().setup()
        self.hub.connections.append(self.connection)

    def log_message(self, *args) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlparse(self.path).path)
        self.hub.requests.append((self.command, path, self.headers.get("Range")))
        parts = path.strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            repository, rest = "/".join(parts[2:4]), parts[4:]
            what, revision = (rest[0], rest[1]) if len(rest) > 1 else ("revision", "main")
        elif parts[2:3] == ["resolve"]:
            repository, what, revision = "/".join(parts[:2]), "resolve", parts[3]
        else:
            repository, what, revision = path, "page", ""
        if repository not in self.hub.revisions:
            self._refuse(401, "RepoNotFound")
        elif repository in self.hub.gated and what == "resolve":
            self._refuse(403, "GatedRepo")
        elif (folder := self.hub.folder(repository, revision)) is None:
            self._refuse(404, "RevisionNotFound")
        elif what == "resolve":
            self._send_file(folder / parts[4], commit(folder))
        elif what == "tree":
            self._send_json(
                [{"type": "file", "path": p.name, **self._entry(p)} for p in files(folder)]
            )
        else:
            siblings = [
                {"rfilename": path.name, "blobId": entry["oid"], **entry}
                for path in files(folder)
                for entry in [self._entry(path)]
            ]
            self._send_json({"id": repository, "sha": commit(folder), "siblings": siblings})

    def _entry(self, path: Path) -> dict:
        size = self.hub.pretended.get(path.name, path.stat().st_size)
        entry = {"size": size, "oid": blob_id(path)}
        if size >= LARGE:
            entry["lfs"] = {"sha256": sha256(path), "oid": sha256(path), "size": size}
            entry["lfs"]["pointerSize"] = 130
        return entry

    def _send_json(self, value) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _refuse(self, status: int, code: str) -> None:
        self._send(status, b"", {"X-Error-Code": code, "X-Error-Message": code})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def _send_file(self, path: Path, sha: str) -> None:
        if not path.is_file():
            self._refuse(404, "EntryNotFound")
            return
        body = path.read_bytes()
        etag = sha256(path) if len(body) >= LARGE else blob_id(path)
        first = 0
        if wanted := self.headers.get("Range"):
            first = int(wanted.removeprefix("bytes=").split("-")[0])
        rest = body[first:]
        self.send_response(206 if wanted else 200)
        self.send_header("ETag", f'"{etag}"')
        self.send_header("X-Repo-Commit", sha)
        self.send_header("Accept-Ranges", "bytes")
        if wanted:
            self.send_header("Content-Range", f"bytes {first}-{len(body) - 1}/{len(body)}")
        self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        if self.command != "GET":
            return
        sent = len(rest)
        broken = next((entry for entry in self.hub.breaking if entry[0] == path.name), None)
        if self.hub.dead:
            sent = 0
        elif broken:
            self.hub.breaking.remove(broken)
            sent = broken[1]
        self.wfile.write(rest[:sent])
        if sent < len(rest):
            self.wfile.flush()
            self.close_connection = True
            self.connection.close()


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file())


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def blob_id(path: Path) -> str:
    body = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()
