"""Memory that runs out in the middle of a run, and a server's that must not grow."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from tiny_trio import cached_trio, load_engine

from app import replays
from app.recording import Recording
from dart_core.cache import KVCache
from dart_core.engine import Engine, GenerationSettings
from dart_core.memory import OutOfMemory


@pytest.fixture(scope="module")
def engine(tmp_path_factory) -> Engine:
    with cached_trio(tmp_path_factory.mktemp("trio")) as root:
        yield load_engine(root)


CUDA_SAYS = "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 4 GiB"


@contextmanager
def short_of_memory(owner, name: str, at: int) -> Iterator[None]:
    """The ``at``-th call of a module's forward asks for more than there is."""
    real, calls = getattr(owner, name), []

    def forward(*arguments, **options):
        calls.append(1)
        if len(calls) == at:
            raise torch.OutOfMemoryError(CUDA_SAYS)
        return real(*arguments, **options)

    setattr(owner, name, forward)
    try:
        yield
    finally:
        delattr(owner, name)


@pytest.mark.parametrize("static", [False, True], ids=["", "static"])
@pytest.mark.parametrize("where", ["target", "head"])
@pytest.mark.parametrize("name", ["dart", "eagle3"])
def test_memory_that_runs_out_in_the_middle_leaves_the_next_run_whole(name, where, static, engine):
    prompt, settings = [5, 9, 23, 4], GenerationSettings(max_new_tokens=8)
    plain = engine.generate(prompt, "ar", settings).output_ids
    owner = engine.target.layers[-1] if where == "target" else engine.drafters[name].head
    if static:
        engine.target.use_static_shapes()
    try:
        for at in (1, 3):
            with short_of_memory(owner, "forward", at), pytest.raises(OutOfMemory) as caught:
                engine.generate(prompt, name, settings)
            assert "2.50 GiB more were asked for" in str(caught.value)
            assert engine.generate(prompt, name, settings).output_ids == plain
    finally:
        engine.target._static = None


def test_who_keeps_the_error_keeps_no_cache(engine, monkeypatch):
    """A notebook holds on to its last error, and with it to all that its frames hold."""
    caches: list[weakref.ref] = []
    real = KVCache.__init__

    def made(self, *arguments, **options):
        real(self, *arguments, **options)
        caches.append(weakref.ref(self))

    monkeypatch.setattr(KVCache, "__init__", made)
    last = engine.target.layers[-1]
    with short_of_memory(last, "forward", 3), pytest.raises(OutOfMemory) as caught:
        engine.generate([5, 9, 23], "dart", GenerationSettings(max_new_tokens=12))
    gc.collect()
    assert caches and all(cache() is None for cache in caches)
    assert isinstance(caught.value.__cause__, torch.OutOfMemoryError)


def test_a_drafter_that_finds_no_room_leaves_no_cache(engine, monkeypatch):
    closed = []
    real = KVCache.close
    monkeypatch.setattr(KVCache, "close", lambda self: (closed.append(1), real(self)))

    def fail(*arguments, **options):
        raise torch.OutOfMemoryError(CUDA_SAYS)

    monkeypatch.setattr(engine.drafters["dart"], "begin", fail, raising=False)
    with pytest.raises(OutOfMemory):
        engine.generate([5, 9, 23], "dart", GenerationSettings(max_new_tokens=4))
    assert closed == [1]


def test_runs_are_read_one_at_a_time_in_one_thread(monkeypatch):
    """Else every thread that ever read a large one keeps as much memory as that took."""
    readers, inside = set(), threading.Lock()

    def load(path):
        assert inside.acquire(blocking=False)
        readers.add(threading.get_ident())
        time.sleep(0.01)
        inside.release()
        return path

    monkeypatch.setattr(Recording, "load", load)
    paths = [Path("/nowhere", f"{number}.json") for number in range(20)]
    with ThreadPoolExecutor(8) as visitors:
        assert list(visitors.map(replays.read, paths)) == paths
    assert len(readers) == 1
