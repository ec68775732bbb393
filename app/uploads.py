"""Recordings that visitors bring: taken in under a name that nobody can guess, and opened by nobody
but the page's own reader.

Gradio's own way tells visitors the folders of this machine, takes any number of files at once,
leaves half of one behind that is cut short, and fetches a web address given for a file.
"""

from __future__ import annotations

import re
import secrets
import shutil
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio.to_thread
import gradio as gr
from gradio.utils import get_upload_folder
from gradio_client.utils import is_file_obj_with_meta, traverse
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from app.recording import MAX_BYTES
from dart_core.gate import visitor

MOST = MAX_BYTES + (64 << 10)  # bytes of a request: one file, and the form around it
COUNTED = 1800.0  # seconds: files are kept for about as long, see the page's KEEP_UPLOADS
EACH, ALL = 4 * MAX_BYTES, 32 * MAX_BYTES  # bytes in that time, of one visitor and in all
HANDLE = re.compile(r"[\w-]{22}/[\w() -][\w(). -]{0,99}", re.ASCII)


@dataclass(slots=True)
class _Taken:
    when: float
    who: str | None
    size: int  # bytes


class Uploads:
    """Takes recordings in for a page, and finds them again by their handles."""

    def __init__(self, page: gr.Blocks, now: Callable[[], float] = time.monotonic):
        self._page, self._now = page, now
        self._taken: deque[_Taken] = deque()
        prepare = page.preprocess_data

        async def preprocess_data(
            block_fn: Any, inputs: list[Any], *others: Any, **options: Any
        ) -> Any:
            return await prepare(block_fn, self.found(inputs), *others, **options)

        page.preprocess_data = preprocess_data  # type: ignore[method-assign]

    async def take(self, request: Request) -> JSONResponse:
        """Store a form's one file; answers with a list of its handle, as Gradio's client expects.

        Raises HTTPException: 400 for no file or several, 429 where a visitor brought too much.
        """
        taken = self._reserve(request)
        try:
            async with request.form(max_files=1, max_fields=1) as form:
                file = form.get("files")
                if not isinstance(file, UploadFile):
                    raise HTTPException(400, "expected a form with one file, named files")
                path = await anyio.to_thread.run_sync(_store, file)
        except BaseException:
            with suppress(ValueError):  # one that took so long counts no more
                self._taken.remove(taken)
            raise
        taken.size = file.size or 0
        self._page.upload_file_set.add(str(path))  # which Gradio deletes in time
        return JSONResponse([f"{path.parent.name}/{path.name}"])

    def _reserve(self, request: Request) -> _Taken:
        now, who = self._now(), visitor(request.scope)
        while self._taken and self._taken[0].when < now - COUNTED:
            self._taken.popleft()
        size = request.headers.get("content-length", "")
        taken = _Taken(now, who, min(int(size), MOST) if size.isdecimal() else MOST)
        mine = sum(other.size for other in self._taken if other.who == who)
        if who is not None and mine + taken.size > EACH:
            raise HTTPException(429, f"no more than {EACH >> 20} MB in half an hour: come later")
        if sum(other.size for other in self._taken) + taken.size > ALL:
            raise HTTPException(503, "too many files have come: try again later")
        self._taken.append(taken)
        return taken

    def found(self, data: Any) -> Any:
        """``data`` of a visitor's event with its files' handles turned into their paths. Raises
        gradio.Error for anything else that stands in a file's place.
        """

        def locate(file: dict[str, Any]) -> dict[str, Any]:
            path = Path(get_upload_folder()).absolute() / file["path"]
            if not HANDLE.fullmatch(file["path"]) or not path.is_file():
                raise gr.Error(
                    "This file is not here (any more): load it again.", print_exception=False
                )
            return {"path": str(path), "orig_name": path.name, "meta": file["meta"]}

        return traverse(data, locate, is_file_obj_with_meta)


def _store(file: UploadFile) -> Path:
    """A copy of the file in a folder of its own."""
    folder = Path(get_upload_folder()).absolute()
    _sweep(folder)
    name = re.split(r"[/\\]", file.filename or "")[-1]
    name = re.sub(r"[^\w(). -]", "_", name, flags=re.ASCII)[-100:].lstrip(".")
    path = folder / secrets.token_urlsafe(16) / (name or "file")
    path.parent.mkdir(parents=True)
    file.file.seek(0)
    try:
        with path.open("xb") as copy:
            shutil.copyfileobj(file.file, copy)
    except BaseException:
        shutil.rmtree(path.parent, ignore_errors=True)
        raise
    return path


def _sweep(folder: Path) -> None:
    """Remove what Gradio leaves behind: the folders of deleted files, and an empty file for each
    time that a file was used.
    """
    since = time.time() - 2 * COUNTED
    for path in folder.glob("*"):
        with suppress(OSError):
            if path.stat().st_mtime > since:
                continue
            if path.is_dir():
                path.rmdir()  # an empty one, or none
            elif path.name.startswith("tmp") and path.stat().st_size == 0:
                path.unlink()
