"""The race and what is shown of it: clocks, order, isolation, limits, marks. No page, no model."""

from __future__ import annotations

import ast
import json
import math
import queue
import random
import threading
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from scripted import ScriptedEngine, ScriptedTokenizer, step, steps_of

from app.lane import LaneView
from app.race import Ended, Judged, Lane, Moved, in_words, race
from app.runner import MOST, Run, Runner
from app.view import Baseline, RunView
from dart_core.errors import ArenaError
from dart_core.metrics import summarize
from dart_core.tree import Candidates

WORDS = [" the", " sky", " is", " blue", " because", " light", " scatters", ".", "\n", "🎉"]
TEXT = "The sky is blue because light scatters.\nlight is blue é漢 🎉 because the sky scatters."


def tokenizer() -> ScriptedTokenizer:
    return ScriptedTokenizer(WORDS)


def lanes_of(engine: ScriptedEngine, names, prompt="x") -> list[Lane]:
    ids = engine.chat_ids([{"role": "user", "content": prompt}])
    return [
        Lane(name, lambda name=name: engine.stream(ids, engine=name), engine.detokenizer())
        for name in names
    ]


def engine_of(**scripts) -> ScriptedEngine:
    return ScriptedEngine(scripts, tokenizer())


def run(engine: ScriptedEngine, names, **options) -> list[Moved | Ended]:
    return list(race(lanes_of(engine, names), **{"stop": threading.Event(), **options}))


def moves(events, engine=None) -> list[Moved]:
    return [e for e in events if isinstance(e, Moved) and engine in (None, e.engine)]


def ends(events) -> dict[str, Ended]:
    return {e.engine: e for e in events if isinstance(e, Ended)}


def random_script(rng: random.Random, count: int) -> list:
    return [
        step(n, [65] * rng.randint(1, 4) if n else [65], seconds=rng.uniform(0.001, 0.2))
        for n in range(count)
    ]


# The clocks ---------------------------------------------------------------------------------------


def test_the_engine_behind_moves_next():
    rng = random.Random(1)
    for _ in range(50):
        engine = engine_of(
            **{n: random_script(rng, rng.randint(1, 30)) for n in ("dart", "eagle3", "ar")}
        )
        events = run(engine, ["dart", "eagle3", "ar"])
        clocks = dict.fromkeys(("dart", "eagle3", "ar"), 0.0)
        running = set(clocks)
        for event in events:
            if isinstance(event, Ended):
                running.discard(event.engine)
                continue
            assert clocks[event.engine] == min(clocks[name] for name in running)
            clocks[event.engine] += event.step.seconds.total
            assert event.clock == pytest.approx(clocks[event.engine])
        assert not running


def test_equal_clocks_take_turns():
    script = [step(n, [65], seconds=0.125) for n in range(4)]
    events = run(engine_of(dart=script, eagle3=script), ["dart", "eagle3"])
    assert [e.engine for e in moves(events)] == ["dart", "eagle3"] * 4


def test_one_after_the_other():
    script = [step(n, [65], seconds=0.1) for n in range(3)]
    events = run(engine_of(dart=script, eagle3=script), ["dart", "eagle3"], at_once=False)
    assert [e.engine for e in moves(events)] == ["dart"] * 3 + ["eagle3"] * 3
    assert moves(events, "eagle3")[0].clock == pytest.approx(0.1)  # its clock is its own


def test_rates_count_verify_steps_alone():
    script = [
        step(0, [65], seconds=9.0),
        step(1, [65, 66, 67], seconds=0.5),
        step(2, [65], seconds=0.5, finish="stop"),
    ]
    events = moves(run(engine_of(dart=script), ["dart"]))
    assert events[0].tau != events[0].tau  # NaN: nothing was verified yet
    assert events[-1].tokens_per_second == pytest.approx(4 / 1.0)
    assert events[-1].tau == pytest.approx(4 / 2)
    assert events[-1].clock == pytest.approx(10.0)
    metrics = summarize(script)
    assert events[-1].tau == pytest.approx(metrics["tau"])
    assert events[-1].tokens_per_second == pytest.approx(metrics["tokens_per_second"])


# Ends ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("broken", [0, 3])
@pytest.mark.parametrize("at_once", [True, False])
def test_a_failing_engine_leaves_the_other_alone(broken, at_once):
    ids = tokenizer().encode(TEXT)
    bad = steps_of(ids, [2])
    bad[broken] = RuntimeError("cannot read /srv/secret/head.bin")
    engine = engine_of(dart=steps_of(ids, [3]), eagle3=bad)
    events = run(engine, ["dart", "eagle3"], at_once=at_once)
    ended = ends(events)
    assert ended["eagle3"].reason == "error"
    assert "secret" not in ended["eagle3"].message
    assert "RuntimeError" in ended["eagle3"].message
    assert ended["dart"].reason == "stop"
    assert len(moves(events, "eagle3")) == broken
    assert "".join(p for m in moves(events, "dart") for p in m.pieces) == TEXT
    assert sorted(engine.closed) == ["dart", "eagle3"]


def test_the_log_has_the_details_of_what_no_visitor_can_mend(caplog):
    run(engine_of(dart=[ArenaError("the prompt is too long")]), ["dart"])
    assert not caplog.records
    run(engine_of(dart=[RuntimeError("no")]), ["dart"])
    assert "RuntimeError: no" in caplog.text


def test_an_error_meant_for_people_is_shown_as_it_is():
    engine = engine_of(dart=[ArenaError("the prompt has 9 tokens")], ar=[step(0, [65])])
    assert ends(run(engine, ["dart", "ar"]))["dart"].message == "the prompt has 9 tokens"
    assert "memory" in in_words(RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"))


@pytest.mark.parametrize("after", range(7))
def test_stop_ends_every_engine_before_its_next_step(after):
    engine = engine_of(
        dart=random_script(random.Random(2), 9), ar=random_script(random.Random(3), 9)
    )
    stop = threading.Event()
    events = []
    if after == 0:
        stop.set()
    for event in race(lanes_of(engine, ["dart", "ar"]), stop=stop):
        events.append(event)
        if len(moves(events)) == after:
            stop.set()
    assert len(moves(events)) == after
    assert {name: end.reason for name, end in ends(events).items()} == {
        "dart": "stopped",
        "ar": "stopped",
    }
    assert sorted(engine.closed) == sorted(engine.opened)


def test_deadline_in_seconds():
    time = iter(range(100))
    engine = engine_of(dart=random_script(random.Random(2), 50))
    events = run(engine, ["dart"], max_seconds=10, now=lambda: next(time))
    assert len(moves(events)) == 9
    assert ends(events)["dart"].reason == "deadline"
    assert "10 seconds" in ends(events)["dart"].message


def test_limit_in_tokens():
    engine = engine_of(
        dart=[step(n, [65, 66]) for n in range(50)], ar=[step(0, [65], finish="stop")]
    )
    events = run(engine, ["dart", "ar"], max_tokens=6)
    assert len(moves(events, "dart")) == 3
    assert ends(events)["dart"].reason == "deadline"
    assert ends(events)["ar"].reason == "stop"


def test_closing_the_race_closes_the_engines():
    engine = engine_of(
        dart=random_script(random.Random(2), 9), ar=random_script(random.Random(3), 9)
    )
    stream = race(lanes_of(engine, ["dart", "ar"]), stop=threading.Event())
    for _ in range(4):
        next(stream)
    stream.close()
    assert sorted(engine.closed) == ["ar", "dart"]


# Text and marks -----------------------------------------------------------------------------------


def view_of(events, engines, **options) -> RunView:
    view = RunView("run", engines, lambda token: tokenizer().decode([token]), **options)
    for event in events:
        view.take(event)
    return view


def tokens_of(panel: dict) -> list[tuple[str, str, int]]:
    """(text, maker, step) of every token, read from the marks as the browser reads them."""
    units = panel["text"].encode("utf-16-le")
    at, index, found = 0, 0, []
    for part, chunk in enumerate(panel["marks"].split("|")):
        index = part
        for record in filter(None, chunk.split(",")):
            length = int(record[1:].split(":")[0])
            text = units[2 * at : 2 * (at + length)].decode("utf-16-le")
            at += length
            if record[0] == "+":
                before = found.pop()
                found.append((before[0] + text, *before[1:]))
            else:
                found.append((text, record[0], index))
    assert at == len(units) // 2
    return found


@pytest.mark.parametrize("sizes", [[1], [2, 3, 1], [7], [1, 5]])
def test_characters_split_across_steps_come_whole(sizes):
    text = "ok 🎉é漢 end"
    ids = ScriptedTokenizer().encode(text)  # single bytes: every character is cut somewhere
    engine = ScriptedEngine({"dart": steps_of(ids, sizes)}, ScriptedTokenizer())
    seen = []
    view = RunView("run", ["dart"], lambda token: "")
    for event in race(lanes_of(engine, ["dart"]), stop=threading.Event()):
        view.take(event)
        seen.append(view.panel("dart")["text"])
    assert seen[-1] == text
    assert all(text.startswith(part) and "\ufffd" not in part for part in seen)
    assert "".join(text for text, _, _ in tokens_of(view.panel("dart"))) == text


def test_an_unfinished_character_is_flushed_once():
    ids = ScriptedTokenizer().encode("ok 🎉")[:-2]
    engine = ScriptedEngine({"dart": steps_of(ids, [2, 1])}, ScriptedTokenizer())
    events = list(race(lanes_of(engine, ["dart"]), stop=threading.Event()))
    panel = view_of(events, ["dart"]).panel("dart")
    assert panel["text"] == bytes(ids).decode("utf-8", "replace") == "ok \ufffd"
    assert "".join(text for text, _, _ in tokens_of(panel)) == panel["text"]


def test_marks_say_who_made_each_token():
    ids = tokenizer().encode(" the sky is blue because light scatters.")
    script = [
        step(0, ids[:1]),
        step(1, ids[1:4], root=ids[0]),
        step(2, ids[4:5], root=ids[3]),
        step(3, ids[5:8], root=ids[4], accepted=3, finish="length"),  # cut: no token of its own
    ]
    panel = view_of(run(engine_of(dart=script), ["dart"]), ["dart"]).panel("dart")
    assert [(maker, index) for _, maker, index in tokens_of(panel)] == [
        ("p", 0),
        ("d", 1),
        ("d", 1),
        ("t", 1),
        ("t", 2),
        ("d", 3),
        ("d", 3),
        ("d", 3),
    ]
    assert panel["marks"].startswith("p4|d4:50,d3:33,t5|")


def test_every_value_is_a_longer_one_of_the_same():
    ids = tokenizer().encode(TEXT * 3)
    engine = engine_of(dart=steps_of(ids, [3, 1, 4]), eagle3=steps_of(ids, [2, 2, 1]))
    view = RunView("run", ["dart", "eagle3"], lambda token: "")
    last: dict[str, str] = {}
    for event in race(lanes_of(engine, ["dart", "eagle3"]), stop=threading.Event()):
        view.take(event)
        lane = view.charts()["lanes"][0]
        now = {name: view.panel("dart")[name] for name in ("text", "marks")}
        now |= {name: lane[name] for name in ("accepted", "emitted", "clocks")}
        assert all(now[name].startswith(last.get(name, "")) for name in now)
        last = now
    assert last["text"] == TEXT * 3
    emitted = [int(n) for n in last["emitted"].split(",")]
    accepted = [int(n) for n in last["accepted"].split(",")]
    assert sum(emitted) == len(ids)
    assert accepted == [n - 1 for n in emitted[1:]]


def test_the_first_divergence_is_flagged_in_both_panels():
    ids = tokenizer().encode(TEXT)
    other = [*ids[:9], ids[9] ^ 1, *ids[10:]]
    engine = engine_of(dart=steps_of(ids, [3]), eagle3=steps_of(other, [2]))
    events = run(engine, ["dart", "eagle3"])
    for name, rival in (("dart", "EAGLE3"), ("eagle3", "DART")):
        view = view_of(events, ["dart", "eagle3"])
        panel = view.panel(name)
        assert panel["cut"] == len(tokenizer().decode(ids[:9]))
        assert f"From token 10 on this text differs from {rival}'s" in panel["note"]
        assert "the target could not be asked why" in panel["note"]
        view.take(Judged("eagle3", "dart", 9, "tie", "a rounding tie."))
        assert "a rounding tie." in view.panel(name)["note"]
    same = view_of(
        run(engine_of(dart=steps_of(ids, [3]), ar=steps_of(ids, [1])), ["dart", "ar"]),
        ["dart", "ar"],
    )
    assert same.panel("dart")["cut"] == same.panel("ar")["cut"] == -1


def test_a_stopped_panel_does_not_diverge_from_a_longer_one():
    ids = tokenizer().encode(TEXT)
    engine = engine_of(dart=steps_of(ids, [3])[:3], eagle3=steps_of(ids, [2]))
    view = view_of(run(engine, ["dart", "eagle3"]), ["dart", "eagle3"])
    assert view.divergences == {}


def test_speedup_names_its_baseline_and_may_be_below_one():
    ids = tokenizer().encode(TEXT)
    slow = [*steps_of(ids, [2], seconds=0.3)]
    warm = Baseline(20.0, "plain decoding at warm-up")
    view = view_of(run(engine_of(dart=slow), ["dart"]), ["dart"], baseline=warm)
    panel = view.panel("dart")
    assert panel["speedup"] == "0.33×"
    assert panel["slower"] is True
    assert "Slower than plain decoding" in panel["note"]
    assert view.charts()["baseline"] == [20.0, "plain decoding at warm-up"]

    busy = Baseline(2.0, "plain decoding at warm-up")
    note = view_of(run(engine_of(dart=slow), ["dart"]), ["dart"], baseline=busy).panel("dart")[
        "note"
    ]
    assert "Faster than its τ allows" in note
    assert "(2.0 tokens / s, plain decoding at warm-up)" in note
    fair = Baseline(4.0, "plain decoding at warm-up")  # 1.7 ×, of a τ of 2
    view = view_of(run(engine_of(dart=slow), ["dart"]), ["dart"], baseline=fair)
    assert "Faster" not in view.panel("dart")["note"]

    plain = steps_of(ids, [1], seconds=0.5)
    view = view_of(
        run(engine_of(dart=slow, ar=plain), ["dart", "ar"]), ["dart", "ar"], baseline=warm
    )
    assert view.charts()["baseline"][1] == "plain decoding in this run"
    assert view.panel("dart")["speedup"] == f"{(2 / 0.3) / (1 / 0.5):.2f}×"
    assert view.panel("ar")["speedup"] == "–"

    view = view_of(run(engine_of(dart=slow), ["dart"]), ["dart"])
    assert view.panel("dart")["speedup"] == "–"
    assert view.charts()["baseline"] is None


def test_the_tree_shown_is_the_steps_own():
    ids = tokenizer().encode(" the sky is blue because light scatters.")
    script = steps_of(ids, [3], extra=[[ids[2], ids[3]], [ids[4]]])
    view = view_of(run(engine_of(dart=script), ["dart"]), ["dart"])
    shown = json.loads(view.tree("dart", 1))
    own = script[1].tree
    assert shown["parents"] == own.parents.tolist()
    assert shown["tokens"] == [tokenizer().decode([t]) for t in own.tokens.tolist()]
    assert shown["p"] == pytest.approx(own.probabilities.tolist(), abs=1e-4)
    assert shown["path"] == list(script[1].path)
    assert shown["bonus"] == tokenizer().decode([script[1].bonus])
    assert shown["backend"] == "native"
    assert set(shown["ngram"]) == {None}
    assert view.tree("dart", 0) == view.tree("dart", 99) == view.tree("ar", 1) == ""
    assert json.loads(view.trees()["lanes"][0]["latest"])["step"] == script[-1].index


def test_the_pool_shown_is_the_best_of_it_and_whole_paths():
    rng = np.random.default_rng(3)
    size = 900
    parents = np.array([rng.integers(-1, n) if n else -1 for n in range(size)], np.int32)
    scores = np.zeros(size, np.float32)
    for n in range(size):
        above = scores[parents[n]] if parents[n] >= 0 else 0.0
        scores[n] = above - rng.exponential()
    node = np.full(size, -1, np.int32)
    node[:5] = [1, 2, 3, 4, 5]
    pool = Candidates(np.arange(size), parents, scores, node)
    shown = RunView("run", ["dart"], str)._pool(pool)
    chosen = [int(token) for token in shown["tokens"]]
    assert shown["node"][:5] == [1, 2, 3, 4, 5]
    assert len(chosen) == 155
    assert shown["more"] == size - 155
    for place, old in enumerate(chosen):
        above = shown["parents"][place]
        assert (chosen[above] if above >= 0 else -1) == parents[old]
    left = sorted(set(range(size)) - set(chosen), key=lambda n: -scores[n])
    assert scores[left[0]] <= min(scores[n] for n in chosen[5:])

    few = Candidates(
        np.arange(3), np.array([-1, 0, 1], np.int32), scores[:3], np.array([1, -1, -1])
    )
    assert RunView("run", ["dart"], str)._pool(few)["more"] == 0


def test_a_step_copies_nothing_of_the_text_before_it():
    lane = LaneView("dart")
    lane.move(Moved("dart", step(0, [65]), ("😀" * 1_000_000,), 0.1, math.nan, math.nan))
    tracemalloc.start()
    try:
        lane.move(Moved("dart", step(1, [66]), ("b",), 0.2, 1.0, 1.0))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 100_000
    assert lane.text == "😀" * 1_000_000 + "b"


# The runner ---------------------------------------------------------------------------------------


def drained(run: Run) -> list:
    events = []
    while not run.done:
        events += run.drain(wait=0.1)
    return events


def test_the_runner_runs_jobs_in_turn_on_one_thread_of_its_own():
    runner = Runner()
    threads = []

    def job(name):
        def stream(stop) -> Iterator[tuple[str, int]]:
            for n in range(5):
                threads.append(threading.current_thread().name)
                yield name, n

        return stream

    first, second = runner.start(job("a")), runner.start(job("b"))
    assert drained(second) == [("b", n) for n in range(5)]
    assert first.ended.is_set()  # in turn: the second began when the first had ended
    assert drained(first) == [("a", n) for n in range(5)]
    assert set(threads) == {"arena-device"}
    runner.close()


def test_a_closed_runner_runs_nothing_more():
    runner, moved = Runner(), threading.Event()

    def endless(stop):
        while not stop.is_set():
            moved.set()
            yield 0

    first, second = runner.start(endless), runner.start(endless)
    assert moved.wait(120)
    runner.close(20)
    assert first.ended.is_set() and second.ended.is_set()
    assert drained(second) == []


def test_an_error_ends_its_own_run_alone():
    runner = Runner()

    def broken(stop):
        yield 1
        raise RuntimeError("no")

    failed, fine = runner.start(broken), runner.start(lambda stop: iter([2]))
    assert drained(failed) == [1]
    assert isinstance(failed.error, RuntimeError)
    assert drained(fine) == [2]
    assert fine.error is None
    runner.close()


def test_a_look_takes_no_more_events_than_wait_for_one():
    run = Run(lambda stop: iter(()))
    run._events = queue.Queue()  # as one that is filled while it is emptied
    for number in range(MOST + 5):
        run._events.put(number)
    assert run.drain() == list(range(MOST))
    assert run.drain(wait=0.1) == list(range(MOST, MOST + 5))


def test_an_abandoned_run_frees_the_device():
    """Nobody drains the first run; once stopped, its full queue must not hold the next one up."""
    runner = Runner()
    closed = threading.Event()

    def endless(stop):
        try:
            while not stop.is_set():
                yield 0
        finally:
            closed.set()

    abandoned = runner.start(endless)
    while abandoned._events.qsize() < MOST:
        threading.Event().wait(0.01)
    abandoned.stop.set()
    assert drained(runner.start(lambda stop: iter([1]))) == [1]
    assert closed.is_set()
    runner.close()


def test_a_run_that_nobody_watches_any_more_frees_the_device(monkeypatch):
    monkeypatch.setattr("app.runner.ABANDONED", 0.2)
    runner = Runner()

    def endless(stop):
        while not stop.is_set():
            time.sleep(0.01)
            yield 0

    abandoned, watched = runner.start(endless), runner.start(endless)
    assert abandoned.ended.wait(60)
    deadline = time.monotonic() + 1.0
    while time.monotonic() < deadline:
        watched.drain(wait=0.01)
    assert not watched.stop.is_set()
    watched.stop.set()
    runner.close()


def test_a_run_stopped_before_its_turn_never_opens_an_engine_and_says_that_it_stopped():
    runner, engine = Runner(), engine_of(dart=[step(0, [65])])
    go = threading.Event()

    def waits(stop):
        go.wait()
        yield 1

    first = runner.start(waits)
    second = runner.start(lambda stop: race(lanes_of(engine, ["dart"]), stop=stop))
    second.stop.set()
    go.set()
    assert drained(first) == [1]
    assert [(event.engine, event.reason) for event in drained(second)] == [("dart", "stopped")]
    assert not engine.opened
    runner.close()


# Architecture -------------------------------------------------------------------------------------


def test_race_view_and_recording_know_no_page():
    app = Path(__file__).parent.parent / "app"
    others = {"page", "layout", "serve", "guard", "misfits", "queueing", "uploads", "record",
              "__main__"}  # fmt: skip
    for path in (path for path in app.glob("*.py") if path.stem not in others):
        tree = ast.parse(path.read_text())
        imported = {
            alias.name.split(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.Import)
            for alias in node.names
        } | {
            (node.module or "").split(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
        }
        assert not imported & {"gradio", "plotly", "torch"}, path
