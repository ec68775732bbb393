"""The n-gram of a drafter without a network: from a hub-layout cache, and from a plain folder."""

from __future__ import annotations

import shutil

import pytest
from golden_dart import DART

from dart_core.errors import ArenaError
from dart_core.ngram_loading import open_ngrams
from dart_core.presets import PRESETS

PRESET = PRESETS["qwen3-4b"]
REPOSITORY = "fvliang/dart-qwen3-ngram"
VOCAB = 512


@pytest.fixture(params=[False, True], ids=["refused", "offline"])
def hub(request, monkeypatch, tmp_path):
    """The snapshot folder of the n-gram's repository in a hub-layout cache, with the small one in
    it; the hub refuses connections, or HF_HUB_OFFLINE is set.
    """
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", request.param)
    monkeypatch.setenv("DART_ARENA_CACHE", str(tmp_path / "cache"))
    repository = tmp_path / "hub" / "models--fvliang--dart-qwen3-ngram"
    snapshot = repository / "snapshots" / ("0" * 40)
    for folder in (snapshot, repository / "blobs", repository / "refs"):
        folder.mkdir(parents=True)
    (repository / "refs" / "main").write_text("0" * 40)
    blob = shutil.copy(DART / "trie" / "a_order3.trie", repository / "blobs" / "abc")
    (snapshot / "small.trie").symlink_to(blob)
    return snapshot


def load(reference, *, small: bool, said: list[str]):
    return open_ngrams(str(reference), PRESET, small=small, vocab_size=VOCAB, progress=said.append)


@pytest.mark.parametrize("plain", [False, True], ids=["cache", "folder"])
def test_it_is_converted_once_and_then_opened(plain, hub):
    said: list[str] = []
    reference = hub if plain else REPOSITORY
    for again in (False, True):
        (model,) = load(reference, small=True, said=said).values()
        assert (model.order, model.vocab_size) == (3, VOCAB)
        assert sum("takes up to" in line for line in said) == 1, again
    assert said[-1].startswith("n-gram small.trie: order 3")


def test_the_file_that_is_missing_is_named(hub):
    with pytest.raises(ArenaError) as caught:
        load(REPOSITORY, small=False, said=[])
    message = str(caught.value)
    assert "full.trie" in message and REPOSITORY in message and "\n" not in message


def test_both_sizes_are_there_where_both_lie_ready(hub):
    shutil.copy(DART / "trie" / "e_addall_order3.trie", hub / "full.trie")
    assert list(load(REPOSITORY, small=True, said=[])) == ["small"]  # no long conversion unasked
    assert list(load(REPOSITORY, small=False, said=[])) == ["full", "small"]
    assert list(load(REPOSITORY, small=True, said=[])) == ["small", "full"]


def test_a_damaged_conversion_is_made_again(hub, tmp_path):
    (first,) = load(hub, small=True, said=[]).values()
    counts = first.query([1, 2], list(range(VOCAB)))
    first.close()
    (converted,) = (tmp_path / "cache").rglob("*.ngram")
    converted.write_bytes(converted.read_bytes()[:3000])
    said: list[str] = []
    (model,) = load(hub, small=True, said=said).values()
    assert any("is made again" in line for line in said)
    for one, other in zip(counts, model.query([1, 2], list(range(VOCAB))), strict=True):
        assert (one == other).all()


def test_a_cache_that_cannot_be_written_names_the_remedy(hub, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DART_ARENA_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ArenaError, match=r"cannot be written to .*set DART_ARENA_CACHE"):
        load(hub, small=True, said=[])
