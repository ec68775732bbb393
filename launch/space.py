"""A Hugging Face Space starts here (``app_file`` in README.md), and so does the Docker image.

Without a GPU, or where the models cannot be had, the page plays the recorded runs and says why. On
ZeroGPU every run rents its GPU. What a Space's owner may set, as its variables:

    DART_ARENA_PRESET      a preset, or "recordings"; default: qwen3-4b with a GPU, else recordings
    DART_ARENA_NGRAM       small (the default), full or off
    DART_ARENA_NEW_TOKENS  longest answer that the page starts with; default 512, on ZeroGPU 256
    DART_ARENA_AUTH        accounts, USER:PASSWORD, one a line; a secret, not a variable: the page
                           asks everybody for one of them
    GRADIO_SERVER_NAME, GRADIO_SERVER_PORT   default: 0.0.0.0, 7860
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # a Space does not install the package

import dart_core  # noqa: E402
from app.access import accounts  # noqa: E402
from app.waiting import Waiting  # noqa: E402
from dart_core.errors import ArenaError  # noqa: E402
from dart_core.names import without_folders  # noqa: E402
from dart_core.weights import cache_dir  # noqa: E402

PRESET = "qwen3-4b"  # of a Space with a GPU
RECORDINGS = "recordings"
MAX_LENGTH = 2048  # tokens of prompt and answer together
MAX_SECONDS = 300.0  # of one visitor's run
BUILD_SECONDS = 600.0  # for the extension, at most: a Space that is not up in time is ended

Say = Callable[[str], None]
log = logging.getLogger("space")


def main() -> None:
    """Serve the page until a signal ends it."""
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as in dart_core/__main__.py
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # it does not survive a fork
    host = os.environ.get("GRADIO_SERVER_NAME") or "0.0.0.0"
    port = whole("GRADIO_SERVER_PORT", 7860, 65535)
    tokens = whole("DART_ARENA_NEW_TOKENS", 0, MAX_LENGTH - 1)  # 0: by what there is
    auth = accounts([])
    waiting = Waiting(host, port)

    def say(line: str) -> None:
        print(line, flush=True)
        if not auth:
            waiting.say(without_folders(line))

    arena = page = None
    try:
        gpu = rented_gpu()
        build_extension(say)
        engine, absence = load(say)

        from app.arena import Arena
        from app.page import build_page
        from app.replays import SHIPPED
        from app.serve import close, launch

        arena = Arena(engine, max_length=MAX_LENGTH, max_seconds=MAX_SECONDS, absence=absence)
        if gpu is not None:
            from app.rented import Rented

            arena.device = Rented(arena, gpu)  # a page of recordings too: ZeroGPU looks for it
        elif engine is not None:
            arena.warm_up(say)
        tokens = tokens or (512 if gpu is None else 256)
        page = build_page(arena, max_new_tokens=tokens, recordings=SHIPPED)
        local, _ = launch(page, host=host, port=port, auth=auth, waiting=waiting)
        print(f"Running on {local}", flush=True)
        threading.Event().wait()
    finally:
        waiting.close()
        if page is not None:
            close(page)
        if arena is not None:
            arena.close()


def whole(variable: str, default: int, highest: int) -> int:
    """A variable's value, from 1 to ``highest``. Raises ArenaError for any other."""
    text = (os.environ.get(variable) or "").strip()
    if not text:
        return default
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:9]) <= highest):
        raise ArenaError(f"{variable}={text[:40]}: expected a number from 1 to {highest}")
    return int(text)


def rented_gpu() -> Callable | None:
    """ZeroGPU's decorator, on ZeroGPU. To be had before torch and Gradio are imported, and on the
    thread that loads the models: it shows torch a GPU that is not there yet.
    """
    if os.environ.get("SPACES_ZERO_GPU", "").lower() not in ("1", "t", "true"):
        return None
    import spaces

    return spaces.GPU


def load(say: Say) -> tuple:
    """(engine, "") or (None, why there is none, in words for visitors)."""
    preset = os.environ.get("DART_ARENA_PRESET")
    if preset == RECORDINGS:
        return None, "no model is loaded"
    if not preset:
        import torch

        if not torch.cuda.is_available():
            say("no GPU here: the page plays recorded runs (DART_ARENA_PRESET=demo runs on a CPU)")
            return None, "there is no GPU here, so no model is loaded"
        preset = PRESET
    try:
        from dart_core.drafters import NGRAM_OFF
        from dart_core.engine import Engine

        ngram = os.environ.get("DART_ARENA_NGRAM") or "small"
        if ngram not in ("small", "full", "off"):
            raise ArenaError(f"DART_ARENA_NGRAM={ngram}: expected small, full or off")
        engine = Engine.load(
            preset,
            ngram=NGRAM_OFF if ngram == "off" else None,
            small_ngram=ngram == "small",
            progress=say,
        )
    except ArenaError as error:
        reason = " ".join(str(error).split())
    except Exception as error:  # a public page goes on with what it has
        log.exception("%s could not be loaded", preset)
        reason = f"{type(error).__name__}; the server's log has the details"
    else:
        return engine, ""
    say(f"{preset} could not be loaded, so the page plays recorded runs: {reason}")
    return None, f"{preset} could not be loaded: {without_folders(reason)}"


def build_extension(say: Say, *, limit: float = BUILD_SECONDS) -> None:
    """Have ``dart_core._core``: there already, built before, or built now, in at most ``limit``
    seconds. Where that cannot be, its Python twin does the same work, slower.
    """
    if importlib.util.find_spec("dart_core._core") is not None:
        return
    started = time.monotonic()
    try:
        folder = _writable() / f"extension-{_key()}"
        if not folder.is_dir():
            say("building the C++ extension: a minute or two")
            _build(folder, started + limit)
            say(f"built in {time.monotonic() - started:.0f} s")
        dart_core.__path__.append(str(folder / "dart_core"))
        importlib.import_module("dart_core._core")
    except Exception as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        say(
            f"the C++ extension could not be built ({reason[-1]}): its Python twin searches the "
            "draft trees, some fifty times slower"
        )


def _writable() -> Path:
    """The cache folder, or if that is not ours a temporary one."""
    for folder in (cache_dir(), Path(tempfile.gettempdir()) / "dart-arena"):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError:
            continue
        return folder
    raise OSError("no folder here can be written to; set DART_ARENA_CACHE to one")


def _key() -> str:
    """What an extension was built from and for."""
    digest = hashlib.sha256(f"{sys.implementation.cache_tag} {os.uname().machine}".encode())
    for path in sorted(path for path in (ROOT / "cpp").iterdir() if path.is_file()):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _build(folder: Path, deadline: float) -> None:
    """Compile and install into ``folder``, which appears when all is done."""
    import pybind11

    # pip puts cmake and ninja beside this Python, which need not be on PATH.
    path = os.pathsep.join([os.environ.get("PATH", ""), str(Path(sys.executable).parent)])
    cmake = shutil.which("cmake", path=path)
    if cmake is None:
        raise OSError("there is no cmake")
    with tempfile.TemporaryDirectory(dir=folder.parent, ignore_cleanup_errors=True) as work:
        build, made = f"{work}/build", f"{work}/made"
        options = {
            "CMAKE_BUILD_TYPE": "Release",
            "Python_EXECUTABLE": sys.executable,
            "pybind11_DIR": pybind11.get_cmake_dir(),
        }
        for command in (
            ["-S", str(ROOT / "cpp"), "-B", build, "-G", "Ninja"]
            + [f"-D{name}={value}" for name, value in options.items()],
            ["--build", build, "--parallel", str(os.cpu_count() or 1)],
            ["--install", build, "--prefix", made],
        ):
            _call([cmake, *command], {**os.environ, "PATH": path}, deadline)
        os.replace(made, folder)


def _call(command: list[str], environment: dict[str, str], deadline: float) -> None:
    """Run a command. Raises OSError with what it said last where it fails or takes too long."""
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # the compilers that it started, too
            raise OSError("it took too long") from None
    if process.returncode != 0:
        said = [line.strip() for line in output.splitlines() if "error" in line.lower()]
        raise OSError((said or output.split("\n") or ["?"])[0])


def _end(signum: int, frame: object) -> None:
    signal.signal(signum, signal.SIG_DFL)  # a second one ends the program at once
    raise SystemExit(0 if signum == signal.SIGINT else 128 + signum)


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):  # a container's first process has no default
        signal.signal(number, _end)
    code: object = 0
    try:
        main()
    except ArenaError as problem:
        print(f"error: {' '.join(str(problem).split())}", file=sys.stderr)
        code = 1
    except SystemExit as end:
        code = end.code
    for child in multiprocessing.active_children():
        child.terminate()
    sys.stdout.flush()
    os._exit(code if isinstance(code, int) else 1)  # unwinding the libraries would take seconds
