"""Runs on a rented GPU: what crosses to the worker's process and back, and what becomes of it."""

from __future__ import annotations

import importlib.util
import os
import signal
import threading
from pathlib import Path

import gradio as gr
import pytest
from scripted import ScriptedEngine, ScriptedTokenizer, steps_of

from app.arena import Arena, Ask, Order
from app.controls import checked, controls
from app.race import Ended, Judged, Moved
from app.rented import LONGEST, SHORTEST, START_SECONDS, Rented, seconds
from dart_core.check import Verdict
from dart_core.engine import GenerationSettings
from dart_core.errors import ArenaError

FAKE = Path(__file__).parent / "zerogpu" / "spaces.py"
TEXT = "The sky is blue because light scatters. The light is blue because the sky is."


@pytest.fixture(scope="module")
def spaces():
    spec = importlib.util.spec_from_file_location("fake_spaces", FAKE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def rent(spaces):
    """Makes arenas whose runs go to a forked worker."""
    made = []

    def build(gpu=spaces.GPU, **scripts) -> Arena:
        arena = Arena(ScriptedEngine(scripts, ScriptedTokenizer()), max_length=1024)
        arena.device = Rented(arena, gpu)
        made.append(arena)
        return arena

    yield build
    for arena in made:
        arena.close()


def script(text: str = TEXT, sizes=(3,), **options):
    return steps_of(ScriptedTokenizer().encode(text), sizes, **options)


def order(*engines: str, tokens: int = 512) -> Order:
    settings = GenerationSettings(max_new_tokens=tokens)
    return Order([1, 2], settings, list(engines), at_once=True, max_seconds=600)


def run(arena: Arena, **settings):
    table = controls(arena.engines, max_length=1024)
    defaults = checked(table, {control.name: control.default for control in table})
    visit = arena.begin("visitor", Ask("Why?", {**defaults, **settings}))
    for _ in visit.paced(0.0):
        pass
    return visit


def test_a_race_runs_in_the_worker_and_is_shown_here(rent):
    arena = rent(dart=script(), eagle3=script(sizes=[2]))
    view = run(arena).view
    assert [view.panel(engine)["text"] for engine in ("dart", "eagle3")] == [TEXT, TEXT]
    assert [view.panel(engine)["state"] for engine in ("dart", "eagle3")] == ["done", "done"]
    assert arena.engine.opened == []  # nothing ran in this process
    assert len(view.events) == len(script()) + len(script(sizes=[2])) + 2


def test_trees_and_verdicts_cross_as_they_are(rent):
    other = TEXT.replace("scatters. The", "scatters. the")
    arena = rent(dart=script(extra=[(1, 2), (3,)]), eagle3=script(other, sizes=[2]))
    arena.engine.verdict = Verdict("tie", 9, 1, 2, gap=0.001, difference=0.004, bound=0.1)
    there = list(arena.device(order("dart", "eagle3"), threading.Event()))
    here = list(arena.run(order("dart", "eagle3"), threading.Event()))
    assert [repr(event) for event in there] == [repr(event) for event in here]
    assert isinstance(there[-1], Judged)


def test_every_engine_is_warmed_up_once_per_worker(rent, spaces, tmp_path):
    """The first one to move would else pay for the GPU's first times."""
    log = tmp_path / "opened"

    def logged(engine):
        def steps(prompt):
            with log.open("a") as file:
                file.write(f"{engine} {os.getpid()}\n")
            return script("abc")

        return steps

    arena = rent(dart=logged("dart"), eagle3=logged("eagle3"), ar=logged("ar"))
    for _ in range(2):
        run(arena)
    lines = [line.split() for line in log.read_text().splitlines()]
    assert [engine for engine, _ in lines] == ["dart", "eagle3"] * 3  # and ar, which nobody runs
    (worker,) = {pid for _, pid in lines}
    assert int(worker) != os.getpid()


def test_stop_ends_the_worker_run_and_says_so(rent):
    arena = rent(dart=script(TEXT * 20), eagle3=script(TEXT * 20))
    stop = threading.Event()
    events = []
    for event in arena.device(order("dart", "eagle3", tokens=5000), stop):
        events.append(event)
        if len(events) == 9:
            stop.set()
    assert len([event for event in events if isinstance(event, Moved)]) == 9
    assert events[9:] == [
        Ended("dart", "stopped", "Stopped."),
        Ended("eagle3", "stopped", "Stopped."),
    ]
    *_, last = arena.device(order("dart", tokens=5000), threading.Event())
    assert last == Ended("dart", "stop")  # the worker serves on


def test_what_was_stopped_before_rents_nothing(rent, spaces):
    def no(**options):
        def never(order):
            raise AssertionError("rented")
            yield

        return lambda task: never

    arena = rent(no, dart=script())
    stop = threading.Event()
    stop.set()
    assert list(arena.device(order("dart"), stop)) == [Ended("dart", "stopped", "Stopped.")]


def refusing(error: Exception):
    def gpu(**options):
        def refuse(order):
            raise error
            yield

        return lambda task: refuse

    return gpu


def test_without_quota_the_page_says_so_and_points_to_the_recordings(rent, spaces):
    error = gr.Error(spaces.QUOTA, title="ZeroGPU quota exceeded", print_exception=False)
    arena = rent(refusing(error), dart=script(), eagle3=script())
    visit = run(arena)
    told = "No GPU for this run (ZeroGPU quota exceeded: You have exceeded your free ZeroGPU quota"
    assert str(visit.failed).startswith(told)
    assert str(visit.failed).endswith("The recorded runs below play without one.")
    assert isinstance(visit.failed, ArenaError)
    assert visit.view.panel("dart")["state"] == "error"
    assert visit.view.panel("dart")["note"].startswith(told)
    assert not visit.view.running


def test_other_failures_are_told_without_their_insides(rent, caplog):
    arena = rent(refusing(RuntimeError("token=secret")), dart=script(), eagle3=script())
    visit = run(arena)
    assert "The rented GPU failed (RuntimeError)" in str(visit.failed)
    assert "secret" not in str(visit.failed)
    assert "secret" in caplog.text  # the log has the details


def test_a_worker_that_is_taken_away_ends_the_run(rent):
    def dies(prompt):
        os.kill(os.getpid(), signal.SIGKILL)

    arena = rent(dart=script(), eagle3=dies)
    visit = run(arena)
    assert "ZeroGPU worker error: GPU task aborted" in str(visit.failed)
    assert visit.view.panel("eagle3")["state"] == "error"
    assert not visit.view.running


def test_an_engines_own_failure_is_that_lanes_alone(rent):
    arena = rent(dart=script(), eagle3=[*script()[:2], RuntimeError("no")])
    visit = run(arena)
    assert visit.failed is None
    assert visit.view.panel("dart")["state"] == "done"
    assert visit.view.panel("eagle3")["state"] == "error"


def test_the_duration_follows_from_the_token_budget():
    few, many = order("dart", tokens=256), order("dart", "eagle3", tokens=256)
    assert START_SECONDS < seconds(few) < seconds(many) < LONGEST
    assert seconds(order("dart", tokens=1)) == START_SECONDS + SHORTEST
    assert seconds(order("dart", "eagle3", "ar", tokens=100_000)) == LONGEST
    assert isinstance(seconds(few), int)


def test_a_race_ends_by_itself_before_its_time_on_the_gpu_is_over(rent):
    asked = []

    def gpu(*, duration):
        def record(order):
            asked.append((duration(order), order.max_seconds))
            yield Ended("dart", "stop")

        return lambda task: record

    arena = rent(gpu, dart=script())
    run(arena, max_new_tokens=200, second="")
    ((rented, limit),) = asked
    assert 0 < limit <= rented - START_SECONDS
