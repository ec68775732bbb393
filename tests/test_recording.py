"""Runs on disk: they come back as they were, and what is damaged or hostile is refused in words."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import os
import random
import re
import tracemalloc
from copy import deepcopy
from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from recorded import TEXT, moves, recording

from app import recording as module
from app.controls import MAX_ANSWER, SLOTS
from app.events import MAX_TEXT, MAX_TOKENS
from app.facts import facts_of
from app.recording import LEFT_OUT, SCHEMA, TREES_CUT, Recording, read_header, replay
from app.steps_csv import COLUMNS, steps_csv, text_cell
from app.view import Baseline, RunView
from dart_core.errors import ArenaError

GOOD = recording()
KEPT = Path(__file__).parents[1] / "assets/recordings/5-merge-lists-pruned-kept.json.gz"


def data_of(run: Recording) -> dict:
    return json.loads(run.to_text())


def write(path: Path, data) -> Path:
    path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
    return path


def same(one, other) -> bool:
    """Equal through and through: types, array dtypes and every bit of them, NaN being NaN."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(
            one, other, equal_nan=one.dtype.kind == "f"
        )
    if is_dataclass(one):
        return all(same(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other or (one != one and other != other)


def shown(run: Recording) -> list:
    """All that the page is told of a run."""
    baseline = run.header["baseline"]
    view = RunView(
        "run",
        run.header["engines"],
        run.token_text,
        baseline=Baseline(**baseline) if baseline else None,
        prompt=run.header["prompt"],
        turns=run.header.get("turns", ()),
        facts=facts_of(run.header, replayed=True),
    )
    for event in run.events:
        view.take(event)
    return [
        view.status(),
        view.charts(),
        view.totals(),
        view.trees(),
        *(view.panel(engine) for engine in view.lanes),
        *(view.tree(move.engine, move.step.index) for move in moves(run.events)),
    ]


# There and back -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["run.json", "run.json.gz"])
def test_a_recording_comes_back_as_it_was(tmp_path, name):
    GOOD.save(tmp_path / name)
    loaded = Recording.load(tmp_path / name)
    assert loaded.header == GOOD.header
    assert loaded.vocabulary == GOOD.vocabulary
    assert same(loaded.events, GOOD.events)
    assert shown(loaded) == shown(GOOD)
    assert any(move.step.candidates for move in moves(loaded.events))
    assert (tmp_path / name).read_bytes().startswith(b"\x1f\x8b") == name.endswith(".gz")


def test_chosen_sizes_come_back_with_their_reasons_and_may_be_missing(tmp_path):
    GOOD.save(tmp_path / "run.json")
    loaded = Recording.load(tmp_path / "run.json")
    reasons = [move.step.choice for move in moves(loaded.events, "dart")]
    assert reasons == [move.step.choice for move in moves(GOOD.events, "dart")]
    assert any(reasons)
    facts = dict(shown(loaded)[2]["facts"])
    assert re.match(r"auto: [\d.]+ drafts a step \(", facts["DART tree budget"])
    assert "drafting rested in" in facts["DART tree budget"]
    data = data_of(GOOD)
    for event in data["events"]:
        event.get("step", {}).pop("choice", None)
    older = Recording.load(write(tmp_path / "older.json", data))
    assert not any(move.step.choice for move in moves(older.events))
    assert not any(name.endswith("tree budget") for name, _ in shown(older)[2]["facts"])


def test_a_packed_file_is_known_by_its_first_bytes(tmp_path):
    GOOD.save(tmp_path / "run.json.gz")
    renamed = (tmp_path / "run.json.gz").rename(tmp_path / "upload")
    assert same(Recording.load(renamed).events, GOOD.events)


def test_the_same_run_is_always_the_same_file(tmp_path):
    GOOD.save(tmp_path / "a.json.gz")
    recording().save(tmp_path / "b.json.gz")
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()


def test_candidates_are_written_only_where_there_are_some():
    steps = [event["step"] for event in data_of(GOOD)["events"] if event["type"] == "moved"]
    assert [("candidates" in step) for step in steps].count(True) == 1


def with_candidates(run: Recording) -> list[int]:
    return [n for n, move in enumerate(moves(run.events)) if move.step.candidates is not None]


def test_a_run_too_large_to_load_again_is_written_without_its_last_candidates(
    tmp_path, monkeypatch
):
    whole = Recording.load(KEPT)
    size, steps = len(whole.to_text().encode()), with_candidates(whole)
    monkeypatch.setattr(module, "MAX_BYTES", size * 2 // 3)
    whole.save(tmp_path / "run.json")
    assert size / 2 < (tmp_path / "run.json").stat().st_size <= module.MAX_BYTES
    again = Recording.load(tmp_path / "run.json")
    kept = with_candidates(again)
    assert 0 < len(kept) < len(steps) and kept == steps[: len(kept)]
    assert again.header == {**whole.header, LEFT_OUT: len(steps) - len(kept)}
    for one, other in zip(moves(whole.events), moves(again.events), strict=True):
        assert same(replace(one.step, candidates=None), replace(other.step, candidates=None))
    monkeypatch.setattr(module, "MAX_BYTES", size // 3)  # what was left out before counts too
    once_more = Recording.from_json(json.loads(again.to_text()))
    assert once_more.header[LEFT_OUT] == len(steps) - len(with_candidates(once_more))


def test_where_that_is_not_enough_trees_are_cut_to_what_was_accepted(tmp_path, monkeypatch):
    bare = [
        replace(m, step=replace(m.step, candidates=None)) if hasattr(m, "step") else m
        for m in GOOD.events
    ]
    size = len(Recording(GOOD.header, GOOD.vocabulary, bare).to_text().encode())
    monkeypatch.setattr(module, "MAX_BYTES", size - 500)
    GOOD.save(tmp_path / "run.json")
    assert (tmp_path / "run.json").stat().st_size <= module.MAX_BYTES
    again = Recording.load(tmp_path / "run.json")
    pairs = list(zip(moves(GOOD.events), moves(again.events), strict=True))
    wide = [pair for pair in pairs if len(pair[0].step.tree or ()) > len(pair[0].step.path)]
    cut = [len(one.step.tree) > len(other.step.tree) for one, other in wide]
    assert 0 < sum(cut) == again.header[TREES_CUT] < len(cut) and cut == sorted(cut)
    assert again.header[LEFT_OUT] == len(with_candidates(GOOD)) and not with_candidates(again)
    for one, other in pairs:
        assert (one.step.tokens, one.step.drafted, one.step.accepted, one.pieces) == (
            other.step.tokens, other.step.drafted, other.step.accepted, other.pieces
        )  # fmt: skip
    told, live = (RunView("r", run.header["engines"], run.token_text) for run in (again, GOOD))
    for view, run in ((told, again), (live, GOOD)):
        for event in run.events:
            view.take(event)
    assert told.totals() == live.totals() and told.charts() == live.charts()


def test_the_vocabulary_holds_every_token_a_tree_can_show():
    for move in moves(GOOD.events):
        for nodes in filter(None, (move.step.tree, move.step.candidates)):
            assert all(GOOD.token_text(token) != "\ufffd" for token in nodes.tokens.tolist()
                       if token < 128)  # fmt: skip
            assert set(nodes.tokens.tolist()) <= set(GOOD.vocabulary)


@pytest.mark.parametrize("name", ["run.json", "run.json.gz"])
def test_a_header_is_read_without_the_run(tmp_path, name):
    text = GOOD.to_text()
    cut = text[: text.index("\n") + 40].encode()  # what follows the header is no JSON
    path = tmp_path / name
    path.write_bytes(gzip.compress(cut) if name.endswith(".gz") else cut)
    assert read_header(path) == GOOD.header
    with pytest.raises(ArenaError, match="not JSON"):
        Recording.load(path)


def test_a_header_is_found_however_the_json_is_spelled(tmp_path):
    data = data_of(GOOD)
    spelled = json.dumps(dict(reversed(data.items())), indent=2)
    assert read_header(write(tmp_path / "run.json", spelled)) == GOOD.header
    assert same(Recording.load(tmp_path / "run.json").events, GOOD.events)


# What is refused ----------------------------------------------------------------------------------


def refusal(path: Path) -> str:
    """The one sentence with which a file is refused."""
    with pytest.raises(ArenaError) as refused:
        Recording.load(path)
    return sentence(refused.value, path)


def sentence(error: ArenaError, path: Path) -> str:
    told = str(error)
    assert "\n" not in told
    assert len(told) < 300
    assert str(path.parent) not in told
    return told


@pytest.mark.parametrize(
    "content",
    ["{", "[]", "null", '"run"', '{"schema": "other/1"}', '{"schema": {"a": 1}}', "[" * 100_000,
     "1" * 5000, "\ufeff{}"],
)  # fmt: skip
def test_what_is_no_recording_is_refused(tmp_path, content):
    told = refusal(write(tmp_path / "run.json", content))
    assert "run.json is not a recorded run" in told


def test_what_cannot_be_read_is_refused(tmp_path):
    assert "No such file" in refusal(tmp_path / "run.json")
    (tmp_path / "folder.json").mkdir()
    assert "cannot read folder.json" in refusal(tmp_path / "folder.json")
    os.mkfifo(tmp_path / "pipe.json")
    assert "cannot read pipe.json: it is a pipe" in refusal(tmp_path / "pipe.json")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    assert "no text" in refusal(tmp_path / "bytes")
    GOOD.save(tmp_path / "run.json.gz")
    packed = (tmp_path / "run.json.gz").read_bytes()
    for wrong in (packed[:-20], packed[:300] + b"xxxx" + packed[304:], packed[:2]):
        (tmp_path / "cut.json.gz").write_bytes(wrong)
        assert "cannot be unpacked" in refusal(tmp_path / "cut.json.gz")


def test_a_small_file_may_not_unpack_to_a_huge_one(tmp_path, monkeypatch):
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b" " * 400_000))
    assert "not JSON" in refusal(path)
    monkeypatch.setattr(module, "MAX_BYTES", 2**18)
    assert "too large" in refusal(path)
    (tmp_path / "big.json").write_bytes(b" " * 400_000)
    assert "too large" in refusal(tmp_path / "big.json")


def first(data: dict, kind: str, engine: str = "dart", index: int = 0) -> dict:
    return [e for e in data["events"] if e["type"] == kind and e["engine"] == engine][index]


def tree(data: dict) -> dict:
    return first(data, "moved", index=1)["step"]["tree"]


def pool(data: dict) -> dict:
    return first(data, "moved", index=1)["step"]["candidates"]


def set_step(name: str, value):
    return lambda data: first(data, "moved", index=1)["step"].update({name: value})


DAMAGES = [
    (lambda d: d.pop("events"), "the run has no 'events'"),
    (lambda d: d.update(events={}), "'events' of the run is an object of 0 entries, not a list"),
    (lambda d: d["events"].__setitem__(2, 5), "event 3: the event is 5, not an object"),
    (lambda d: d["events"][0].update(type="moo"), "event 1: 'type' of the event is 'moo'"),
    (lambda d: d["events"][0].update(engine="medusa"), "'medusa', not one of dart, eagle3, ar"),
    (lambda d: d.update(engines=["dart", "dart"]), "different ones of ar, dart, eagle3"),
    (lambda d: d.update(engines=["dart", "medusa"]), "different ones of ar, dart, eagle3"),
    (lambda d: d.update(engines=[]), "'engines' of the header is a list of 0 entries"),
    (lambda d: d.update(engines=["ar"]), "'dart', not one of ar"),
    (lambda d: d.pop("prompt"), "the header has no 'prompt'"),
    (lambda d: d.update(prompt="\ud83c"), "'prompt' of the header is '\\ud83c', not a text"),
    (lambda d: d.update(more="\ud83c"), "holds '\\ud83c', which is no plain text"),
    (lambda d: d.update(turns=[["a"]]), "a list of pairs of texts"),
    (lambda d: d.update(baseline={"tokens_per_second": 0, "source": ""}), "'tokens_per_second'"),
    (lambda d: d["facts"].update(versions=3), "'versions' of 'facts' of the header is 3"),
    (lambda d: d["facts"].update(not_applied=[1]), "'not_applied' of 'facts' of the header"),
    (lambda d: d["facts"].update(more=[[[[[[[[[[1]]]]]]]]]]), "nested"),
    (lambda d: d["facts"].update(more=math.inf), "no plain text or number"),
    (lambda d: d["facts"].update(more=10**400), "holds a huge number"),
    (lambda d: d["settings"].update(temperature=math.nan), "'temperature'"),
    (lambda d: d["settings"].update(seed=None), "'seed'"),
    (lambda d: d["settings"].update(ngram_weight=None), "'ngram_weight'"),
    (lambda d: d["vocabulary"].update({"x": "y"}), "'x' in the vocabulary is no token id"),
    (lambda d: d["vocabulary"].update({"5": 5}), "'5' of 'vocabulary' of the run is 5"),
    (lambda d: first(d, "moved").update(clock=-1), "'clock' of the event is -1"),
    (lambda d: first(d, "moved").update(clock=1e300), "a number from 0 to 1e+06"),
    (lambda d: first(d, "moved").update(clock=True), "'clock' of the event is True"),
    (lambda d: first(d, "moved", index=2).update(clock=0.01), "'clock' of the event is 0.01"),
    (lambda d: first(d, "moved").update(tau=math.nan), "'tau' of the event is nan"),
    (lambda d: first(d, "moved").update(pieces=[]), "1 tokens, but 0 pieces of text"),
    (lambda d: first(d, "moved").update(pieces=["a", "b"]), "2 entries, more than 1"),
    (lambda d: first(d, "moved").update(pieces=[None]), "a list of texts"),
    (set_step("index", 7), "'index' of 'step' of the event is 7, not 1"),
    (set_step("kind", "prefill"), "not one of verify"),
    (set_step("tokens", []), "0 tokens emitted, 2 of them accepted"),
    (set_step("tokens", [1.5]), "a list of whole numbers"),
    (set_step("tokens", [True]), "a list of whole numbers"),
    (set_step("tokens", [2**40]), "a list of whole numbers from 0 to 2147483647"),
    (
        lambda d: first(d, "moved", "ar", 1)["step"].update(tree=None),
        "a verify step without a tree",
    ),
    (set_step("path", [0, 99]), "from node 0 to 99, not its child"),
    (set_step("path", [0, 3, 2]), "from node 3 to 2, not its child"),
    (set_step("path", [1]), "does not begin at the tree's root"),
    (set_step("accepted", 5), "5 accepted, more than the path has"),
    (set_step("accepted", 0), "tokens emitted, 0 of them accepted"),
    (set_step("drafted", 900), "900 drafted"),
    (set_step("backend", "cuda<"), "'cuda<', not one of native"),
    (set_step("finish_reason", "boredom"), "'boredom', not one of stop, length"),
    (set_step("seed", -1), "'seed'"),
    (set_step("choice", {"asked": 3, "expected": 1.5}), "'choice' of 'step' of the event has no"),
    (set_step("choice", {"asked": -3, "expected": 1.5, "cost": 1}), "'asked' of 'choice'"),
    (lambda d: d["settings"].update(auto_budget="yes"), "'auto_budget'"),
    (set_step("seconds", {"draft": 1}), "'seconds' of 'step' of the event has no 'search'"),
    (lambda d: tree(d).update(parents=[-1, 0, 5, 1, 0, 0]), "parents before children"),
    (lambda d: tree(d)["parents"].pop(), "one parent per token"),
    (lambda d: tree(d)["scores"].pop(), "'scores' of 'tree' of 'step' of the event has"),
    (lambda d: tree(d)["scores"].__setitem__(1, "0"), "a list of numbers"),
    (lambda d: tree(d)["scores"].__setitem__(1, 1e39), "a list of numbers from -1e+30"),
    (lambda d: tree(d)["probabilities"].__setitem__(1, 2), "a list of numbers from 0 to 1.001"),
    (lambda d: tree(d)["tokens"].__setitem__(1, 1), "not those of the path"),
    (lambda d: pool(d)["parents"].__setitem__(0, 1), "parent comes after it"),
    (lambda d: pool(d)["node"].__setitem__(0, 99), "'node' of 'candidates'"),
    (lambda d: pool(d)["node"].pop(), "candidates with"),
    (lambda d: first(d, "ended").update(reason="bored"), "'bored', not one of stop, length"),
    (lambda d: first(d, "ended").update(tail=None), "'tail' of the event is None, not a text"),
    (lambda d: d["events"].append(first(d, "ended")), "dart had ended before"),
    (lambda d: d["events"].append(first(d, "moved")), "dart had ended before"),
    (lambda d: d["events"][-1].update(other="eagle3"), "eagle3 is judged against itself"),
    (lambda d: d["events"][-1].update(place=10_000), "did not both emit"),
    (lambda d: d["events"][-1].update(status="fine"), "'fine', not one of tie, DIFFERENT"),
    (lambda d: d["events"].insert(0, d["events"].pop()), "event 1: token 9 is judged"),
]


@pytest.mark.parametrize(("damage", "told"), DAMAGES, ids=[told for _, told in DAMAGES])
def test_damage_is_named(tmp_path, damage, told):
    data = deepcopy(data_of(GOOD))
    damage(data)
    path = write(tmp_path / "run.json", data)
    message = refusal(path)
    assert message.startswith("run.json is a damaged recording: ")
    assert told in message


def test_a_file_may_not_fill_the_memory_with_empty_lists(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_PARTS", 1000)
    text = GOOD.to_text().replace('"events":[', '"events":[' + "[]," * 1000)
    assert "more parts" in refusal(write(tmp_path / "run.json", text))


def test_a_header_may_not_be_the_whole_file(tmp_path, monkeypatch):
    GOOD.save(tmp_path / "run.json")
    monkeypatch.setattr(module, "MAX_HEADER", 500)
    assert "its header is larger" in refusal(tmp_path / "run.json")


def test_too_many_events_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_EVENTS", 10)
    GOOD.save(tmp_path / "run.json")
    assert "more than 10" in refusal(tmp_path / "run.json")


def test_a_vocabulary_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_VOCABULARY", 3)
    GOOD.save(tmp_path / "run.json")
    assert "a vocabulary of more than 3 tokens" in refusal(tmp_path / "run.json")


def test_a_weight_is_about_what_a_run_takes(tmp_path):
    GOOD.save(tmp_path / "run.json")
    Recording.load(tmp_path / "run.json")
    tracemalloc.start()
    try:
        run = Recording.load(tmp_path / "run.json")
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken / 3 < run.weight() < 3 * taken


@pytest.mark.parametrize(
    ("limit", "most", "told"),
    [("MAX_TEXT", 40, "more than 40 characters of text"), ("MAX_TOKENS", 8, "more than 8 tokens")],
)
def test_an_engines_text_and_tokens_are_bounded(tmp_path, monkeypatch, limit, most, told):
    monkeypatch.setattr(f"app.events.{limit}", most)
    GOOD.save(tmp_path / "run.json")
    assert f"dart has {told}" in refusal(tmp_path / "run.json")


@pytest.mark.parametrize(
    ("kind", "field"), [("ended", "message"), ("ended", "tail"), ("judged", "message")]
)
def test_no_message_is_longer_than_a_text(tmp_path, kind, field):
    data = deepcopy(data_of(GOOD))
    first(data, kind, "eagle3")[field] = "x" * (MAX_TEXT + 1)
    path = write(tmp_path / "run.json", data)
    assert f"more than {MAX_TEXT} characters" in refusal(path)


def test_the_longest_answers_of_the_page_can_be_loaded_again():
    assert len(SLOTS) * MAX_ANSWER + 2 * len(SLOTS) <= module.MAX_EVENTS  # ends and verdicts too
    assert MAX_ANSWER <= MAX_TOKENS
    assert 128 * MAX_ANSWER <= MAX_TEXT


HOSTILE = [
    None, True, 0, -1, 3, 2**31, 2**63, -(2**70), 10**400, 0.5, -0.5, 1e308, -1e308, math.inf,
    -math.inf, math.nan, "", "dart", "ar", "verify", "\ud83c", "\x00", "=1", [], {}, [None], [[]],
    {"a": 1}, [0] * 50, list(range(20)), ["x"] * 3,
]  # fmt: skip


def places(data, path=()):
    """Every (container, key) in a piece of JSON."""
    entries = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in entries:
        yield data, key
        if isinstance(value, dict | list):
            yield from places(value)


def mutate(data: dict, rng: random.Random) -> None:
    """One or two random changes anywhere in the data; deep places are no likelier than others."""
    for _ in range(rng.randint(1, 2)):
        where, depth = data, rng.randint(0, 6)
        while depth and (inner := [v for v in _values(where) if isinstance(v, dict | list) and v]):
            where, depth = rng.choice(inner), depth - 1
        key = rng.choice(list(where)) if isinstance(where, dict) else rng.randrange(len(where))
        other = rng.choice(list(places(data)))
        match rng.randrange(5):
            case 0:
                del where[key]
            case 1:
                where[key] = deepcopy(other[0][other[1]])
            case 2 if isinstance(where, list):
                where.insert(key, deepcopy(where[key]))
            case 3 if isinstance(where, list):
                rng.shuffle(where)
            case _:
                where[key] = deepcopy(rng.choice(HOSTILE))


def _values(data):
    return data.values() if isinstance(data, dict) else data


def take_in(path: Path) -> Recording | None:
    """Load and use a file in every way the page does; None if it is refused as it should be."""
    try:
        run = Recording.load(path)
    except ArenaError as error:
        sentence(error, path)
        return None
    values = shown(run)
    json.dumps(values, ensure_ascii=False, allow_nan=False).encode()  # it can be sent
    again = Recording.from_json(json.loads(run.to_text()))
    assert same(again.events, run.events)
    assert shown(again) == values
    assert len(list(csv.reader(io.StringIO(steps_csv(run))))) == 1 + len(moves(run.events))
    list(replay(run, speed=math.inf))
    return run


def test_of_keys_that_are_there_twice_the_last_one_counts_and_is_checked(tmp_path):
    text = GOOD.to_text()
    twice = text[: text.rindex("}")] + ', "prompt": "The last."}'
    assert Recording.load(write(tmp_path / "run.json", twice)).header["prompt"] == "The last."
    twice = text[: text.rindex("}")] + ', "prompt": 5}'
    assert "'prompt' of the header is 5" in refusal(write(tmp_path / "run.json", twice))


@pytest.mark.parametrize("seed", range(8))
def test_no_mutant_of_a_recording_is_worse_than_refused(tmp_path, seed):
    rng = random.Random(seed)
    good = data_of(recording(TEXT[:24]))
    loaded = 0
    for _ in range(400):
        data = deepcopy(good)
        mutate(data, rng)
        try:
            text = json.dumps(data)
        except ValueError:  # more digits than Python prints
            continue
        loaded += take_in(write(tmp_path / "run.json", text)) is not None
    assert loaded  # not everything is refused: a text may be any text


@pytest.mark.parametrize("name", ["run.json", "run.json.gz"])
def test_no_damaged_byte_is_worse_than_refused(tmp_path, name):
    rng = random.Random(1)
    path = tmp_path / name
    recording(TEXT[:24]).save(path)
    good = path.read_bytes()
    for _ in range(600):
        data = bytearray(good)
        for _ in range(rng.randint(1, 3)):
            place = rng.randrange(len(data))
            match rng.randrange(3):
                case 0:
                    data[place] = rng.randrange(256)
                case 1:
                    del data[place : place + rng.randint(1, 50)]
                case 2:
                    data[place:place] = rng.choice([b"9", b'"', b"[", b"null,", b"\xff", b"\\u"])
        path.write_bytes(data)
        take_in(path)


# The table of steps -------------------------------------------------------------------------------


def test_the_table_has_a_row_per_step_with_its_figures():
    header, *rows = csv.reader(io.StringIO(steps_csv(GOOD)))
    assert tuple(header) == COLUMNS
    assert header[:5] == ["engine", "step", "kind", "clock_s", "draft_ms"]
    order = [move for engine in GOOD.header["engines"] for move in moves(GOOD.events, engine)]
    assert len(rows) == len(order)
    for row, move in zip(rows, order, strict=True):
        cell = dict(zip(header, row, strict=True))
        assert (cell["engine"], int(cell["step"])) == (move.engine, move.step.index)
        assert cell["kind"] == move.step.kind
        assert float(cell["clock_s"]) == pytest.approx(move.clock, abs=1e-6)
        for stage in ("draft", "search", "verify", "rest"):
            seconds = getattr(move.step.seconds, stage)
            assert float(cell[f"{stage}_ms"]) == pytest.approx(1000 * seconds, abs=1e-3)
        assert int(cell["drafted"]) == move.step.drafted
        assert int(cell["accepted"]) == move.step.accepted
        assert int(cell["emitted"]) == len(move.step.tokens)
        assert [int(token) for token in cell["token_ids"].split()] == list(move.step.tokens)
        if move.step.kind == "prefill":
            assert cell["tau_so_far"] == cell["tokens_per_second_so_far"] == ""
        else:
            assert float(cell["tau_so_far"]) == pytest.approx(move.tau, abs=1e-4)
    ar = "".join(row[-1].lstrip("'") for row in rows if row[0] == "ar")
    assert "is blue<b> because" in ar
    assert SCHEMA not in steps_csv(GOOD)


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("=1+1", "'=1+1"),
        ("+1", "'+1"),
        ("-1", "'-1"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", "'\t'=1"),
        ("\rx", "'\rx"),
        ('"=1', "'\"'=1"),
        ("\n=1", "'\n'=1"),
        (" =1", "' =1"),
        ("＝1", "'＝1"),
        ("a;=1", "a;'=1"),
        ("a\n=1", "a\n'=1"),
        ('a;"=1', "a;\"'=1"),
        ("a\n- b", "a\n'- b"),
        ("f(a, -1)", "f(a, -1)"),
        ("a = b - c", "a = b - c"),
        (" the sky", " the sky"),
        ("\n", "\n"),
        ("", ""),
    ],
)
def test_no_text_becomes_a_formula(text, cell):
    assert text_cell(text) == cell


def test_no_text_becomes_a_formula_however_its_table_is_split():
    rng = random.Random(3)
    alphabet = "=+-@＝\t\r\n\"',; a1|"
    for _ in range(3000):
        text = "".join(rng.choice(alphabet) for _ in range(rng.randint(0, 8)))
        out = io.StringIO()
        csv.writer(out).writerow(["dart", 1, text_cell(text)])
        for delimiter in ",;\t":
            rows = csv.reader(io.StringIO(out.getvalue(), newline=""), delimiter=delimiter)
            for cell in (cell for row in rows for cell in row):
                assert not re.match(r"[\s\"]*[=+\-@＝]", cell), (text, delimiter, cell)
        assert not re.match(r"[\t\r]", text_cell(text))
