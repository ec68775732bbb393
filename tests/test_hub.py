"""What comes from a hub: here from one on this machine, spoken to over HTTP."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from fake_hub import LARGE, commit, fake_hub
from huggingface_hub import constants
from tiny_trio import BASE, DART, EAGLE3, NGRAM, make_trio

from dart_core import hub as client
from dart_core.engine import Engine, GenerationSettings
from dart_core.errors import ArenaError
from dart_core.presets import DEMO_TARGET
from dart_core.progress import ProgressBar
from dart_core.references import Remote
from dart_core.weights import already_here, resolve

ROOT = Path(__file__).resolve().parent.parent
TRIO = (BASE, DART, EAGLE3, NGRAM)


@pytest.fixture(scope="module")
def trio(tmp_path_factory) -> Path:
    return make_trio(tmp_path_factory.mktemp("published"))


@pytest.fixture
def hub(trio, monkeypatch, tmp_path):
    """A hub with the published trio in small, and an empty cache."""
    with fake_hub() as hub:
        for repository in TRIO:
            hub.add(repository, trio / repository)
        template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setenv("DART_ARENA_CACHE", str(tmp_path / "cache"))
        yield hub


def load(*arguments, **options) -> Engine:
    return Engine.load(*arguments, dtype=torch.float32, device="cpu", **options)


def refusal(*arguments, **options) -> str:
    with pytest.raises(ArenaError) as caught:
        resolve(*arguments, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_the_whole_trio_is_fetched_and_speaks(hub, monkeypatch):
    monkeypatch.setattr(client, "WORTH_TELLING", 100_000)
    said: list[str] = []
    engine = load("qwen3-4b", progress=said.append)
    prompt = [5, 9, 23]
    settings = GenerationSettings(max_new_tokens=12)
    plain = engine.generate(prompt, "ar", settings).output_ids
    for name in ("dart", "eagle3"):
        assert engine.generate(prompt, name, settings).output_ids == plain
    assert engine.facts["ngrams"] == ["full"]

    fetched = hub.fetched()
    assert fetched.count("model.safetensors") == 3
    assert fetched.count("config.json") == 3  # alone, before anything large
    assert fetched.index("model.safetensors") > fetched.index("config.json") + 2
    assert "small.trie" not in fetched
    loading = next(line for line, text in enumerate(said) if text.startswith(f"target {BASE}: "))
    assert not any(
        text.startswith("fetch") for text in said[loading:]
    )  # all is here before it begins
    [at] = [line for line, text in enumerate(said) if text.split()[0] == "download"]
    table = "\n".join(said[at : at + 8])
    assert all(repository in table for repository in TRIO)
    assert "free: " in table
    assert [line for line in said if re.match(rf"fetched {BASE}: 1\.\d MiB in \d+\.\d s", line)]

    # A second start asks what has changed, and fetches nothing.
    load("qwen3-4b")
    assert hub.fetched() == fetched


def test_a_start_without_network_uses_the_cache(hub, monkeypatch):
    """The network refused, without a storm of retries; then HF_HUB_OFFLINE set; then a file
    missing.
    """
    load("qwen3-4b")
    hub.close()
    client._answers.clear()
    said: list[str] = []
    connect, asked, slept = socket.create_connection, [], []

    def counted(*where, **options):
        asked.append(where)
        return connect(*where, **options)

    with monkeypatch.context() as counting:
        counting.setattr(socket, "create_connection", counted)
        counting.setattr(time, "sleep", slept.append)
        assert load("qwen3-4b", progress=said.append).facts["eagle3"] == EAGLE3
    assert 0 < len(asked) <= 3 * len(TRIO) and sum(slept) < 3
    assert not any("fetching" in line for line in said)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert load("qwen3-4b").facts["dart"] == DART

    # With a file missing it is named, with its repository.
    folder = next((Path(constants.HF_HUB_CACHE) / "models--fvliang--qwen4b-dart").glob("snap*/*"))
    (folder / "model.safetensors").unlink()
    with pytest.raises(ArenaError, match=r"fvliang/qwen4b-dart.*model\.safetensors"):
        load("qwen3-4b")
    assert resolve(BASE).is_dir()


def test_folders_that_bear_the_hubs_names_need_no_hub(hub, trio, monkeypatch):
    monkeypatch.chdir(trio)
    engine = load("qwen3-4b")
    assert engine.facts["target"] == BASE
    assert hub.requests == []


def test_a_command_starts_offline_or_says_in_one_line_why_not(hub, tmp_path):
    """A process of its own, as users start it: HF_HUB_OFFLINE is read when it begins."""
    load(target=BASE, dart=DART, ngram=NGRAM)
    hub.close()
    command = [sys.executable, "-m", "dart_core", "generate", "--prompt-ids", "5,9,23"]
    command += ["--max-new-tokens", "8", "--dtype", "float32", "--device", "cpu", "--json", "-"]
    environment = os.environ | {
        "HF_ENDPOINT": hub.url,
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_CACHE": constants.HF_HUB_CACHE,
        "PYTHONPATH": str(ROOT),
    }

    def run(*flags: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [*command, *flags], cwd=tmp_path, env=environment, capture_output=True, text=True
        )

    result = run("--base-model-name-or-path", BASE)
    assert result.returncode == 0, result.stderr
    assert len(json.loads(result.stdout)["output_ids"]) == 8
    result = run("--preset", "qwen3-8b")
    assert result.returncode == 1
    assert "target 'Qwen/Qwen3-8B': no local folder" in result.stderr
    assert "check the network and HF_HUB_OFFLINE" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_revision_is_pinned_in_the_reference(hub, trio, tmp_path):
    old = tmp_path / "old"
    shutil.copytree(trio / DART, old)
    config = json.loads((old / "config.json").read_text()) | {"said": "old"}
    (old / "config.json").write_text(json.dumps(config))
    hub.add(DART, old, "v1")
    for name in (f"{DART}@v1", f"{DART}@{commit(old)}", f"hub:{DART}@v1"):
        assert '"old"' in (resolve(name, kind="head") / "config.json").read_text()
    assert '"old"' in (resolve(DART, kind="head", revision="v1") / "config.json").read_text()
    assert '"old"' not in (resolve(DART, kind="head") / "config.json").read_text()
    engine = load(target=BASE, dart=f"{DART}@v1")
    assert engine.facts["dart"] == f"{DART}@v1"
    message = refusal(f"{DART}@v9", kind="head")
    assert "at revision 'v9' has no such revision" in message
    assert "another revision than 'v2'" in refusal(f"{DART}@v1", kind="head", revision="v2")


def test_what_the_hub_refuses_is_said_with_the_remedy(hub):
    hub.gated.add(BASE)
    message = refusal(BASE)
    assert f"{BASE!r}" in message
    assert "is gated: accept the terms of Qwen/Qwen3-4B on the hub, then set HF_TOKEN" in message
    message = refusal("fvliang/qwen5b-dart", kind="head")
    assert "does not exist or is private: check the id, or set HF_TOKEN" in message


def test_a_head_that_is_not_there_names_the_right_one(hub):
    for wrong in ("fvliang/dart-of-qwen4b", "./no/such/head"):
        with pytest.raises(ArenaError) as caught:
            load(target=BASE, dart=wrong)
        message = str(caught.value)
        assert f"head {wrong!r}" in message
        assert message.endswith(f"; the DART head of {BASE} is {DART}")
    assert "model.safetensors" not in hub.fetched()


def test_a_gated_repository_is_loaded_from_the_cache(hub):
    folder = resolve(BASE)
    hub.gated.add(BASE)
    client._answers.clear()
    assert resolve(BASE) == folder


def test_a_broken_connection_is_taken_up_where_it_broke(hub, trio, monkeypatch):
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", LARGE // 10)
    hub.breaking = [("model.safetensors", LARGE)]
    folder = resolve(DART, kind="head")
    whole = (trio / DART / "model.safetensors").read_bytes()
    assert (folder / "model.safetensors").read_bytes() == whole
    ranges = [r for method, path, r in hub.requests if method == "GET" and "safetensors" in path]
    assert ranges == [None, f"bytes={LARGE}-"]


def test_after_a_hub_that_died_what_is_whole_is_kept(hub, monkeypatch):
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda seconds: None)
    resolve(DART, kind="config")
    hub.dead = True
    message = refusal(DART, kind="head")
    assert "could not be fetched" in message
    assert "start again: files that are whole are kept" in message
    hub.dead = False
    before = len(hub.fetched())
    assert (resolve(DART, kind="head") / "model.safetensors").is_file()
    assert hub.fetched()[before:] == ["model.safetensors"]


def test_a_mismatched_pair_is_refused_before_its_weights_are_fetched(hub, trio, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(trio / DART, other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"hidden_size": 2560}))
    hub.add("somebody/head", other)
    with pytest.raises(ArenaError, match=r"somebody/head' was made for another target .* 2560"):
        load(target=BASE, dart="somebody/head")
    assert "model.safetensors" not in hub.fetched()


def test_a_long_download_says_how_far_it_is(hub, monkeypatch):
    """By what the cache has grown: any of the client's ways to fetch makes it grow."""
    monkeypatch.setattr(client, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(client, "ProgressBar", partial(ProgressBar, seconds=0))
    said: list[str] = []
    blobs = Path(constants.HF_HUB_CACHE) / "models--a--b" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / "old").write_bytes(bytes(1 << 20))
    with client._watched(Remote("a/b"), 8 << 20, said.append):
        (blobs / "half.incomplete").write_bytes(bytes(2 << 20))
        deadline = time.monotonic() + 60
        while not any(line.startswith("fetching a/b 25 %, 2.0 MiB of 8.0 MiB, ") for line in said):
            assert time.monotonic() < deadline, said
            time.sleep(0.01)
    assert said[0] == "fetching a/b: 8.0 MiB"
    assert re.fullmatch(r"fetched a/b: 8\.0 MiB in \d+\.\d s", said[-1])


def test_too_little_disk_is_said_before_the_download(hub):
    hub.pretended["model.safetensors"] = 10**15
    with pytest.raises(ArenaError) as caught:
        load("qwen3-4b")
    message = str(caught.value)
    assert "too little disk at " in message
    assert f"target {BASE} 931322.6 GiB" in message
    assert "GiB free; make room" in message
    assert "HF_HOME" in message and "--preset qwen3-1.7b" in message and "--ngram small" in message
    assert "model.safetensors" not in hub.fetched()


def test_an_ngram_is_one_file_of_its_repository(hub):
    assert already_here(NGRAM, "small.trie") is None
    path = resolve(NGRAM, kind="ngram", filename="small.trie")
    assert path.name == "small.trie"
    assert already_here(NGRAM, "small.trie") == path
    assert hub.fetched() == ["small.trie"]
    assert "no huge.trie" in refusal(NGRAM, kind="ngram", filename="huge.trie")


def test_the_demo_asks_no_hub(hub):
    assert already_here(DEMO_TARGET, "x") is None
    assert hub.requests == []
