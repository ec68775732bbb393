"""What a disk says that takes nothing, in words; what it held before is kept."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from dart_core import hub
from dart_core.disk import disk_trouble, written_whole
from dart_core.errors import ArenaError
from dart_core.ngram import open_published
from dart_core.references import Remote


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "the disk is full"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "the disk is full"),
        (OSError(errno.EROFS, "Read-only file system"), "Read-only file system: make it one"),
        (PermissionError(errno.EACCES, "Permission denied"), "Permission denied: make it one"),
        (RuntimeError("Error while serializing: I/O error: (os error 28)"), "the disk is full"),
        (RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos"), "is full"),
        (OSError(errno.ENOENT, "No such file or directory"), None),
        (RuntimeError("shapes cannot be multiplied"), None),
    ],
)
def test_a_disks_troubles_in_words(error, says, tmp_path):
    told = disk_trouble(error, tmp_path / "not" / "there")
    assert (told is None) == (says is None)
    assert says is None or says in told


def test_what_cannot_be_made_whole_leaves_the_old(tmp_path):
    path = tmp_path / "x"
    path.write_text("old")

    def interrupted() -> None:
        with written_whole(path) as partial:
            partial.write_text("ne")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError(errno.EROFS, "Read-only file system"), "Read-only file system"),
        (OSError(errno.ENOSPC, "No space left on device"), "the disk is full"),
    ],
)
def test_a_hub_cache_that_takes_nothing_is_no_trouble_of_the_network(
    error, says, tmp_path, monkeypatch
):
    def refuse(*arguments, **options):
        raise error

    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(hub, "_ask", lambda *arguments: hub.Listing({}, 0, tmp_path))
    with pytest.raises(ArenaError) as caught:
        hub.fetch(Remote("owner/name"), "target", ["*"], print)
    message = str(caught.value)
    assert f"cannot be kept in the hub cache {tmp_path}: {says}" in message
    assert "HF_HOME" in message and "network" not in message


@pytest.mark.parametrize("damaged", [False, True])
def test_an_ngram_cache_that_is_read_only(damaged, tmp_path, monkeypatch):
    """What is converted in it already is opened; what cannot be made there is told."""
    source, cache = Path(__file__).parent / "golden/dart/trie/a_order3.trie", tmp_path / "cache"
    with open_published(source, cache=cache) as model:
        converted = model.path
    if damaged:
        converted.write_bytes(converted.read_bytes()[:-40])

    def refuse(*arguments, **options):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "unlink", refuse)
    monkeypatch.setattr(Path, "mkdir", refuse)
    if not damaged:
        open_published(source, cache=cache).close()
        return
    with pytest.raises(ArenaError, match=r"cannot be written to .*Read-only.*DART_ARENA_CACHE"):
        open_published(source, cache=cache)
