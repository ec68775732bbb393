"""The page in a real Chromium: with scripted engines, and once with the demo's models."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import urlopen

import pytest
from browsing import WAIT, Tab, expect, free_port, until
from proxy import behind_prefix
from recorded import TEXT, recording
from scripted import ScriptedEngine, ScriptedTokenizer, steps_of

from app.arena import Arena
from app.page import build_page
from app.race import Moved
from app.recording import Recording
from app.serve import close, launch
from dart_core.check import Verdict
from dart_core.errors import ArenaError
from dart_core.presets import DEMO_ASSETS

pytestmark = pytest.mark.browser

ROOT = Path(__file__).parent.parent
STORY = (
    "The sky looks blue because of how sunlight meets the air.\n\n"
    "    for wave in light:\n        scatter(wave)  # the short ones most\n\nThat is all."
)
MARKUP = (
    "<b>x</b><script>window.pwned = 1</script> a<b && c>d "
    "<img src='https://example.com/x.png' onerror='window.pwned = 2'> ${window.pwned=3} {{value}} `"
)
MARKDOWN = (
    "# Plan\n\n- **one**\n- two\n\n```python\nfor x in y:\n    pass\n```\n\n"
    "![i](https://example.com/i.png) [l](javascript:alert(1)) <img src=x onerror=alert(1)>\n"
)
SPLIT = "ok 🎉é漢 🎉 done"
WORDS = re.findall(r" ?\w+|<[^>]*>|\W", STORY + MARKUP)


class Script:
    """What the scripted engines do, told by the prompt."""

    def __init__(self):
        self.tokenizer = ScriptedTokenizer(WORDS)
        self.bytes = ScriptedTokenizer()  # has the same ids for single bytes

    def steps(self, engine: str, prompt: str):
        backend = {"dart": "native", "eagle3": "torch", "ar": "none"}[engine]
        options = {
            "seconds": {"dart": 0.05, "eagle3": 0.06, "ar": 0.04}[engine],
            "backend": backend,
        }
        sizes = {"dart": [3, 1, 4], "eagle3": [2, 2, 1], "ar": [1]}[engine]
        ids = self.tokenizer.encode(STORY)
        if engine != "ar":
            options["extra"] = [self.tokenizer.encode(" sunlight meets"), ids[:1]]
        if "markup" in prompt:
            ids = self.tokenizer.encode(MARKUP)
            if engine != "ar":
                options["extra"] = [self.tokenizer.encode("<script>")]
                sizes = [12] if engine == "dart" else [1]
        elif "split" in prompt:
            ids = self.bytes.encode(SPLIT)
        elif "long" in prompt:
            ids = self.tokenizer.encode(STORY * (20_000 // len(STORY) + 1))
            options.pop("extra", None)
        elif "endless" in prompt:
            ids = ids * 40
        elif "part" in prompt and engine == "eagle3":
            ids = [*ids[:9], *self.tokenizer.encode(" waves"), *ids[10:]]
        elif "markdown" in prompt:
            ids = self.tokenizer.encode(MARKDOWN)
        steps = steps_of(ids, sizes, **options)
        if found := re.search(r"fail (\d)", prompt):
            if engine == "eagle3":
                steps[int(found[1])] = RuntimeError("cannot read /srv/secret/head.bin")
        elif "refuse" in prompt and engine == "eagle3":
            return [ArenaError(f"the prompt is too long: {MARKUP}")]
        return steps

    @staticmethod
    def pace(prompt: str) -> float:
        if "hesitate" in prompt:
            return 300.0  # nine seconds for the prefill
        return 2.0 if "endless" in prompt else 0.0 if "long" in prompt else 0.05

    def engine(self) -> ScriptedEngine:
        def script(name):
            return lambda prompt: self.steps(name, prompt)

        scripts = {name: script(name) for name in ("ar", "dart", "eagle3")}
        verdict = Verdict("tie", 9, 1, 2, gap=0.001, difference=0.004, bound=0.1)
        return ScriptedEngine(
            scripts,
            self.tokenizer,
            pace=self.pace,
            ngrams=("full", "small"),
            thinks=True,
            verdict=verdict,
        )


@contextmanager
def served(engine, max_new_tokens=512, root_path="", recordings=None, **options):
    """(arena, url) of a page over ``engine``, None for one of recordings alone."""
    arena = Arena(engine, **options)
    if engine:
        arena.warm_up()
    page = build_page(arena, max_new_tokens=max_new_tokens, recordings=recordings)
    port = free_port()
    launch(page, host="127.0.0.1", port=port, root_path=root_path)
    try:
        yield arena, f"http://127.0.0.1:{port}/"
    finally:
        close(page)
        arena.close()


@pytest.fixture(scope="module")
def site():
    with served(Script().engine(), max_new_tokens=20_000, max_length=30_000) as (arena, url):
        yield arena, url


class Visitor(Tab):
    """A tab on the page, and what visitors do there."""

    def __init__(self, browser, url: str, **context):
        super().__init__(browser, url, ready=".lane[data-engine] .lane-title", **context)

    def lane(self, engine: str, inside: str = ""):
        return self.page.locator(f".lane[data-engine={engine}] {inside}".strip())

    def run(self, prompt: str, button: str = "#run") -> None:
        self.settle()
        self.page.locator("#prompt textarea").fill(prompt)
        self.page.locator(button).click()

    def expect_state(self, engine: str, state: str) -> None:
        expect(self.lane(engine)).to_have_attribute("data-state", state)

    def finish(self, prompt: str, *engines: str, button: str = "#run") -> None:
        """Run a prompt and wait for its end."""
        before = self.page.locator(".arena-save").get_attribute("data-run")
        self.run(prompt, button)
        self.page.wait_for_function(
            "before => !['', null, before].includes("
            "document.querySelector('.arena-save').dataset.run)",
            arg=before,
            timeout=WAIT,
        )
        for engine in engines or ("dart", "eagle3"):
            self.expect_state(engine, "done")
        expect(self.page.locator("body")).not_to_have_class(re.compile("arena-running"))

    def running(self, prompt: str, tokens: int = 4) -> None:
        """Start a prompt and wait for its first tokens."""
        self.run(prompt)
        self.wait(f"document.querySelectorAll('.lane[data-engine=dart] .tok').length >= {tokens}")

    def expect_text(self, engine: str, text: str) -> None:
        self.wait(
            "([engine, text]) => document.querySelector("
            "`.lane[data-engine=${engine}] .flow`)?.textContent === text",
            [engine, text],
        )

    def text(self, engine: str) -> str:
        return self.lane(engine, ".flow").evaluate("node => node.textContent")

    def settings(self) -> None:
        self.page.locator("#settings button").first.click()
        expect(self.page.locator("#knob-temperature")).to_be_visible()
        # Gradio sets every field once more just after it shows them, unknown to the page.
        self.page.evaluate(
            "async () => { for (let frame = 0; frame < 20; frame += 1) "
            "await new Promise(requestAnimationFrame); }"
        )

    def load(self, path: Path) -> None:
        """Give the page a recorded run."""
        self.page.locator("#replays input[type=file]").set_input_files(path)

    def choose(self, slot: str, label: str) -> None:
        self.page.locator(f"#knob-{slot} input").click()
        options = self.page.locator(f"#knob-{slot}").get_by_role("option", name=label, exact=True)
        options.click()


@pytest.fixture
def visit(browser, site):
    """Opens tabs; afterwards none may have seen an error or an external request."""
    visitors: list[Visitor] = []

    def opened(url: str = site[1], **context) -> Visitor:
        visitors.append(Visitor(browser, url, **context))
        return visitors[-1]

    yield opened
    troubles = [trouble for visitor in visitors for trouble in visitor.troubles]
    for visitor in visitors:
        visitor.context.close()
    assert not troubles


# The main job -------------------------------------------------------------------------------------


def test_a_race_fills_panels_charts_totals_and_trees(visit, site):
    engine = site[0].engine
    engine.moves.clear()
    tab = visit()
    tab.finish("race")
    for name in ("dart", "eagle3"):
        tab.expect_text(name, STORY)
    order = [name for name, _ in engine.moves]
    assert order != sorted(order)  # the steps of both interleave

    scripts = {name: engine.scripts[name]("race") for name in ("dart", "eagle3")}
    moves = [len(scripts["dart"]), len(scripts["eagle3"])]
    tab.wait(
        "moves => moves.every((n, i) => "
        "document.getElementById('chart-race').data[i + 1].x.length === n)",
        moves,
    )
    tab.wait(
        "accepted => JSON.stringify(document.getElementById('chart-accepted').data[0].y) "
        "=== JSON.stringify(accepted)",
        [step.accepted for step in scripts["dart"][1:]],
    )
    view = tab.page.locator(".tree-view[data-engine=dart]")
    last = scripts["dart"][-1]
    expect(view.locator("svg")).to_have_attribute("data-step", str(last.index))
    expect(view.locator(".node")).to_have_count(len(last.tree) + (last.bonus is not None))
    expect(view.locator(".node.accepted")).to_have_count(last.accepted)
    expect(view.locator(".badge")).to_have_text("native pruner")
    status = tab.page.locator("#status .arena-status")
    expect(status).to_contain_text("DART is")
    expect(status).to_contain_text("as fast as EAGLE3")
    expect(tab.page.locator("#arena-facts")).to_contain_text("scripted")
    totals = tab.page.locator("#totals table")
    expect(totals).to_contain_text("speedup ÷ τ")
    expect(tab.page.locator("#totals")).to_contain_text(
        "tree budget auto, at most 60, depth 7, top-k 10"
    )


def test_tokens_show_who_made_them_by_colour_and_underline(visit, site):
    tab = visit()
    tab.finish("race")
    script = site[0].engine.scripts["dart"]("race")
    drafted = tab.lane("dart", ".tok.d")
    expect(drafted).to_have_count(sum(step.accepted for step in script))
    own = tab.lane("dart", ".tok.t").first
    style = "node => [getComputedStyle(node).color, getComputedStyle(node).textDecorationLine]"
    assert drafted.first.evaluate(style) != own.evaluate(style)
    assert drafted.first.evaluate(style)[1] == "underline"
    drafted.first.hover()
    expect(drafted.first).to_have_attribute("title", re.compile(r"accepted draft, \d+ %.* step 1"))


def test_any_engine_in_any_panel_and_the_speedups_source(visit):
    tab = visit()
    expect(tab.lane("ar")).to_have_count(0)
    tab.finish("race")
    expect(tab.page.locator("#charts")).to_contain_text("warm-up")
    tab.choose("third", "AR")
    expect(tab.lane("ar", ".lane-title")).to_be_visible()
    tab.finish("race", "dart", "eagle3", "ar")
    tab.expect_text("ar", STORY)
    expect(tab.page.locator("#charts")).to_contain_text("in this run")
    expect(tab.lane("dart", "dd").nth(2)).to_have_text(re.compile(r"^[\d.]+×$"))
    expect(tab.lane("ar", "dd").nth(1)).to_have_text("1.00")
    expect(tab.lane("ar", "dd").nth(2)).to_have_text("–")
    tab.choose("second", "–")
    tab.choose("first", "EAGLE3")
    tab.finish("race", "eagle3", "ar")
    expect(tab.lane("dart")).to_have_count(0)
    first = tab.page.locator("#panel-1 .lane")
    expect(first).to_have_attribute("data-engine", "eagle3")


def test_no_engine_runs_twice(visit, site):
    engine = site[0].engine
    tab = visit()
    opened = len(engine.opened)
    tab.choose("second", "DART")
    tab.run("race")
    expect(tab.page.locator("#prompt")).to_contain_text("DART is in two panels")
    assert len(engine.opened) == opened


def test_one_after_the_other(visit, site):
    engine = site[0].engine
    tab = visit()
    tab.settings()
    tab.page.get_by_label("One after the other").check()
    engine.moves.clear()
    tab.finish("race")
    order = [name for name, _ in engine.moves]
    assert order == sorted(order)
    tab.expect_text("eagle3", STORY)


def test_any_steps_tree_by_token_slider_and_arrow_key(visit, site):
    tab = visit()
    tab.finish("race")
    scripts = {name: site[0].engine.scripts[name]("race") for name in ("dart", "eagle3")}
    view = tab.page.locator(".tree-view[data-engine=dart]")

    def shows(index: int) -> None:
        expect(view.locator("svg")).to_have_attribute("data-step", str(index))
        expect(view.locator(".node")).to_have_count(len(scripts["dart"][index].tree) + 1)

    tab.lane("dart", ".tok.d").first.click()  # of step 1
    shows(1)
    expect(tab.page.locator("#tree-follow")).not_to_be_checked()
    expect(tab.lane("dart", ".tok.picked")).to_have_count(len(scripts["dart"][1].tokens))
    view.locator(".tree-frame").press("ArrowRight")
    shows(2)
    tab.page.locator("#tree-step").press("ArrowRight")
    shows(3)
    # The other engine's drawing stands at the step that covers the same place in the text.
    place = sum(len(step.tokens) for step in scripts["dart"][:3])
    total, covering = 0, 0
    for step in scripts["eagle3"]:
        total += len(step.tokens)
        if place < total:
            covering = step.index
            break
    other = tab.page.locator(".tree-view[data-engine=eagle3] svg")
    expect(other).to_have_attribute("data-step", str(covering))
    tab.page.locator("#tree-follow").check()
    expect(view.locator("svg")).to_have_attribute("data-step", str(scripts["dart"][-1].index))


# A conversation -----------------------------------------------------------------------------------


def test_a_follow_up_continues_and_a_run_begins_anew(visit, site):
    engine = site[0].engine
    tab = visit()
    tab.finish("race one")
    engine.asked.clear()
    tab.finish("race two", button="#follow")
    (asked,) = engine.asked
    assert [message["content"] for message in asked] == ["race one", STORY, "race two"]
    for name in ("dart", "eagle3"):
        expect(tab.lane(name)).to_contain_text("race one")
        tab.expect_text(name, STORY)
    tab.finish("race three")
    assert [message["content"] for message in engine.asked[-1]] == ["race three"]
    expect(tab.lane("dart")).not_to_contain_text("race one")


def test_regenerate_answers_the_last_prompt_again(visit, site):
    engine = site[0].engine
    tab = visit()
    tab.page.locator("#regenerate").click()
    expect(tab.page.locator(".arena-status")).to_contain_text("nothing to regenerate")
    tab.finish("race one")
    tab.finish("race two", button="#follow")
    engine.asked.clear()
    tab.finish("something else, not sent", button="#regenerate")
    (asked,) = engine.asked
    assert [message["content"] for message in asked] == ["race one", STORY, "race two"]


def test_thinking_and_the_ngram_reach_the_engine(visit, site):
    arena = site[0]
    tab = visit()
    tab.settings()
    tab.page.get_by_label("Thinking").check()
    tab.page.locator("#knob-ngram").get_by_label("off").check()
    tab.page.get_by_label("Keep pruned candidates").check()
    tab.finish("race")
    settings = next(reversed(arena._visits.values())).header["settings"]
    assert settings["thinking"] is True
    assert settings["ngram"] == "off"
    assert settings["candidates"] is True
    assert arena.engine.thought[-1] is True
    expect(tab.page.locator("#totals")).to_contain_text("no n-gram")


def test_the_rendered_view_is_formatted_and_harmless(visit):
    tab = visit()
    tab.finish("markdown")
    tab.expect_text("dart", MARKDOWN)
    tab.lane("dart").get_by_role("button", name="Rendered").click()
    expect(tab.lane("dart", "li strong")).to_have_text("one")
    expect(tab.lane("dart", "pre code")).to_have_text("for x in y:\n    pass\n")
    for tag in ("img", "script", "a[href^=javascript]"):
        assert tab.lane("dart", tag).count() == 0
    tab.lane("dart").get_by_role("button", name="Tokens").click()
    expect(tab.lane("dart", ".flow")).to_be_visible()


def test_where_texts_part_is_marked_and_explained(visit):
    tab = visit()
    tab.finish("part")
    for name in ("dart", "eagle3"):
        expect(tab.lane(name, ".tok.cut")).to_have_count(1)
        expect(tab.lane(name, ".lane-note")).to_contain_text("From token 10 on this text differs")
        expect(tab.lane(name, ".lane-note")).to_contain_text("a rounding tie in the target")


# Text is text -------------------------------------------------------------------------------------


def test_markup_stays_text_everywhere(visit):
    tab = visit()
    tab.finish(f"markup {MARKUP}")
    for name in ("dart", "eagle3"):
        tab.expect_text(name, MARKUP)
    tab.finish(f"markup {MARKUP}", button="#follow")
    expect(tab.lane("dart", ".flow")).to_be_visible()
    inside = tab.page.locator("#panels, #tree, #charts, #status, #totals")
    for tag in ("b", "script", "img"):
        assert inside.locator(tag).count() == 0
    tab.wait(
        "Array.from(document.querySelectorAll('.tree-view title'))"
        ".some(node => node.textContent.includes('<script>'))"
    )
    assert tab.page.evaluate("window.pwned") is None


def test_markup_in_an_error_stays_text(visit):
    tab = visit()
    tab.run("refuse")
    tab.expect_state("eagle3", "error")
    expect(tab.lane("eagle3", ".lane-note")).to_have_text(f"the prompt is too long: {MARKUP}")
    tab.expect_state("dart", "done")
    assert tab.page.evaluate("window.pwned") is None


def test_characters_split_across_steps_never_show_halves(visit):
    tab = visit()
    tab.page.evaluate(
        """() => {
            window.seen = [];
            const flow = document.querySelector('.lane[data-engine=dart] .flow');
            new MutationObserver(() => window.seen.push(flow.textContent)).observe(
                flow, {childList: true, subtree: true, characterData: true});
        }"""
    )
    tab.finish("split")
    for name in ("dart", "eagle3"):
        tab.expect_text(name, SPLIT)
    seen = tab.page.evaluate("window.seen")
    assert seen
    assert all(SPLIT.startswith(text) and "\ufffd" not in text for text in seen)


def test_twenty_thousand_characters_in_thousands_of_steps(visit, site):
    tab = visit()
    tab.finish("long")
    text = STORY * (20_000 // len(STORY) + 1)
    for name in ("dart", "eagle3"):
        tab.expect_text(name, text)
    script = site[0].engine.scripts["eagle3"]("long")
    assert len(script) > 2_000
    tab.wait(
        "n => document.getElementById('chart-accepted').data[1].y.length === n", len(script) - 1
    )


# Stop, leave, fail --------------------------------------------------------------------------------


def test_stop_ends_the_run_and_frees_the_device(visit, site):
    engine = site[0].engine
    tab = visit()
    engine.closed.clear()
    tab.running("endless")
    tab.page.locator("#stop").click()
    for name in ("dart", "eagle3"):
        tab.expect_state(name, "stopped")
    until(lambda: sorted(engine.closed) == ["dart", "eagle3"])
    expect(tab.lane("dart", ".lane-note")).to_have_text("Stopped.")
    assert (STORY * 40).startswith(tab.text("dart"))
    tab.finish("race")
    tab.expect_text("dart", STORY)


def test_stop_pressed_again_and_again_is_no_error(visit):
    tab = visit()
    failures = []
    tab.page.on("response", lambda answer: answer.ok or failures.append(answer.url))
    for _ in range(5):
        tab.running("endless")
        for _ in range(4):
            tab.page.locator("#stop").click()
        tab.expect_state("dart", "stopped")
    tab.finish("race")
    assert not failures


def test_stop_before_the_first_token(visit, site):
    engine = site[0].engine
    tab = visit()
    engine.closed.clear()
    tab.run("hesitate")
    expect(tab.page.locator("body")).to_have_class(re.compile("arena-running"))
    tab.page.locator("#stop").click()
    for name in ("dart", "eagle3"):
        tab.expect_state(name, "stopped")
    assert tab.text("eagle3") == ""
    expect(tab.page.locator("body")).not_to_have_class(re.compile("arena-running"))
    tab.finish("race")
    tab.expect_text("dart", STORY)


def test_stop_while_the_target_is_asked_why_texts_part(visit, site):
    engine = site[0].engine
    verdict, asked, go = engine.verdict, threading.Event(), threading.Event()

    def slow():
        asked.set()
        go.wait(60)
        return verdict

    tab = visit()
    engine.verdict = slow
    try:
        tab.run("part")
        assert asked.wait(60)
        expect(tab.page.locator(".arena-status")).to_contain_text("why the texts part")
        tab.page.locator("#stop").click()
        go.set()
        for name in ("dart", "eagle3"):
            tab.expect_state(name, "done")
        expect(tab.page.locator("body")).not_to_have_class(re.compile("arena-running"))
    finally:
        go.set()
        engine.verdict = verdict
    tab.finish("race")


def test_the_keyboard_runs_stops_and_follows_up(visit, site):
    engine = site[0].engine
    tab = visit()
    tab.page.locator("#prompt textarea").fill("endless")
    tab.page.keyboard.press("Control+Enter")
    tab.wait("document.querySelectorAll('.lane[data-engine=dart] .tok').length > 3")
    tab.page.keyboard.press("Escape")
    tab.expect_state("dart", "stopped")
    expect(tab.page.locator("body")).not_to_have_class(re.compile("arena-running"))
    engine.asked.clear()
    tab.settle()
    tab.page.locator("#prompt textarea").fill("race")
    tab.page.keyboard.press("Control+Shift+Enter")
    tab.expect_state("dart", "done")
    tab.expect_text("dart", STORY)
    assert [message["content"] for message in engine.asked[0]][0::2] == ["endless", "race"]
    tab.page.locator(".toolbar-keys summary").click()
    expect(tab.page.locator(".toolbar-keys")).to_contain_text("Ctrl + Enter")


def test_two_visitors_take_turns_and_see_their_own_text(visit, site):
    first, second = visit(), visit()
    first.running("endless")
    second.run("race")
    expect(second.page.locator("#status")).to_contain_text("queue")
    expect(second.page.locator("#status")).to_contain_text("1/1")
    assert second.text("dart") == ""
    first.page.locator("#stop").click()
    for name in ("dart", "eagle3"):
        second.expect_state(name, "done")
    second.expect_text("dart", STORY)
    first.expect_state("dart", "stopped")
    assert (STORY * 40).startswith(first.text("dart"))


def test_stop_while_waiting_leaves_the_queue(visit, site):
    engine = site[0].engine
    first, second = visit(), visit()
    first.running("endless")
    second.run("race")
    expect(second.page.locator("#status")).to_contain_text("queue")
    opened = len(engine.opened)
    second.page.locator("#stop").click()
    expect(second.page.locator(".arena-status")).to_contain_text("before it began")
    first.wait(  # goes on, undisturbed
        "document.querySelectorAll('.lane[data-engine=dart] .tok').length > 9"
    )
    first.page.locator("#stop").click()
    first.expect_state("dart", "stopped")
    second.finish("race")
    assert len(engine.opened) == opened + 2  # the run that was left never started


def test_stop_in_the_very_moment_a_run_begins(visit, site, monkeypatch):
    engine = site[0].engine
    began, go, chat_ids = threading.Event(), threading.Event(), engine.chat_ids

    def slow(*args, **options):
        began.set()
        go.wait(60)
        return chat_ids(*args, **options)

    tab = visit()
    monkeypatch.setattr(engine, "chat_ids", slow)
    tab.run("endless")
    assert began.wait(60)
    tab.page.locator("#stop").click()
    tab.page.wait_for_timeout(500)  # Stop and Gradio's cancelling are on their way
    opened = len(engine.opened)
    go.set()
    expect(tab.page.locator(".arena-status")).to_contain_text("before")
    expect(tab.page.locator("body")).not_to_have_class(re.compile("arena-running"))
    tab.finish("race")
    assert len(engine.opened) == opened + 2


def test_one_run_of_a_tab_at_a_time(visit, site):
    engine = site[0].engine
    tab = visit()
    tab.running("endless")
    opened = len(engine.opened)
    tab.page.locator("#follow").click()
    tab.page.locator("#regenerate").click()
    tab.page.locator("#run").click()
    tab.page.locator("#stop").click()
    tab.expect_state("dart", "stopped")
    expect(tab.page.locator("body")).not_to_have_class(re.compile("arena-running"))
    tab.finish("race", button="#follow")
    assert len(engine.opened) == opened + 2
    assert [message["content"] for message in engine.asked[-1]][0::2] == ["endless", "race"]


def test_a_reload_in_mid_run_frees_the_device(visit, site):
    engine = site[0].engine
    tab = visit()
    engine.closed.clear()
    tab.running("endless")
    tab.open()
    until(lambda: sorted(engine.closed) == ["dart", "eagle3"])
    assert tab.text("dart") == ""
    tab.finish("race")
    tab.expect_text("dart", STORY)


@pytest.mark.parametrize("step", [0, 3])
def test_a_failing_engine_leaves_the_other_and_the_queue_alive(visit, step):
    tab = visit()
    tab.run(f"fail {step}")
    tab.expect_state("eagle3", "error")
    tab.expect_state("dart", "done")
    expect(tab.lane("eagle3", ".lane-note")).to_contain_text("RuntimeError")
    assert "/srv" not in tab.page.content()
    tab.expect_text("dart", STORY)
    tab.finish("race")
    tab.expect_text("eagle3", STORY)


def test_a_new_run_takes_the_place_of_a_replay(visit, site, tmp_path):
    recording(TEXT * 40).save(tmp_path / "run.json.gz")
    tab = visit()
    tab.page.locator("#replays button").first.click()
    tab.load(tmp_path / "run.json.gz")
    expect(tab.page.locator(".arena-status")).to_contain_text("Replaying")
    tab.running("endless")
    asked = tab.lane("dart", ".said .words").last
    expect(asked).to_have_text("endless")
    tab.page.evaluate(
        """() => {
            window.seen = new Set();
            const panel = document.querySelector('.lane[data-engine=dart]');
            new MutationObserver(() => window.seen.add(panel.innerText.includes('endless')))
                .observe(panel, {childList: true, subtree: true, characterData: true});
        }"""
    )
    tab.wait("document.querySelectorAll('.lane[data-engine=dart] .tok').length > 20")
    assert tab.page.evaluate("Array.from(window.seen)") == [True]
    tab.page.locator("#stop").click()
    tab.expect_state("dart", "stopped")
    expect(tab.page.locator("body")).not_to_have_class(re.compile("arena-running"))
    threads = [thread.name for thread in threading.enumerate()]
    assert "arena-replay" not in threads


def test_clear_in_mid_run_stays_clear(visit, site):
    engine = site[0].engine
    tab = visit()
    tab.page.on("dialog", lambda dialog: dialog.accept())
    for _ in range(4):
        engine.closed.clear()
        tab.running("endless")
        tab.page.locator("#clear").click()
        tab.expect_state("dart", "idle")
        until(lambda: sorted(engine.closed) == ["dart", "eagle3"])
        tab.page.wait_for_timeout(500)  # whatever the run still had to say would be there by now
        assert tab.text("dart") == ""
        expect(tab.lane("dart")).to_have_attribute("data-state", "idle")


def test_clear_leaves_the_queue(visit, site):
    engine = site[0].engine
    first, second = visit(), visit()
    first.running("endless")
    second.run("race")
    expect(second.page.locator("#status")).to_contain_text("queue")
    opened = len(engine.opened)
    second.page.once("dialog", lambda dialog: dialog.accept())
    second.page.locator("#clear").click()
    expect(second.page.locator("#status")).not_to_contain_text("queue")
    expect(second.page.locator("#prompt textarea")).to_have_value("")
    first.page.locator("#stop").click()
    first.expect_state("dart", "stopped")
    first.finish("race")
    assert len(engine.opened) == opened + 2
    assert second.text("dart") == ""


# Controls -----------------------------------------------------------------------------------------


def test_what_is_out_of_range_is_refused_in_place(visit, site):
    engine = site[0].engine
    tab = visit()
    opened = len(engine.opened)
    tab.page.locator("#run").click()
    expect(tab.page.locator("#prompt")).to_contain_text("Write a prompt first.")
    tab.settings()
    tab.page.locator("#knob-tree-budget input").fill("999")
    tab.run("race")
    told = "Tree budget: 999 is outside 1 to 256."
    expect(tab.page.locator("#knob-tree-budget")).to_contain_text(told)
    expect(tab.page.locator("#prompt")).to_contain_text(told)  # seen with the settings folded away
    assert len(engine.opened) == opened
    tab.page.locator("#knob-tree-budget input").fill("16")
    tab.page.locator("#knob-seed textarea, #knob-seed input").fill("<b>7</b>")
    tab.page.locator("#run").click()
    expect(tab.page.locator("#knob-seed")).to_contain_text("'<b>7</b>' is not a number")
    assert len(engine.opened) == opened
    tab.page.locator("#knob-seed textarea, #knob-seed input").fill("7")
    tab.finish("race")


def test_clear_asks_first(visit, site):
    engine = site[0].engine
    tab = visit()
    tab.finish("race")
    tab.page.once("dialog", lambda dialog: dialog.dismiss())
    tab.page.locator("#clear").click()
    tab.finish("race again")  # whatever a dismissed question did would show by now
    tab.expect_text("dart", STORY)
    tab.page.once("dialog", lambda dialog: dialog.accept())
    tab.page.locator("#clear").click()
    tab.expect_text("dart", "")
    expect(tab.page.locator("#prompt textarea")).to_have_value("")
    expect(tab.page.locator(".tree-frame svg")).to_have_count(0)
    tab.expect_state("dart", "idle")
    tab.finish("race", button="#follow")
    assert len(engine.asked[-1]) == 1  # the conversation is gone as well


def test_a_link_carries_prompt_and_settings(visit, site):
    tab = visit()
    tab.settings()
    tab.page.locator("#knob-tree-budget input").fill("16")
    expect(tab.page.locator("#knob-auto-budget input")).to_be_checked()
    tab.page.locator("#knob-auto-budget input").uncheck()
    tab.page.locator("#knob-temperature input[type=number]").fill("0.7")
    tab.page.locator("#knob-ngram").get_by_label("small").check()
    tab.choose("third", "AR")
    said = "race & <b>a</b> #1\nsecond line é🎉"
    tab.page.locator("#prompt textarea").fill(said)
    tab.page.locator("#link").click()
    tab.wait("location.hash.includes('tree_budget')")
    expect(tab.page.locator(".toolbar-said")).to_contain_text("ink")
    link = tab.page.url
    assert "seed" not in link  # what stands at its default is left out

    other = visit()
    other.open(link[len(site[1]) :])
    other.page.reload()
    expect(other.page.locator("#prompt textarea")).to_have_value(said)
    expect(other.lane("ar", ".lane-title")).to_be_visible()
    other.settings()
    expect(other.page.locator("#knob-tree-budget input")).to_have_value("16")
    expect(other.page.locator("#knob-auto-budget input")).not_to_be_checked()
    expect(other.page.locator("#knob-temperature input[type=number]")).to_have_value("0.7")
    expect(other.page.locator("#knob-ngram").get_by_label("small")).to_be_checked()
    other.page.locator("#run").click()
    other.expect_state("ar", "done")


def test_a_page_without_a_link_is_not_asked_about_one(visit):
    # An answer that arrives while a visitor types may undo what was typed.
    tab = visit()
    asked = []
    tab.page.on("request", lambda request: asked.append(request.url))
    tab.page.reload()
    tab.page.wait_for_selector(".lane[data-engine] .lane-title")
    tab.finish("race")
    assert [url for url in asked if "/run/" in url] == []
    tab.open("#prompt=asked")
    expect(tab.page.locator("#prompt textarea")).to_have_value("asked")
    assert [url for url in asked if "/run/" in url] != []


def test_another_link_in_the_same_tab_begins_anew(visit):
    tab = visit()
    tab.open("#prompt=first&tree_budget=16")
    prompt = tab.page.locator("#prompt textarea")
    expect(prompt).to_have_value("first")
    tab.page.evaluate("location.hash = '#prompt=second'")
    expect(prompt).to_have_value("second")
    tab.settings()
    expect(tab.page.locator("#knob-tree-budget input")).to_have_value("60")
    tab.page.go_back()
    expect(prompt).to_have_value("first")


def test_what_a_link_may_not_set_is_said(visit, site):
    tab = visit()
    tab.open("#prompt=" + quote(MARKUP) + "&tree_budget=999&sudo=1")
    tab.page.reload()
    expect(tab.page.locator("#prompt textarea")).to_have_value(MARKUP)
    told = tab.page.locator(".arena-status")
    expect(told).to_contain_text("Tree budget: 999 is outside 1 to 256.")
    expect(told).to_contain_text("'sudo' is no setting")
    tab.settings()
    expect(tab.page.locator("#knob-tree-budget input")).to_have_value("60")
    assert tab.page.evaluate("window.pwned") is None


def test_the_presenters_mode_is_large_and_dark(visit):
    tab = visit()
    tab.finish("race")
    size = (
        "['.lane .flow', '.lane-title', '.arena-status', '#examples button', '#prompt textarea']"
        ".map(one => parseFloat(getComputedStyle(document.querySelector(one)).fontSize))"
    )
    before = tab.page.evaluate(size)
    tab.page.locator("#presenter").click()
    expect(tab.page.locator("body")).to_have_class(re.compile(r"\bpresenter\b"))
    expect(tab.page.locator("body")).to_have_class(re.compile(r"\bdark\b"))
    after = tab.page.evaluate(size)
    assert all(large > 1.2 * usual for large, usual in zip(after, before, strict=True))
    expect(tab.page.locator("#settings")).not_to_be_visible()
    expect(tab.page.locator("#examples")).to_be_visible()
    tab.page.keyboard.press("Alt+Shift+P")
    expect(tab.page.locator("body")).not_to_have_class(re.compile(r"\bpresenter\b"))
    expect(tab.page.locator("body")).not_to_have_class(re.compile(r"\bdark\b"))
    tab.open("#presenter=1")
    tab.page.reload()
    expect(tab.page.locator("body")).to_have_class(re.compile(r"\bpresenter\b"))


# Runs on disk -------------------------------------------------------------------------------------


def downloaded(tab: Visitor, button: str, path: Path) -> Path:
    with tab.page.expect_download(timeout=WAIT) as download:
        tab.page.locator(button).click()
    download.value.save_as(path)
    return path


def test_a_run_can_be_downloaded_loaded_and_replayed(visit, site, tmp_path):
    tab = visit()
    prompt = f"markup {MARKUP}"
    tab.finish(prompt)
    recording = Recording.load(downloaded(tab, ".arena-save", tmp_path / "run.json"))
    assert recording.header["prompt"] == prompt
    assert recording.header["settings"]["tree_budget"] == 60
    moves = [e for e in recording.events if isinstance(e, Moved) and e.engine == "dart"]
    assert "".join(piece for move in moves for piece in move.pieces) == MARKUP
    assert [m.step.tokens for m in moves] == [
        step.tokens for step in site[0].engine.scripts["dart"]("markup")
    ]
    used = {token for m in moves if m.step.tree for token in m.step.tree.tokens.tolist()}
    assert used <= set(recording.vocabulary)
    with downloaded(tab, ".arena-csv", tmp_path / "steps.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len([row for row in rows if row["engine"] == "dart"]) == len(moves)
    assert not any(cell.startswith(("=", "+", "@")) for row in rows for cell in row.values())

    opened = len(site[0].engine.opened)
    other = visit()
    other.page.locator("#replays button").first.click()
    other.page.locator("#speed input").click()
    other.page.get_by_role("option", name="at once").click()
    other.load(tmp_path / "run.json")
    for name in ("dart", "eagle3"):
        other.expect_state(name, "done")
        other.expect_text(name, MARKUP)
    expect(other.page.locator(".arena-status")).to_contain_text("Replayed")
    expect(other.page.locator("#totals")).to_contain_text("recorded")
    expect(other.page.locator(".tree-view[data-engine=dart] .node").first).to_be_attached()
    assert len(site[0].engine.opened) == opened
    assert other.page.evaluate("window.pwned") is None


def test_a_file_that_is_no_run_is_refused_in_words(visit, tmp_path):
    (tmp_path / "x.json").write_text('{"schema": "<b>other</b>"}')
    tab = visit()
    tab.page.locator("#replays button").first.click()
    tab.load(tmp_path / "x.json")
    expect(tab.page.locator(".arena-status")).to_contain_text("not a recorded run")
    expect(tab.page.locator(".arena-save")).not_to_be_visible()
    tab.finish("race")
    (tmp_path / "y.json").write_text("[")
    tab.load(tmp_path / "y.json")
    expect(tab.page.locator(".arena-status")).to_contain_text("not a recorded run")
    tab.expect_text("dart", STORY)  # what is shown can be downloaded
    kept = Recording.load(downloaded(tab, ".arena-save", tmp_path / "run.json"))
    assert kept.header["prompt"] == "race"


def test_uploaded_files_do_not_pile_up(browser, monkeypatch, tmp_path):
    monkeypatch.setattr("app.page.KEEP_UPLOADS", (1, 1))
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "uploads"))
    recording(TEXT).save(tmp_path / "run.json")
    with served(Script().engine()) as (_, url):
        tab = Visitor(browser, url)
        tab.page.locator("#replays button").first.click()
        tab.load(tmp_path / "run.json")
        tab.expect_state("dart", "done")
        uploads = tmp_path / "uploads"
        assert list(uploads.rglob("*"))  # its folder stays
        until(lambda: not list(uploads.rglob("run.json")))
        assert not tab.troubles
        tab.context.close()


def test_a_page_of_recordings_needs_no_engine(browser, visit, site, tmp_path):
    tab = visit()
    tab.finish("race")
    downloaded(tab, ".arena-save", tmp_path / "one.json")
    with served(None, recordings=tmp_path) as (_, url):
        alone = Visitor(browser, url)
        expect(alone.page.locator("#prompt")).to_have_count(0)
        alone.page.locator("#replay").click()
        for name in ("dart", "eagle3"):
            alone.expect_state(name, "done")
            alone.expect_text(name, STORY)
        alone.lane("dart", ".tok.d").first.click()
        expect(alone.page.locator(".tree-view[data-engine=dart] svg")).to_have_attribute(
            "data-step", "1"
        )
        alone.page.locator("#replay").click()
        alone.expect_state("dart", "running")
        alone.page.locator("#stop").click()
        alone.expect_state("dart", "stopped")
        assert not alone.troubles
        alone.context.close()


# Everywhere ---------------------------------------------------------------------------------------


def test_health_and_own_files(site):
    with urlopen(site[1] + "healthz") as answer:
        assert json.load(answer) == {"status": "ready"}
    with urlopen(site[1] + "arena-assets/plotly.min.js") as answer:
        assert "javascript" in answer.headers["content-type"]
    for other in ("widgetbundle.js", "templates/plotly.json"):
        with pytest.raises(HTTPError):
            urlopen(site[1] + "arena-assets/" + other)
    with pytest.raises(HTTPError):  # Gradio's page of who used what
        urlopen(site[1] + "monitoring")


def test_all_works_behind_a_proxy_that_strips_its_prefix(browser):
    with served(Script().engine(), root_path="/arena") as (_, url):
        assert urlopen(url + "healthz").status == 200
        with behind_prefix(url, "/arena") as outside:
            tab = Visitor(browser, outside)  # any request beside the prefix is a trouble
            tab.finish("race")
            tab.expect_text("dart", STORY)
            tab.lane("dart", ".tok.d").first.click()  # its tree is asked for
            svg = tab.page.locator(".tree-view[data-engine=dart] svg")
            expect(svg).to_have_attribute("data-step", "1")
            tab.wait("document.getElementById('chart-race').data?.[1].x.length > 3")
            assert not tab.troubles
            tab.context.close()


@pytest.mark.parametrize("theme", ["light", "dark", "presenter"])
def test_accessibility(visit, theme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    tab = visit()
    tab.open("#presenter=1" if theme == "presenter" else f"?__theme={theme}")
    tab.page.reload()
    if theme != "presenter":
        tab.settings()
        tab.page.locator("#replays button").first.click()
    tab.finish("markdown")
    tab.finish("part", button="#follow")
    expect(tab.lane("eagle3", ".lane-note")).to_contain_text("a rounding tie")
    tab.page.locator(".toolbar-keys summary").click()
    tab.lane("dart").get_by_role("button", name="Rendered").click()
    expect(tab.page.locator(".tree-view[data-engine=dart] .node").first).to_be_attached()
    options = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]}
    violations = axe.run(tab.page, options=options).response["violations"]
    found = [
        (violation["id"], node["target"], node["html"][:200])
        for violation in violations
        for node in violation["nodes"]
    ]
    assert not found
    for panel in tab.page.locator("#panels .lane-text:visible").all():
        assert panel.get_attribute("role") == "region"
        assert panel.get_attribute("aria-label")
        assert panel.get_attribute("aria-live") is None
    expect(tab.page.locator("#status [role=status]")).to_have_attribute("aria-live", "polite")


def test_reduced_motion_is_honoured(visit):
    tab = visit(reduced_motion="reduce")
    tab.running("endless")
    moving = tab.page.evaluate(
        "Array.from(document.querySelectorAll('.gradio-container *')).filter(node => ["
        "getComputedStyle(node), getComputedStyle(node, '::after')].some(style => "
        "style.animationName !== 'none' || style.transitionDuration.split(',')"
        ".some(part => parseFloat(part) > 0))).length"
    )
    assert moving == 0
    tab.page.locator("#stop").click()
    tab.expect_state("dart", "stopped")


def test_a_phone_stacks_the_panels_and_scrolls_one_way(visit):
    tab = visit(viewport={"width": 390, "height": 844})
    tab.finish("race")
    boxes = [tab.lane(name).bounding_box() for name in ("dart", "eagle3")]
    assert boxes[1]["y"] >= boxes[0]["y"] + boxes[0]["height"]
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= 390


# The command line ---------------------------------------------------------------------------------


def test_a_taken_port_is_said_before_anything_is_loaded():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-m", "app", "--preset", "demo", "--server-port", str(port)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"error: port {port} on 127.0.0.1 is taken; stop what uses it or choose another with "
        "--server-port"
    ]
    assert done.stdout == ""


@pytest.mark.slow
@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_app_cleanly(signum, code):
    if not (DEMO_ASSETS / "dart").is_dir():
        pytest.skip("the demo's heads are not in this checkout")
    port = free_port()
    command = [sys.executable, "-m", "app", "--preset", "demo", "--server-port", str(port)]
    app = subprocess.Popen(
        [*command, "--no-warmup"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert app.stdout.readline() == f"Running on http://localhost:{port}\n"
        app.send_signal(signum)
        out, err = app.communicate(timeout=60)
    finally:
        app.kill()
    assert app.returncode == code
    assert "closing the page" in out
    assert "Traceback" not in err


# The demo -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_demo_races_losslessly(browser):
    if not (DEMO_ASSETS / "dart").is_dir():
        pytest.skip("the demo's heads are not in this checkout")
    import torch

    from dart_core.engine import Engine

    engine = Engine.load("demo", dtype=torch.float32, progress=lambda line: None)
    with served(engine, max_length=512) as (arena, url):
        tab = Visitor(browser, url)
        tab.settings()
        tab.page.locator("#knob-max-new-tokens input").fill("48")
        tab.page.get_by_label("Keep pruned candidates").check()
        tab.finish("Name three fruits and say what colour each of them is.")
        text = tab.text("dart")
        assert len(text) > 20
        tab.expect_text("eagle3", text)

        events = next(reversed(arena._visits.values())).view.events
        order = [event.engine for event in events if isinstance(event, Moved)]
        switches = sum(a != b for a, b in pairwise(order))
        assert switches > 4
        steps = [e.step for e in events if isinstance(e, Moved) and e.engine == "dart"]
        tab.wait("n => document.getElementById('chart-accepted').data[0].y.length === n",
                 len(steps) - 1)  # fmt: skip
        view = tab.page.locator(".tree-view[data-engine=dart]")
        expect(view.locator(".badge")).to_have_text("native pruner")
        last = steps[-1]
        expect(view.locator(".node:not(.pruned)")).to_have_count(
            len(last.tree) + (last.bonus is not None)
        )
        tab.page.locator("#tree-pruned").check()
        expect(view.locator(".node.pruned").first).to_be_attached()
        tab.finish("And which one is the largest?", button="#follow")
        expect(tab.lane("dart")).to_contain_text("Name three fruits")
        tab.expect_text("eagle3", tab.text("dart"))
        assert not tab.troubles
        tab.context.close()


if os.environ.get("CI") == "true":

    def test_ci_has_a_demo():
        assert (DEMO_ASSETS / "dart").is_dir(), "CI must run the demo's test"
