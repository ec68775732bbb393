"""The page in a real Chromium: a race, what it fills, and any step of it again."""

from __future__ import annotations

import re

import pytest
from browsing import expect
from pages import STORY

pytestmark = pytest.mark.browser


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
