"""Recorded runs shown again: at their engines' own time, stopped at once, found in a folder, and
without any model's library.
"""

from __future__ import annotations

import json
import logging
import math
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from recorded import TEXT, moves, recording
from scripted import ScriptedEngine, ScriptedTokenizer, steps_of

from app import record, replays
from app.arena import Arena
from app.race import Ended, Judged, Moved
from app.recording import Recording, replay
from dart_core.errors import ArenaError

ROOT = Path(__file__).resolve().parent.parent


class Clock(threading.Event):
    """A stop event that is the time as well: who waits on it makes time pass."""

    def __init__(self):
        super().__init__()
        self.time = 100.0
        self.waits: list[float] = []

    def wait(self, timeout=None):
        self.waits.append(timeout)
        self.time += timeout
        return self.is_set()

    def now(self) -> float:
        return self.time


def timed(run: Recording, speed: float = 1.0) -> list[tuple[float, object]]:
    """Every event with the seconds since the replay began."""
    clock = Clock()
    return [
        (clock.time - 100.0, event) for event in replay(run, speed=speed, stop=clock, now=clock.now)
    ]


# Time ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("speed", [1.0, 0.25, 4.0])
@pytest.mark.parametrize("at_once", [True, False])
def test_every_move_comes_at_its_engines_own_time(speed, at_once):
    run = recording(at_once=at_once)
    shown = timed(run, speed)
    for when, event in shown:
        if isinstance(event, Moved):
            assert when == pytest.approx(event.clock / speed)
    for engine in run.header["engines"]:
        assert moves([event for _, event in shown], engine) == moves(run.events, engine)
    clocks = [event.clock for _, event in shown if isinstance(event, Moved)]
    assert clocks == sorted(clocks)  # recorded in turn or not, all engines run side by side


def test_without_limit_nothing_is_waited_for():
    clock = Clock()
    shown = list(replay(recording(), speed=math.inf, stop=clock, now=clock.now))
    assert clock.waits == []
    assert len(shown) == len(recording().events)


@pytest.mark.parametrize("speed", [0, -1, math.nan, -math.inf])
def test_a_speed_that_is_none_is_refused(speed):
    with pytest.raises(ArenaError, match="a number above 0"):
        next(replay(recording(), speed=speed))


@pytest.mark.parametrize("at_once", [True, False])
def test_an_end_comes_with_its_engines_last_move(at_once):
    run = recording(at_once=at_once)
    for engine in run.header["engines"]:
        own = [(when, e) for when, e in timed(run) if getattr(e, "engine", "") == engine]
        own = [(when, e) for when, e in own if not isinstance(e, Judged)]
        assert isinstance(own[-1][1], Ended)
        if run.events[-2].engine != engine or not at_once:
            assert own[-1][0] == pytest.approx(own[-2][0])


def test_a_verdict_comes_after_the_moves_it_is_about():
    run = recording(at_once=False)
    verdict = run.events.pop()
    last = max(n for n, event in enumerate(run.events) if isinstance(event, Moved))
    run.events.insert(last, verdict)  # told while the last engine was still running
    shown = timed(run)
    place = [event for _, event in shown].index(verdict)
    when = shown[place][0]
    for engine in (verdict.engine, verdict.other):
        before = moves([event for _, event in shown[:place]], engine)
        assert sum(len(move.step.tokens) for move in before) > verdict.place
        assert before[-1].clock <= when + 1e-9
    assert shown[place + 1 :]  # and no later than it must


def test_what_followed_the_last_move_keeps_its_order():
    run = recording()
    last = max(n for n, event in enumerate(run.events) if isinstance(event, Moved))
    after = run.events[last + 1 :]
    assert len(after) > 1
    assert [event for _, event in timed(run)][-len(after) :] == after


# Stop ---------------------------------------------------------------------------------------------


def test_stop_ends_a_wait_at_once_and_every_engine_with_it():
    run = recording()
    stop, events = threading.Event(), []
    slow = threading.Thread(  # the next move is days away
        target=lambda: events.extend(replay(run, speed=1e-6, stop=stop))
    )
    slow.start()
    time.sleep(0.05)
    stop.set()
    slow.join(timeout=120)
    assert not slow.is_alive()
    assert [(e.engine, e.reason, e.message) for e in events] == [
        (engine, "stopped", "Stopped.") for engine in run.header["engines"]
    ]


def test_a_replay_has_the_limit_of_any_run():
    """A recording of days, or one shown slowly, does not keep its place for ever."""
    run, clock = recording(), Clock()
    events = list(replay(run, speed=1e-6, max_seconds=5.0, stop=clock, now=clock.now))
    assert clock.time - 100.0 == pytest.approx(5.0)
    assert [(end.engine, end.reason) for end in events] == [
        (engine, "deadline") for engine in run.header["engines"]
    ]
    assert events[0].message == "Ended at this page's limit of 5 seconds a run."
    arena = Arena(max_seconds=0.2)
    visit = arena.begin_replay("visitor", run, speed=1e-6)
    for _ in visit.paced(0.01):
        pass
    assert "limit of 0.2 seconds" in json.dumps(visit.view.panel(run.header["engines"][0]))
    arena.close()


def test_stop_leaves_the_engines_alone_that_had_ended():
    run, stop, events = recording(), threading.Event(), []
    for event in replay(run, speed=math.inf, stop=stop):
        events.append(event)
        if isinstance(event, Ended):
            stop.set()
    ends = [event for event in events if isinstance(event, Ended)]
    assert sorted(end.engine for end in ends) == sorted(run.header["engines"])
    assert [end.reason for end in ends] == ["stop", "stopped", "stopped"]
    assert not [event for event in events if isinstance(event, Judged)]


def test_a_run_recorded_before_its_end_is_ended():
    run = recording()
    del run.events[4:]
    ends = [event for event in replay(run, speed=math.inf) if isinstance(event, Ended)]
    assert [end.engine for end in ends] == run.header["engines"]
    assert {end.message for end in ends} == {"The recording ends here."}


# A folder of runs ---------------------------------------------------------------------------------


def test_a_folder_lists_its_runs_and_says_what_each_is(tmp_path, caplog):
    run = recording(TEXT[:24])
    run.save(tmp_path / "b.json.gz")
    run.header["prompt"] = "word " * 40
    run.header["settings"]["temperature"] = 0
    run.header["engines"] = ["dart", "eagle3", "ar"]
    run.save(tmp_path / "a.json")
    (tmp_path / "c.json").write_text("{}")
    (tmp_path / "notes.txt").write_text("no run")
    (tmp_path / "folder.json").mkdir()
    with caplog.at_level(logging.WARNING):
        found = replays.find(tmp_path)
    assert [path.name for _, path in found] == ["a.json", "b.json.gz"]
    long, short = (label for label, _ in found)
    assert short == (
        "Why is the <i>sky</i> blue? · DART, EAGLE3, AR · scripted · temperature 0.7 · 2026-11-29"
    )
    assert long.startswith("word word")
    assert "…" in long
    assert "temperature" not in long
    assert "c.json" in caplog.text
    assert "txt" not in caplog.text
    assert replays.find(tmp_path / "nowhere") == []


def test_a_changed_file_is_read_again(tmp_path):
    run = recording(TEXT[:24])
    run.save(tmp_path / "a.json")
    assert "Why is the" in replays.find(tmp_path)[0][0]
    run.header["prompt"] = "Another question entirely?"
    run.save(tmp_path / "a.json")
    assert "Another" in replays.find(tmp_path)[0][0]


def test_listing_reads_no_more_than_headers(tmp_path, monkeypatch):
    recording(TEXT[:24]).save(tmp_path / "a.json.gz")
    monkeypatch.setattr(Recording, "load", lambda path: pytest.fail("read a whole run"))
    assert len(replays.find(tmp_path)) == 1


def test_the_runs_we_ship_are_whole_and_say_where_they_come_from():
    shipped = replays.find(replays.SHIPPED)
    assert sum(path.stat().st_size for _, path in shipped) <= 3_000_000
    for _, path in shipped:
        run = Recording.load(path)
        made = run.header["made"]
        assert made["command"].startswith("bash launch/record.sh"), path
        assert {"source", "hardware"} <= set(made), path
        assert {"python", "torch", "transformers"} <= set(run.header["facts"]["versions"]), path
        ends = [event for event in run.events if isinstance(event, Ended)]
        assert {end.reason for end in ends} <= {"stop", "length"}, path
        header = json.dumps(run.header)
        assert not [folder for folder in (ROOT, Path.home(), "/tmp") if str(folder) in header]


# Recording what we ship ---------------------------------------------------------------------------


@pytest.fixture
def arena(monkeypatch):
    """Stands in for the demo's: the same run over and over, of whatever it is asked."""
    tokenizer = ScriptedTokenizer()
    ids = tokenizer.encode("A short answer.")
    engine = ScriptedEngine({name: steps_of(ids, [3]) for name in ("dart", "eagle3", "ar")})
    arena = Arena(engine, max_length=1024)
    monkeypatch.setattr(record, "_arena", lambda: arena)
    return arena


def test_the_shipped_runs_come_from_a_script(arena, tmp_path, capsys):
    assert record.main(["--output", str(tmp_path / "new"), "--max-new-tokens", "64"]) == 0
    found = replays.find(tmp_path / "new")
    assert [path.name for _, path in found] == [f"{shot.name}.json.gz" for shot in record.SHOTS]
    runs = [Recording.load(path) for _, path in found]
    assert len({run.header["prompt"] for run in runs}) == len(runs) == 5
    assert {run.header["settings"]["temperature"] for run in runs} == {0, 0.7}
    assert sum(run.header["settings"]["candidates"] for run in runs) == 1
    for run in runs:
        assert run.header["engines"] == ["dart", "eagle3", "ar"]
        assert run.header["settings"]["max_new_tokens"] == 64
        assert run.header["settings"]["tree_budget"] == 16
        assert run.header["made"]["command"] == "bash launch/record.sh --max-new-tokens 64"
        assert str(tmp_path) not in json.dumps(run.header)
    assert "5-merge-lists-pruned-kept.json.gz" in capsys.readouterr().err


def test_a_run_that_fails_is_not_kept(arena, tmp_path, capsys):
    arena.engine.scripts["eagle3"] = [RuntimeError("no")]
    assert record.main(["--output", str(tmp_path)]) == 1
    assert "error: 1-steel-ships was not recorded" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


# Without any model's library ----------------------------------------------------------------------

WITHOUT = """
import sys
from importlib.abc import MetaPathFinder

class Blocker(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        root = name.partition(".")[0]
        if root in {"torch", "transformers", "accelerate", "safetensors", "gguf", "_core"}:
            raise ModuleNotFoundError(f"{name} is not installed here", name=name)
        if name == "dart_core._core":
            raise ModuleNotFoundError("nothing was compiled here", name=name)

sys.meta_path.insert(0, Blocker())
"""


def without_models(code: str, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-B", "-c", WITHOUT + code, *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )


def test_the_page_of_recordings_needs_no_models_library(tmp_path):
    recording().save(tmp_path / "run.json.gz")
    code = """
import math
import app.__main__
from app import replays
from app.arena import Arena
from app.page import build_page
from app.recording import Recording
from app.serve import close, launch

app.__main__.build_parser().parse_args(["--replay", sys.argv[1]])
arena = Arena(None)
build_page(arena, recordings=sys.argv[1])
[(label, path)] = replays.find(sys.argv[1])
visit = arena.begin_replay("visitor", Recording.load(path), math.inf)
for _ in visit.paced(0.0):
    pass
assert not visit.failed
print(visit.view.panel("dart")["text"])
assert not {"torch", "transformers", "accelerate", "safetensors"} & set(sys.modules)
"""
    result = without_models(code, str(tmp_path))
    assert result.returncode == 0, result.stderr
    assert "is blue<b> because" in result.stdout


def test_the_blocker_blocks():
    assert without_models("import torch").returncode == 1


def test_a_file_that_many_are_shown_is_in_memory_once(tmp_path):
    path = tmp_path / "run.json"
    run = recording()
    run.save(path)
    first = replays.read(path)
    assert replays.read(str(path)) is first
    run.header["prompt"] = "Another, and longer?"
    run.save(path)
    assert replays.read(path).header["prompt"] == "Another, and longer?"
    with pytest.raises(ArenaError, match=r"cannot read gone\.json"):
        replays.read("gone.json")
