"""One process at a time writes to an output; a lock that a killed one left is nobody's."""

from __future__ import annotations

import os

import pytest

from dart_core.disk import alone_with, claim
from dart_core.errors import ArenaError


def test_who_has_a_lock_is_alone(tmp_path):
    lock = tmp_path / "lock"
    lock.touch()  # left by a process that was killed
    for _ in range(2):
        with alone_with("the output", lock):
            with (
                pytest.raises(
                    ArenaError, match="another process is writing the output: wait for its end"
                ),
                alone_with("the output", lock),
            ):
                pytest.fail("two have it")
            assert lock.exists()  # who was refused has not removed it
        assert not lock.exists()
    with pytest.raises(KeyError), alone_with("the output", lock):
        raise KeyError
    assert not lock.exists()


def test_a_lock_that_is_removed_before_it_is_held_is_made_again(tmp_path, monkeypatch):
    """Its owner was done between this process's opening it and locking it."""
    lock, same, looks = tmp_path / "lock", os.path.samestat, []

    def samestat(one: os.stat_result, other: os.stat_result) -> bool:
        if not looks:
            lock.unlink()
            lock.touch()
            other = lock.stat()
        looks.append(same(one, other))
        return looks[-1]

    monkeypatch.setattr(os.path, "samestat", samestat)
    with claim(lock):
        assert looks == [False, True]


def test_a_place_where_no_lock_can_be(tmp_path):
    with pytest.raises(FileNotFoundError), alone_with("x", tmp_path / "none" / "lock"):
        pytest.fail("there is no folder for it")
