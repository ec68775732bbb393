"""What lies behind the page: conversations, verdicts, replays, and what is told of a run."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from sys import getsizeof
from types import SimpleNamespace

import gradio as gr
import pytest
from scripted import ScriptedEngine, ScriptedTokenizer, steps_of

from app.arena import KEPT_EACH, KEPT_RUNS, LONGEST_PAUSE, OTHERS, Arena, Ask, Order
from app.controls import checked, controls
from app.facts import facts_of
from app.kept import KeptTexts
from app.markdown import render
from app.page import build_page
from app.race import Judged, Moved
from app.recording import Recording
from app.runner import ABANDONED
from app.steps_csv import steps_csv
from dart_core.check import Verdict

WORDS = [" the", " sky", " is", " blue", " because", " light", " scatters", "."]
TEXT = "The sky is blue because light scatters. The light is blue because the sky is."


class Told:
    """An arena over scripted engines, and shorthands for what its visitors do."""

    def __init__(self, **scripts):
        self.engine = ScriptedEngine(scripts, ScriptedTokenizer(WORDS))
        self.arena = Arena(self.engine, max_length=1024)
        table = controls(self.arena.engines, max_length=1024)
        self.settings = checked(table, {c.name: c.default for c in table})

    def run(self, prompt: str, turns=(), session="visitor", **settings):
        visit = self.arena.begin(session, Ask(prompt, {**self.settings, **settings}, turns))
        for _ in visit.paced(0.0):
            pass
        return visit


@pytest.fixture
def told():
    made = []

    def build(**scripts) -> Told:
        made.append(Told(**scripts))
        return made[-1]

    yield build
    for one in made:
        one.arena.close()


def ids_of(text: str) -> list[int]:
    return ScriptedTokenizer(WORDS).encode(text)


def script(text: str = TEXT, sizes=(3,), **options):
    return steps_of(ids_of(text), sizes, **options)


def test_a_follow_up_gives_every_engine_the_first_panels_conversation(told):
    page = told(dart=script(), eagle3=script(sizes=[2]))
    first = page.run("Why is it blue?")
    assert first.conversation == (("Why is it blue?", TEXT),)
    second = page.run("And at night?", first.conversation)
    assert second.conversation == (("Why is it blue?", TEXT), ("And at night?", TEXT))
    assert page.engine.asked[-1] == [
        {"role": "user", "content": "Why is it blue?"},
        {"role": "assistant", "content": TEXT},
        {"role": "user", "content": "And at night?"},
    ]
    panel = second.view.panel("eagle3")
    assert panel["turns"] == [["Why is it blue?", TEXT]]
    assert panel["prompt"] == "And at night?"


def test_a_session_shows_its_newest_run_alone(told):
    page = told(dart=script(TEXT * 40), eagle3=script())
    run = page.run("Why?")
    recording = page.arena.recording(run.view.run)
    replay = page.arena.begin_replay("visitor", recording, speed=1e-3)
    other = page.arena.begin_replay("somebody else", recording, speed=1e-3)
    assert run.left
    page.run("And now?")
    assert replay.left
    for _ in replay.paced(0.0):
        pass
    assert replay.view.panel("dart")["state"] == "stopped"
    assert not other.left
    other.stop()


def test_a_run_under_way_is_kept_however_many_others_begin(told):
    page = told(dart=script(), eagle3=script())
    recording = page.arena.recording(page.run("Why?").view.run)
    alice = page.arena.begin_replay("alice", recording, speed=1e-3)
    watching = alice.paced(0.0)
    next(watching)
    for number in range(KEPT_RUNS + 1):
        page.run("And?", session=f"other {number}")
    assert not alice.over
    assert page.arena.latest("alice") is alice
    assert page.arena.recording(alice.view.run) is not None
    alice.stop()
    for _ in watching:
        pass
    for number in range(KEPT_RUNS + 1):
        page.run("And?", session=f"other {number}")
    assert page.arena.latest("alice") is None


def test_one_sessions_runs_do_not_displace_everybodys(told):
    page = told(dart=script(), eagle3=script())
    alice = page.run("Why?", session="alice")
    runs = [page.run("And?", session="bob") for _ in range(KEPT_RUNS + 1)]
    assert page.arena.latest("alice") is alice
    kept = [page.arena.recording(visit.view.run) is not None for visit in runs]
    assert kept == [False] * (len(runs) - KEPT_EACH - 1) + [True] * (KEPT_EACH + 1)


def test_large_runs_are_forgotten_before_small_ones(told, monkeypatch):
    page = told(dart=script(), eagle3=script())
    small = page.run("Why?", session="alice")
    recording = page.arena.recording(small.view.run)
    recording.events *= 20
    monkeypatch.setattr("app.arena.KEPT_BYTES", 2 * recording.weight())
    large = []
    for number in range(3):
        large.append(page.arena.begin_replay(f"other {number}", recording))
        large[-1].stop()  # what was not shown is held all the same
    page.run("And?", session="bob")
    kept = [page.arena.recording(visit.view.run) is not None for visit in [small, *large]]
    assert kept == [True, False, False, True]


@pytest.mark.parametrize(
    ("takes", "pause"), [(1.5, OTHERS * 1.5), (10.0, LONGEST_PAUSE), (0.1, 0.4)]
)
def test_what_takes_long_to_show_is_shown_less_often(told, monkeypatch, takes, pause):
    page = told(dart=script(), eagle3=script())
    recording = page.arena.recording(page.run("Why?").view.run)
    clock, slept = [0.0], []
    fake = SimpleNamespace(monotonic=lambda: clock[0], sleep=slept.append)
    monkeypatch.setattr("app.arena.time", fake)
    visit = page.arena.begin_replay("visitor", recording, math.inf)
    left = iter([False, False, False, True])
    monkeypatch.setattr(visit, "advance", lambda wait: setattr(visit, "done", next(left)))
    for _ in visit.paced(0.5):
        clock[0] += takes
    assert slept == pytest.approx([pause] * 3)
    assert 2 * LONGEST_PAUSE < ABANDONED


def test_the_end_of_a_run_is_shown_once(told, monkeypatch):
    """Shown twice, it would come over what the page has said since."""
    monkeypatch.setattr("app.page.SPOKEN", 0.0)
    site = told(dart=script(), eagle3=script(sizes=[2]))
    shown = list(values(site, build_page(site.arena), "run", (), ""))
    running = [value[0]["running"] for value in shown]
    assert running == [True] * (len(shown) - 1) + [False]


def test_a_run_without_a_text_adds_no_turn(told):
    page = told(dart=[RuntimeError("no")], eagle3=[RuntimeError("no")])
    earlier = (("a", "b"),)
    assert page.run("Why?", earlier).conversation == earlier


def test_a_failed_first_panel_leaves_the_second_ones_answer(told):
    page = told(dart=[*script()[:2], RuntimeError("no")], eagle3=script())
    assert page.run("Why?").conversation == (("Why?", TEXT),)


def parting():
    other = TEXT.replace("scatters. The", "scatters. the")
    return script(), script(other, sizes=[2])


@pytest.mark.parametrize(
    ("status", "said"), [("tie", "a rounding tie"), ("DIFFERENT", "that is a bug, not rounding")]
)
def test_where_texts_part_the_target_is_asked_why(told, status, said):
    mine, other = parting()
    page = told(dart=mine, eagle3=other)
    page.engine.verdict = Verdict(status, 9, 1, 2, gap=0.001, difference=0.004, bound=0.1)
    view = page.run("Why?").view
    judged = [event for event in view.events if isinstance(event, Judged)]
    (place,) = view.divergences.values()
    assert [(j.engine, j.other, j.place, j.status) for j in judged] == [
        ("eagle3", "dart", place, status)
    ]
    for engine in ("dart", "eagle3"):
        assert said in view.panel(engine)["note"]
        assert "0.001 apart" in view.panel(engine)["note"]
    assert not view.status()["running"]


def test_of_three_texts_the_one_that_parts_is_explained_in_every_panel(told):
    mine, other = parting()
    page = told(dart=mine, eagle3=other, ar=script(sizes=[1]))
    page.engine.verdict = Verdict("tie", 9, 1, 2, gap=0.001, difference=0.004, bound=0.1)
    view = page.run("Why?", third="ar").view
    assert len(view.verdicts) == 1
    for engine in ("dart", "eagle3", "ar"):
        assert "a rounding tie" in view.panel(engine)["note"]


def test_equal_texts_are_not_judged(told):
    page = told(dart=script(), eagle3=script(sizes=[2]), ar=script(sizes=[1]))
    page.engine.verdict = RuntimeError("nobody may ask")
    view = page.run("Why?", third="ar").view
    assert not view.divergences
    assert all(not isinstance(event, Judged) for event in view.events)


def test_a_verdict_that_fails_leaves_the_run_whole(told):
    mine, other = parting()
    page = told(dart=mine, eagle3=other)
    page.engine.verdict = RuntimeError("out of memory")
    visit = page.run("Why?")
    assert visit.failed is None
    assert visit.view.panel("dart")["state"] == "done"
    note = visit.view.panel("dart")["note"]
    assert "the target could not be asked why; see the server's log." in note
    again = page.arena.begin_replay("visitor", page.arena.recording(visit.view.run), math.inf)
    for _ in again.paced(0.0):
        pass
    assert again.view.panel("dart")["note"].endswith("the target could not be asked why.")


def test_a_run_stopped_before_it_starts_measures_nothing(told, monkeypatch):
    page = told(dart=script(), eagle3=script())
    measured = []
    cost = property(lambda engine: measured.append(threading.current_thread().name))
    monkeypatch.setattr(ScriptedEngine, "verify_cost", cost)
    ask = Ask("Why?", {**page.settings, "auto_budget": True})
    visit = page.arena.begin("visitor", ask)
    visit.stop()
    visit.settle()
    assert {lane.state for lane in visit.view.lanes.values()} == {"stopped"}
    assert not measured
    page.run("Why?", auto_budget=True)
    assert measured == ["arena-device"]


def test_a_stopped_run_is_not_judged(told):
    mine, other = parting()
    page = told(dart=mine, eagle3=other)
    page.engine.verdict = RuntimeError("nobody may ask")
    settings = page.arena._generation(page.settings)
    order = Order([1], settings, ["dart", "eagle3"], at_once=True, max_seconds=9)
    stop = threading.Event()
    events = []
    for event in page.arena.run(order, stop):
        events.append(event)
        if len(events) == 12:
            stop.set()
    assert not [event for event in events if isinstance(event, Judged)]


def test_a_run_stopped_after_its_texts_parted_says_that_nobody_was_asked(told):
    mine, other = parting()
    page = told(dart=mine, eagle3=other)
    visit = page.run("Why?")
    events = [event for event in visit.view.events if isinstance(event, Moved)]
    recording = page.arena.recording(visit.view.run)
    recording.events = events  # its ends were not recorded
    again = page.arena.begin_replay("visitor", recording, math.inf)
    for _ in again.paced(0.0):
        pass
    note = again.view.panel("dart")["note"]
    assert "the run ended before the target was asked why." in note


def test_a_sampled_run_draws_a_seed_and_tells_it(told):
    page = told(dart=script(), eagle3=script())
    visit = page.run("Why?", temperature=0.8)
    seed = visit.header["settings"]["seed"]
    assert isinstance(seed, int)
    assert f"seed {seed}" in visit.view.sentence()
    assert ("sampling", f"temperature 0.8, top-p 1.0, top-k 0, seed {seed}") in facts_of(
        visit.header
    )
    assert page.run("Why?").header["settings"]["seed"] is None


def test_a_run_tells_what_ran_and_how(told):
    page = told(dart=script(), eagle3=script())
    facts = dict(page.run("Why?", tree_budget=16, auto_budget=False).view.totals()["facts"])
    assert facts["target"] == "scripted"
    assert facts["dtype"] == "float32"
    assert facts["DART"] == "tree budget 16, beam 20, no n-gram"
    assert facts["EAGLE3"] == "tree budget 16, depth 7, top-k 10"
    assert facts["sampling"] == "greedy"


def test_an_answer_of_one_token_is_told_as_one(told):
    page = told(dart=script(TEXT[:1]), eagle3=script(TEXT[:1]))
    view = page.run("Why?").view
    assert view.sentence() == "Done: DART 1 token, EAGLE3 1 token."
    assert view.panel("dart")["details"].startswith("1 token · 0 steps · ")


def test_totals_are_the_metrics_of_the_steps(told):
    page = told(
        dart=script(seconds=0.5), eagle3=script(sizes=[1], seconds=0.25), ar=script(sizes=[1])
    )
    totals = page.run("Why?", third="ar").view.totals()
    assert [column["engine"] for column in totals["columns"]] == ["dart", "eagle3", "ar"]
    rows = {row["label"]: row for row in totals["rows"]}
    assert rows["verify steps"]["cells"][0] == str(len(script()) - 1)
    assert rows["τ, tokens / step"]["cells"][2] == "1.00"
    assert rows["× plain decoding"]["cells"][1:] == ["0.04×", "–"]
    assert rows["× plain decoding"]["worse"] == [True, True, False]
    assert rows["drafted"]["cells"][2] == "–"
    assert all(row["definition"].endswith(".") for row in totals["rows"])


def test_a_replay_shows_the_run_again_without_an_engine(told, tmp_path):
    mine, other = parting()
    page = told(dart=mine, eagle3=other)
    page.engine.verdict = Verdict("tie", 9, 1, 2, gap=0.001, difference=0.004, bound=0.1)
    live = page.run("Why?", (("a", "b"),))
    page.arena.recording(live.view.run).save(tmp_path / "run.json")
    arena = Arena()
    assert arena.engines == arena.ngrams == ()
    visit = arena.begin_replay("visitor", Recording.load(tmp_path / "run.json"), math.inf)
    for _ in visit.paced(0.0):
        pass
    for engine in ("dart", "eagle3"):
        assert visit.view.panel(engine) == {**live.view.panel(engine), "run": visit.view.run}
        for index in range(len(mine)):
            assert visit.view.tree(engine, index) == live.view.tree(engine, index)
    assert visit.view.charts()["lanes"] == live.view.charts()["lanes"]
    assert visit.view.totals()["rows"] == live.view.totals()["rows"]
    assert "recorded" in dict(visit.view.totals()["facts"])
    assert visit.view.sentence().startswith("Replayed")
    again = arena.recording(visit.view.run)  # a replay can be downloaded as well
    assert again.header == live.header
    assert len(again.events) == len(live.view.events)
    arena.close()


def test_stop_ends_a_replay_at_once(told):
    page = told(dart=script(seconds=1000.0), eagle3=script(seconds=1000.0))
    recording = page.arena.recording(page.run("Why?").view.run)
    visit = page.arena.begin_replay("visitor", recording, 1.0)
    visit.stop()
    visit.settle()
    assert visit.done
    assert {lane.state for lane in visit.view.lanes.values()} == {"stopped"}


def test_moves_carry_the_clock_of_their_engine(told):
    page = told(dart=script(seconds=0.5), eagle3=script(seconds=0.25))
    events = page.run("Why?").view.events
    for engine in ("dart", "eagle3"):
        clocks = [e.clock for e in events if isinstance(e, Moved) and e.engine == engine]
        assert clocks == sorted(clocks) and clocks[0] > 0


def test_a_recording_names_no_folder_of_the_server(told, tmp_path):
    page = told(dart=script(), eagle3=script())
    head = tmp_path / "secret" / "heads" / "dart"
    notes = {"dart_notes": [f"DART head {str(head)!r} is odd"], "notices": [f"see {head}"]}
    page.engine.facts |= {"dart": str(head), "target": "Qwen/Qwen3-4B", **notes}
    visit = page.run("Why?")
    recording = page.arena.recording(visit.view.run)
    path = tmp_path / "run.json"
    recording.save(path)
    assert "secret" not in path.read_text()
    assert recording.header["facts"]["dart"] == "heads/dart"
    assert recording.header["facts"]["target"] == "Qwen/Qwen3-4B"
    assert len(Recording.load(path).events) == len(visit.view.events)
    assert page.arena.recording("another") is None


# What the page keeps of a visitor -----------------------------------------------------------------


ALICE = SimpleNamespace(session_hash="alice")


def pressed(site, page, button: str, turns: tuple, run: str) -> list:
    """What the page last shows after a button was pressed with these hidden values."""
    return list(values(site, page, button, turns, run))[-1]


def function(page, name: str):
    return next(fn.fn for fn in page.fns.values() if fn.name == name)


def values(site, page, button: str, turns, run):
    """What a press shows, one after the other."""
    event = SimpleNamespace(target=SimpleNamespace(elem_id=button))
    compare = function(page, "compare")
    return compare(event, ALICE, "And?", turns, run, *site.settings.values())


@pytest.mark.parametrize("button", ["follow", "regenerate"])
def test_a_conversation_that_gradio_dropped_is_found_again_or_said_to_be_lost(told, button):
    site = told(dart=script(), eagle3=script())
    page = build_page(site.arena)
    status, panel, *_, turns, run = pressed(site, page, "run", (), "")
    assert turns == (("And?", TEXT),)
    assert run == status["run"] == panel["run"] != ""

    _, panel, *_, again, _ = pressed(site, page, button, (), run)
    assert again == (turns * 2 if button == "follow" else turns)
    assert len(panel["turns"]) == len(again) - 1

    asked = len(site.engine.asked)
    status, *rest = pressed(site, page, button, (), "forgotten")
    assert status["text"] == "This conversation is no longer kept: press Run to begin another."
    assert all(value == gr.skip() for value in rest)
    assert len(site.engine.asked) == asked
    _, panel, *_ = pressed(site, page, "run", (), "forgotten")
    assert panel["turns"] == []


def test_a_replays_last_values_come_before_the_first_of_the_run_that_takes_its_place(
    told, tmp_path
):
    site = told(dart=script(TEXT * 40), eagle3=script())
    page = build_page(site.arena)
    site.arena.recording(site.run("Why?").view.run).save(tmp_path / "run.json")
    replay = function(page, "play")(tmp_path / "run.json", "¼ ×", ALICE)
    next(replay)  # its beginning
    next(replay)  # under way to the browser: Gradio asks for the next one then
    began, before = threading.Event(), site.arena.latest("alice")

    def press() -> None:
        next(values(site, page, "run", (), ""))
        began.set()

    pressing = threading.Thread(target=press)
    pressing.start()
    deadline = time.monotonic() + 120
    while not before.left:  # by then the run is there, and waits
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert not began.wait(0.5)
    assert list(replay) == []
    assert began.wait(120)
    pressing.join()


# What browsers ask the server for -----------------------------------------------------------------


def answers(page, elem_id: str, function: str, *asked: list) -> list[str]:
    """What the page answers to browsers that ask all at once."""
    (panel,) = [block for block in page.blocks.values() if block.elem_id == elem_id]
    ask = getattr(panel, function)

    async def all_at_once():
        return await asyncio.gather(*map(ask, asked))

    return asyncio.run(all_at_once())


def test_a_finished_runs_texts_are_made_once_and_one_after_the_other(told, monkeypatch):
    site = told(dart=script(), eagle3=script())
    page = build_page(site.arena)
    run = site.run("Why?").view.run
    threads, under_way = [], []

    def counted(make):
        def made(*given):
            threads.append(threading.current_thread())
            under_way.append(1)
            time.sleep(0.01)
            assert under_way == [1]
            under_way.pop()
            return make(*given)

        return made

    monkeypatch.setattr(Recording, "to_text", counted(Recording.to_text))
    monkeypatch.setattr("app.page.steps_csv", counted(steps_csv))
    monkeypatch.setattr("app.page.render", counted(render))
    files = answers(page, "status", "record", *[[run, "json"]] * 3, [run, "csv"])
    assert files[0] == files[1] == files[2] == site.arena.recording(run).to_text()
    assert files[3].startswith("engine,")
    assert answers(page, "panel-1", "rendered", *[[run, "dart"]] * 3) == [render(TEXT)] * 3
    threads = threads[:2] + threads[3:]  # without this test's own
    assert len(threads) == 3
    assert threads[0] is threads[1] is not threading.main_thread()


def test_a_run_under_way_is_no_file_yet(told):
    site = told(dart=script(), eagle3=script())
    page = build_page(site.arena)
    recording = site.arena.recording(site.run("Why?").view.run)
    visit = site.arena.begin_replay("visitor", recording, speed=1e-3)
    watching = visit.paced(0.0)
    next(watching)
    run = visit.view.run
    assert answers(page, "status", "record", [run, "json"]) == [""]
    assert answers(page, "panel-1", "rendered", [run, "dart"]) == [""]
    visit.stop()
    for _ in watching:
        pass
    assert answers(page, "status", "record", [run, "json"]) != [""]


def test_no_file_is_made_while_the_last_events_are_taken_in(told, monkeypatch):
    """They have left the queue by then, and the file would be kept without them."""
    site = told(dart=script(), eagle3=script())
    recording = site.arena.recording(site.run("Why?").view.run)
    visit = site.arena.begin_replay("visitor", recording, math.inf)
    take, finished = visit.view.take, []

    def slow_take(event):
        finished.append(site.arena.finished(visit.view.run))
        take(event)

    monkeypatch.setattr(visit.view, "take", slow_take)
    visit.stop()  # nobody watches: it runs here
    visit.settle()
    assert finished and not any(finished)
    assert site.arena.finished(visit.view.run)


def test_kept_texts_are_bounded():
    kept, made = KeptTexts(2 * getsizeof("aaaa")), []

    def text(key: str) -> str:
        return kept.text(key, lambda: made.append(key) or 4 * key)

    for key in "abacab":
        assert text(key) == 4 * key
    assert "".join(made) == "abcb"  # a was asked for again before c came
    large = 1000 * "d"
    for _ in range(2):  # larger than all may be: kept alone, until the next
        assert kept.text("d", lambda: made.append("d") or large) == large
    text("a")
    assert kept.text("d", lambda: made.append("d") or large) == large
    assert "".join(made) == "abcbdad"
    for _ in range(2):  # nothing is not kept: anything can be asked for that is not there
        assert kept.text("nothing", lambda: made.append("n") or "") == ""
    assert "".join(made) == "abcbdadnn"
