"""Repositories on ModelScope, by a stand-in for its client, which is an optional package."""

from __future__ import annotations

import shutil
import sys
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from tiny_trio import BASE, EAGLE3, NGRAM, make_trio

from dart_core import from_modelscope
from dart_core.engine import Engine
from dart_core.errors import ArenaError
from dart_core.weights import already_here, resolve

DART = "fvliang/Qwen3-4B-dart"  # its name there


class Client(ModuleType):
    """As much of the package ``modelscope`` as is used, over folders by id; offline: no network."""

    def __init__(self, cache: Path):
        super().__init__("modelscope")
        self.cache, self.folders, self.offline = cache, {}, False
        self.calls: list[tuple[str, str | None]] = []
        client = self

        class HubApi:
            def get_model_files(self, model_id, revision="master", recursive=False):
                folder = client.folder(model_id)
                return [
                    {"Name": path.name, "Path": path.name, "Size": path.stat().st_size}
                    for path in folder.iterdir()
                ]

        self.HubApi = HubApi

    def folder(self, model_id: str) -> Path:
        if self.offline:
            raise ConnectionError("no route to www.modelscope.cn\nand a traceback")
        if model_id not in self.folders:
            raise RuntimeError(f"[E3001] Repo {model_id} not exists on modelscope")
        return self.folders[model_id]

    def snapshot_download(
        self,
        model_id,
        revision="master",
        *,
        allow_patterns,
        ignore_patterns=(),
        local_files_only=False,
    ):
        target = self.cache / model_id.replace("/", "--") / revision
        if local_files_only:
            if not target.exists():
                raise ValueError(f"Cannot find {model_id} in the local cache")
            return str(target)
        folder = self.folder(model_id)
        self.calls.append((model_id, revision))
        target.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():
            if any(fnmatch(path.name, pattern) for pattern in allow_patterns):
                shutil.copy(path, target)
        return str(target)


@pytest.fixture(scope="module")
def trio(tmp_path_factory) -> Path:
    return make_trio(tmp_path_factory.mktemp("published"))


@pytest.fixture
def client(trio, tmp_path, monkeypatch) -> Client:
    client = Client(tmp_path / "modelscope")
    client.folders = {name: trio / name for name in (BASE, EAGLE3, NGRAM)}
    client.folders[DART] = trio / "fvliang" / "qwen4b-dart"
    monkeypatch.setitem(sys.modules, "modelscope", client)
    monkeypatch.setenv("MODELSCOPE_CACHE", str(client.cache))
    monkeypatch.setenv("DART_ARENA_CACHE", str(tmp_path / "cache"))
    return client


def load(**options) -> Engine:
    return Engine.load(
        "qwen3-4b", source="modelscope", dtype=torch.float32, device="cpu", **options
    )


def test_a_preset_comes_from_modelscope_and_the_second_time_from_its_cache(client, monkeypatch):
    monkeypatch.setattr(from_modelscope, "WORTH_TELLING", 100_000)
    said: list[str] = []
    engine = load(small_ngram=True, progress=said.append)
    assert list(engine.drafters) == ["ar", "dart", "eagle3"]
    assert engine.facts["dart"] == f"modelscope:{DART}"
    assert engine.facts["ngrams"] == ["small"]
    assert {name for name, _ in client.calls} == {BASE, DART, EAGLE3, NGRAM}
    assert f"fetching {BASE} from ModelScope: 1.7 MiB" in "\n".join(said)
    assert "download" in said[0]  # the table of what is needed
    assert already_here(f"modelscope:{NGRAM}", "small.trie").is_file()
    assert already_here(f"modelscope:{NGRAM}", "full.trie") is None

    client.offline = True
    said.clear()
    assert load(small_ngram=True, progress=said.append).facts == engine.facts
    assert not any("fetching" in line for line in said)


def test_a_revision_is_passed_on(client):
    resolve(f"modelscope:{DART}@v2", kind="head")
    resolve(f"modelscope:{DART}", kind="head")
    assert client.calls == [(DART, "v2"), (DART, "master")]


def test_what_it_refuses_is_one_line(client):
    with pytest.raises(ArenaError) as caught:
        resolve("modelscope:fvliang/Qwen3-5B-dart", kind="head")
    message = str(caught.value)
    assert "the ModelScope repository could not be fetched ([E3001] Repo fvliang/Q" in message
    assert "--source hub" in message
    client.offline = True
    with pytest.raises(ArenaError, match=r"no route to www\.modelscope\.cn\)") as caught:
        resolve(f"modelscope:{DART}", kind="head")
    assert "\n" not in str(caught.value)


def test_too_little_disk_is_said_before_it(client, monkeypatch):
    usage = SimpleNamespace(free=1000)
    monkeypatch.setattr("dart_core.room.shutil.disk_usage", lambda path: usage)
    with pytest.raises(ArenaError, match=r"too little disk at .*MODELSCOPE_CACHE"):
        load()


def test_without_the_package_its_remedy_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "modelscope", None)  # as if it were not installed
    with pytest.raises(ArenaError) as caught:
        load()
    assert str(caught.value) == (
        "--source modelscope needs the package modelscope, which is not installed: "
        'pip install "dart-arena[modelscope]", or pip install modelscope'
    )
