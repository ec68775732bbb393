"""References to local files: folders, an unreachable hub, and what is cached of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dart_core import weights
from dart_core.errors import ArenaError


@pytest.fixture
def no_hub(monkeypatch, tmp_path):
    """A hub that refuses every connection, and an empty cache."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


def make_head(folder: Path) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    return folder


def test_a_local_folder_is_itself(tmp_path):
    head = make_head(tmp_path / "head")
    assert weights.resolve(head, kind="head") == head
    assert weights.resolve(str(head), kind="target") == head


def test_an_ngram_is_a_file_or_a_name_in_a_folder(tmp_path):
    file = tmp_path / "small.trie"
    file.write_bytes(b"")
    assert weights.resolve(file, kind="ngram") == file
    assert weights.resolve(tmp_path, kind="ngram", filename="small.trie") == file
    with pytest.raises(ArenaError, match=r"no full\.trie in .* it holds small\.trie"):
        weights.resolve(tmp_path, kind="ngram", filename="full.trie")
    with pytest.raises(ArenaError, match="name the file"):
        weights.resolve(tmp_path, kind="ngram")


def test_an_incomplete_folder_names_what_is_missing(tmp_path):
    head = make_head(tmp_path / "head")
    (head / "model.safetensors").unlink()
    with pytest.raises(
        ArenaError, match=r"head '.*head': no \*\.safetensors or pytorch_model\.bin"
    ):
        weights.resolve(head, kind="head")
    with pytest.raises(ArenaError, match="is a file; expected a folder"):
        weights.resolve(head / "config.json", kind="target")


@pytest.mark.parametrize("reference", ["./gone", "/gone/for/good", "one-word", "a/b/c", ""])
def test_what_is_neither_path_nor_id(reference, no_hub):
    with pytest.raises(ArenaError, match=r"no such folder, and not a hub id|is a file|no config"):
        weights.resolve(reference, kind="target")


def test_an_unreachable_hub_says_what_was_tried(no_hub):
    with pytest.raises(ArenaError) as caught:
        weights.resolve("fvliang/qwen4b-dart", kind="head")
    message = str(caught.value)
    assert "head 'fvliang/qwen4b-dart': no local folder of that name" in message
    assert "neither reachable nor in the hub cache" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    "shard",
    ["../../etc/passwd", "/etc/passwd", "a/../../b", "..\\x", "C:\\x", "\0", "", 5, None, ["x"]],
)
def test_weight_files_of_an_index_lie_in_its_folder(tmp_path, shard):
    folder = make_head(tmp_path / "model")
    (folder / "model.safetensors").rename(folder / "part.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "part.safetensors", "b": shard}}))
    if isinstance(shard, list):  # what is no index at all is for transformers to say
        assert weights.resolve(folder, kind="target") == folder
        return
    with pytest.raises(ArenaError, match=r"index\.json names the weight file .* from whom you"):
        weights.resolve(folder, kind="target")
    index.write_text('{"weight_map": ' + "[" * 100_000)
    assert weights.resolve(folder, kind="target") == folder


def test_a_cached_repository_is_found_offline(no_hub, tmp_path):
    repository = tmp_path / "hub" / "models--fvliang--qwen4b-dart"
    snapshot = repository / "snapshots" / ("0" * 40)
    snapshot.parent.mkdir(parents=True)
    make_head(snapshot)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    assert weights.resolve("fvliang/qwen4b-dart", kind="head") == snapshot


def test_an_ngram_file_that_is_here_already(no_hub, tmp_path):
    assert weights.already_here("fvliang/dart-qwen3-ngram", "small.trie") is None
    repository = tmp_path / "hub" / "models--fvliang--dart-qwen3-ngram"
    snapshot = repository / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "small.trie").write_bytes(b"")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    for reference in ("fvliang/dart-qwen3-ngram", snapshot):
        assert weights.already_here(reference, "small.trie") == snapshot / "small.trie"
        assert weights.already_here(reference, "full.trie") is None
    assert weights.already_here(snapshot / "small.trie", "small.trie") is None


def test_without_a_home_folder_the_cache_names_its_variable(monkeypatch):
    for name in ("HOME", "DART_ARENA_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def homeless(self):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", homeless)
    with pytest.raises(ArenaError, match="set DART_ARENA_CACHE"):
        weights.cache_dir()


def test_an_installed_package_without_the_repository_says_where_the_demo_is():
    with pytest.raises(ArenaError, match="pip install -e"):
        weights.resolve(weights.DEMO_ASSETS / "nothing", kind="head")
