"""Clocks that jump: no time is measured by one."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tiny_trio import cached_trio, load_engine

from dart_core.engine import Engine

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def engine(tmp_path_factory) -> Engine:
    with cached_trio(tmp_path_factory.mktemp("trio")) as root:
        yield load_engine(root)


def test_no_time_is_measured_by_a_clock_that_may_jump():
    """``time.time`` only dates what is made, and files; time is measured by monotonic clocks."""
    dating = {"app/uploads.py", "dart_core/chat_format.py", "dart_core/server.py"}
    asked = {
        path.relative_to(ROOT).as_posix()
        for folder in ("app", "dart_core", "launch")
        for path in (ROOT / folder).rglob("*.py")
        if "time.time(" in path.read_text(encoding="utf-8")
    }
    assert asked <= dating


def test_a_jumping_clock_changes_nothing(engine, tmp_path, monkeypatch):
    """Back by a day, forth by a year: limits, waits and bars go on as they were."""
    from app.arena import Arena, Ask
    from app.controls import checked, controls
    from dart_core.progress import ProgressBar

    jumps = iter([0.0, 3e7, -8.64e4] * 10_000)
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + next(jumps))
    arena = Arena(engine, max_length=128, max_seconds=600)
    try:
        table = controls(arena.engines, max_length=128, max_new_tokens=8)
        settings = checked(table, {control.name: control.default for control in table})
        visit = arena.begin("visitor", Ask("Hello", settings))
        for _ in visit.paced(0.0):
            pass
        assert {lane.state for lane in visit.view.lanes.values()} == {"done"}
    finally:
        arena.close()
    lines: list[str] = []
    bar = ProgressBar("work", log=lines.append, seconds=0)
    bar.show(0.5, "half")
    assert 0 <= bar.left(1, 2) < 60
    assert lines == ["work 50 %, half"]
