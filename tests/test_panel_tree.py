"""The draft trees in a real Chromium: the test pushes the values and serves the earlier steps."""

from __future__ import annotations

import json
import re

import pytest
from browsing import expect
from panels import served_panel

from app.panels import tree_view
from app.view import IDLE_TREES

pytestmark = pytest.mark.browser

MARKUP = "<b>x</b><img src='https://example.com/x.png' onerror='window.pwned = 1'>"
#            0       1      2       3        4      5       6
TOKENS = [" the", " sky", " is", " looks", " blue", " red", "\n"]
PARENTS = [-1, 0, 1, 1, 2, 2, 0]  # accepted: the, sky, is, blue; then the target's own
PATH = [0, 1, 2, 4]
POOL = {  # node: what became of the candidate, -1: pruned away
    "tokens": [" sky", " is", " sea", " deep", " wide", " looks"],
    "parents": [-1, 0, -1, 2, 1, 0],
    "score": [-0.1, -0.2, -0.7, -0.9, None, -0.3],
    "node": [1, 2, -1, -1, -1, 3],
}


def tree(engine: str, step: int, tokens=TOKENS, parents=PARENTS, path=PATH, pool=None) -> str:
    count = len(tokens)
    return json.dumps(
        {
            "engine": engine,
            "step": step,
            "backend": "native" if engine == "dart" else "torch",
            "drafted": count - 1,
            "accepted": len(path) - 1,
            "emitted": len(path),
            "tokens": list(tokens),
            "parents": list(parents),
            "p": [1.0] + [round(1 / (1 + node), 4) for node in range(1, count)],
            "ngram": [None] + [0.25 if engine == "dart" else None] * (count - 1),
            "score": [round(-0.1 * node, 4) for node in range(count)],
            "path": list(path),
            "bonus": " today",
            "ms": {"draft": 7.0, "search": 1.0, "verify": 30.0, "rest": 2.0},
            "pool": pool,
        }
    )


def value(run: str, **emitted_and_pool) -> dict:
    """Lanes by engine: the tokens emitted per step, prefill first; `pool` goes with the newest."""
    pool = emitted_and_pool.pop("pool", None)
    return {
        "run": run,
        "lanes": [
            {
                "engine": engine,
                "label": engine.upper(),
                "emitted": ",".join(map(str, emitted)),
                "latest": tree(engine, len(emitted) - 1, pool=pool) if len(emitted) > 1 else "",
            }
            for engine, emitted in emitted_and_pool.items()
        ],
    }


def large(engine: str, step: int, nodes: int, candidates: int) -> str:
    """A tree of so many nodes, wide and deep, with a pool of so many more candidates."""
    parents = [-1] + [(node - 1) // 3 for node in range(1, nodes + 1)]
    path = [0, 1, 4, 13]
    kept = list(range(1, nodes + 1))
    pool = {
        "tokens": [f" t{node}" for node in kept] + [f" c{node}" for node in range(candidates)],
        "parents": [parent - 1 for parent in parents[1:]]
        # The second half of the candidates hang below the first.
        + [place % nodes for place in range(candidates // 2)]
        + [nodes + place for place in range(candidates - candidates // 2)],
        "score": [-0.01 * node for node in kept] + [-10.0 - 0.01 * n for n in range(candidates)],
        "node": kept + [-1] * candidates,
    }
    tokens = [f" t{node}" for node in range(nodes + 1)]
    return tree(engine, step, tokens, parents, path, pool)


asked: list[tuple[str, str, int]] = []


def tree_of(run: str, engine: str, step: int) -> str:
    asked.append((run, engine, step))
    if run == "forgotten":
        return ""
    if run == "large":
        return large(engine, step, 256, 400)
    return tree(engine, step, pool=POOL if run == "pool" else None)


@pytest.fixture(scope="module")
def page():
    with served_panel(
        lambda: tree_view(IDLE_TREES, tree_of=tree_of, elem_id="panel"), ".tree-head"
    ) as page:
        yield page


@pytest.fixture
def tab(page, browser):
    asked.clear()
    with page.tab(browser) as tab:
        yield tab


def view(tab, engine: str = "dart"):
    return tab.locate(f".tree-view[data-engine={engine}]")


def shows(tab, engine: str, step: int) -> None:
    expect(view(tab, engine).locator("svg")).to_have_attribute("data-step", str(step))


def position(node) -> tuple[float, float]:
    """(x, y) of a node in its drawing."""
    found = re.fullmatch(r"translate\(([\d.]+),([\d.]+)\)", node.get_attribute("transform"))
    return float(found[1]), float(found[2])


def test_an_idle_page_has_a_sentence(tab):
    expect(tab.locate(".tree-empty")).to_be_visible()
    expect(tab.locate("#tree-step")).to_be_disabled()
    expect(tab.locate("#tree-pruned")).to_be_disabled()
    expect(tab.locate(".tree-hint")).to_be_hidden()
    tab.push(value("r1", dart=[1]))  # the prefill has no tree
    expect(tab.locate(".tree-empty")).to_be_visible()
    tab.push(value("r1", dart=[1, 4]))
    shows(tab, "dart", 1)
    expect(tab.locate(".tree-empty")).to_be_hidden()
    tab.push(IDLE_TREES)
    expect(tab.locate(".tree-empty")).to_be_visible()
    expect(tab.locate("svg")).to_have_count(0)


def test_a_page_that_opens_late_draws_its_first_value(browser):
    first = value("r1", dart=[1, 4, 4])
    with (
        served_panel(
            lambda: tree_view(first, tree_of=tree_of, elem_id="panel"), ".tree-head"
        ) as page,
        page.tab(browser) as tab,
    ):
        shows(tab, "dart", 2)


def test_nodes_path_and_bonus(tab):
    tab.push(value("r1", dart=[1, 4], eagle3=[1, 4]))
    shows(tab, "dart", 1)
    dart = view(tab)
    expect(dart.locator(".node")).to_have_count(len(TOKENS) + 1)
    shows(tab, "eagle3", 1)
    assert dart.locator(".node.root text").text_content() == "·the"
    # In reading order; the target's own token stands where the path left the tree.
    assert dart.locator(".node text").evaluate_all("nodes => nodes.map(n => n.textContent)") == [
        "·the", "·sky", "·is", "·blue", "·today", "⏎", "·looks", "·red",
    ]  # fmt: skip
    assert dart.locator(".node.accepted").count() == 3
    assert dart.locator(".node.bonus").count() == 1
    assert dart.locator(".node.rejected").count() == 3
    titles = dart.locator("title").evaluate_all("nodes => nodes.map(n => n.textContent)")
    assert titles[0] == "“ the” – the last committed token"
    assert titles[1] == "“ sky” – accepted · draft 50.0 % · n-gram 25.0 % · score -0.1 · depth 1"
    assert titles[4] == "“ today” – the target's own token"
    assert titles[7] == "“ red” – rejected · draft 16.7 % · n-gram 25.0 % · score -0.5 · depth 3"
    assert "n-gram" not in view(tab, "eagle3").locator("title").nth(1).text_content()
    path = dart.locator(".node.root, .node.accepted, .node.bonus")
    assert len({position(node)[1] for node in path.all()}) == 1  # one line
    expect(dart.locator("svg")).to_have_attribute("role", "img")
    expect(dart.locator("svg")).to_have_attribute(
        "aria-label",
        "Step 1: 6 drafted, 3 accepted “ sky is blue”, then the target's own “ today”",
    )
    assert dart.locator(".badge").inner_text() == "native pruner"
    assert view(tab, "eagle3").locator(".badge").inner_text() == "torch re-rank"
    expect(dart.locator(".tree-facts")).to_have_text(
        "step 1 · 6 drafted · 3 accepted · draft 7.0 ms · search 1.0 ms · verify 30.0 ms"
    )


def test_follow_live_until_a_step_is_chosen(tab):
    tab.push(value("r1", dart=[1, 4]))
    shows(tab, "dart", 1)
    tab.push(value("r1", dart=[1, 4, 4]), value("r1", dart=[1, 4, 4, 4]))
    shows(tab, "dart", 3)
    expect(tab.locate(".tree-where")).to_have_text("step 3 / 3")
    tab.locate("#tree-step").press("ArrowLeft")
    shows(tab, "dart", 2)
    expect(tab.locate("#tree-follow")).not_to_be_checked()
    expect(tab.locate("#tree-step")).to_have_attribute("aria-valuetext", "step 2 of 3")
    tab.push(value("r1", dart=[1, 4, 4, 4, 4]))
    expect(tab.locate(".tree-where")).to_have_text("step 2 / 4")
    shows(tab, "dart", 2)
    tab.locate("#tree-follow").check()
    shows(tab, "dart", 4)
    tab.locate("#tree-step").press("ArrowLeft")
    shows(tab, "dart", 3)
    tab.push(value("r2", dart=[1, 4]), value("r2", dart=[1, 4, 4]))  # a new run is followed again
    shows(tab, "dart", 2)
    expect(tab.locate("#tree-follow")).to_be_checked()
    assert all(step in (2, 3) for _, _, step in asked)  # the newest ones came with the values


def test_the_other_engine_shows_the_same_place_of_the_text(tab):
    tab.push(value("r1", dart=[1, 4, 4], eagle3=[1, 2, 2, 2, 2]))
    shows(tab, "dart", 2)
    shows(tab, "eagle3", 4)  # live: each its newest
    frame = view(tab).locator(".tree-frame")
    frame.press("ArrowRight")  # there is no step 3
    shows(tab, "dart", 2)  # emits tokens 6 to 9
    shows(tab, "eagle3", 3)  # emits tokens 6 and 7
    frame.press("ArrowLeft")
    frame.press("ArrowLeft")  # there is no step 0
    shows(tab, "dart", 1)
    shows(tab, "eagle3", 1)
    tab.page.get_by_role("button", name="EAGLE3", exact=True).click()
    for step, place in ((2, 1), (3, 2), (4, 2)):
        view(tab, "eagle3").locator(".tree-frame").press("ArrowRight")
        shows(tab, "eagle3", step)
        shows(tab, "dart", place)
    # A click in a token panel says so to all.
    tab.page.evaluate(
        "document.dispatchEvent(new CustomEvent('arena:step', {detail: {engine: 'dart', step: 1}}))"
    )
    shows(tab, "dart", 1)
    shows(tab, "eagle3", 1)


def test_what_is_no_longer_kept_is_said(tab):
    tab.push(value("forgotten", dart=[1, 4, 4]))
    shows(tab, "dart", 2)
    view(tab).locator(".tree-frame").press("ArrowLeft")
    expect(view(tab).locator(".tree-facts")).to_have_text(
        "The server no longer keeps this run's trees."
    )
    expect(view(tab).locator("svg")).to_have_count(0)  # not another step's drawing
    view(tab).locator(".tree-frame").press("ArrowRight")
    shows(tab, "dart", 2)


def test_details_of_the_node_under_the_mouse_or_the_keys(tab):
    tab.push(value("r1", dart=[1, 4, 4]))
    shows(tab, "dart", 2)
    dart = view(tab)
    detail, frame = dart.locator(".tree-detail"), dart.locator(".tree-frame")
    expect(detail).to_contain_text("Point at a node")
    dart.locator(".node.accepted").nth(1).hover()
    expect(detail).to_contain_text("“ is” – accepted · draft 33.3 %")
    tab.locate("h2").hover()
    expect(detail).to_contain_text("Point at a node")
    frame.focus()
    for _ in range(3):
        tab.page.keyboard.press("ArrowDown")
    expect(dart.locator(".node.marked text")).to_have_text("·is")
    expect(dart.locator(".node.marked")).to_have_count(1)
    expect(detail).to_contain_text("“ is” – accepted")
    expect(tab.locate(".tree-spoken")).to_contain_text("“ is” – accepted")
    tab.page.keyboard.press("ArrowUp")
    expect(dart.locator(".node.marked text")).to_have_text("·sky")
    dart.locator(".node.rejected").last.click()
    expect(dart.locator(".node.marked text")).to_have_text("·red")
    tab.locate("h2").hover()
    expect(detail).to_contain_text("“ red” – rejected")  # stays after the mouse has left
    frame.press("ArrowLeft")
    shows(tab, "dart", 1)
    expect(dart.locator(".node.marked")).to_have_count(0)
    expect(tab.locate(".tree-spoken")).to_contain_text("Step 1: 6 drafted, 3 accepted")


def test_pruned_candidates_on_demand(tab):
    tab.push(value("r1", dart=[1, 4]))
    shows(tab, "dart", 1)
    pruned, hint = tab.locate("#tree-pruned"), tab.locate(".tree-hint")
    expect(pruned).to_be_disabled()
    told = "Switch on “Keep pruned candidates” in the settings and run again."
    expect(hint).to_have_text(told)
    expect(hint).to_be_visible()
    expect(pruned).to_have_attribute("title", told)

    tab.push(value("pool", dart=[1, 4, 4], pool=POOL))
    shows(tab, "dart", 2)
    expect(pruned).to_be_enabled()
    expect(hint).to_be_hidden()
    dart = view(tab)
    assert dart.locator(".pruned").count() == 0
    tab.page.get_by_label("show pruned candidates").check()
    expect(dart.locator(".node.pruned")).to_have_count(3)
    assert dart.locator(".node:not(.pruned)").count() == len(TOKENS) + 1
    titles = dart.locator(".pruned title").evaluate_all("nodes => nodes.map(n => n.textContent)")
    assert sorted(titles) == [
        "“ deep” – pruned, score -0.9 · depth 2",
        "“ sea” – pruned, score -0.7 · depth 1",
        "“ wide” – pruned, score – · depth 3",
    ]
    by_text = {
        node.locator("text").text_content(): position(node) for node in dart.locator(".node").all()
    }
    assert by_text["·sea"][1] > by_text["⏎"][1] > by_text["·sky"][1]  # below their siblings
    assert by_text["·wide"][1] > by_text["·red"][1]
    assert by_text["·deep"][1] == by_text["·sea"][1]
    style = "node => getComputedStyle(node).strokeDasharray"
    assert dart.locator(".pruned rect").first.evaluate(style) != "none"
    assert dart.locator(".rejected rect").first.evaluate(style) == "none"
    expect(dart.locator(".tree-facts")).to_contain_text("3 accepted · 3 pruned · draft")
    dart.locator(".tree-frame").press("ArrowLeft")  # the choice holds for other steps
    shows(tab, "dart", 1)
    expect(dart.locator(".node.pruned")).to_have_count(3)
    pruned.uncheck()
    expect(dart.locator(".pruned")).to_have_count(0)


def test_a_large_tree_with_its_best_pruned_candidates(tab):
    latest = {"engine": "dart", "label": "DART", "emitted": "1,4,4,4"}
    tab.push({"run": "large", "lanes": [{**latest, "latest": large("dart", 3, 256, 400)}]})
    shows(tab, "dart", 3)
    dart = view(tab)
    expect(dart.locator(".node")).to_have_count(258)
    tab.locate("#tree-pruned").check()
    expect(dart.locator(".node.pruned")).to_have_count(150)
    drawn = dart.locator(".pruned text").evaluate_all("nodes => nodes.map(n => n.textContent)")
    assert set(drawn) == {f"·c{place}" for place in range(150)}  # the best by score
    expect(dart.locator(".tree-facts")).to_contain_text("150 pruned, 250 more left out")
    # No two nodes of the drawing lie on each other.
    boxes = dart.locator(".node").evaluate_all(
        "nodes => nodes.map((node) => node.getAttribute('transform'))"
    )
    assert len(set(boxes)) == 408
    for step in (2, 1):
        dart.locator(".tree-frame").press("ArrowLeft")
        shows(tab, "dart", step)
        expect(dart.locator(".node.pruned")).to_have_count(150)
    for _ in range(80):
        tab.page.keyboard.press("ArrowDown")
    marked = dart.locator(".node.marked")
    expect(marked).to_have_count(1)
    frame, node = dart.locator(".tree-frame").bounding_box(), marked.bounding_box()
    assert frame["x"] <= node["x"] and node["x"] + node["width"] <= frame["x"] + frame["width"]
    assert frame["y"] <= node["y"] and node["y"] + node["height"] <= frame["y"] + frame["height"]


def test_pruned_candidates_never_hang_in_the_air(tab):
    """A candidate that scores well below one that does not is drawn with that one or not at all."""
    count = 400  # in lines of four, of which only the last ones score well
    pool = {
        "tokens": [f" c{place}" for place in range(count)],
        "parents": [place - 1 if place % 4 else -1 for place in range(count)],
        "score": [place if place % 4 == 3 else -place for place in range(count)],
        "node": [-1] * count,
    }
    tab.push(value("pool", dart=[1, 4], pool=pool))
    shows(tab, "dart", 1)
    tab.locate("#tree-pruned").check()
    drawn = view(tab).locator(".pruned text")
    expect(drawn).to_have_count(150)
    texts = set(drawn.evaluate_all("nodes => nodes.map(n => n.textContent)"))
    whole_lines = {f"·c{place}" for place in range(count - 37 * 4, count)}
    assert texts == whole_lines | {"·c0", "·c1"}


def test_zoom(tab):
    latest = {"engine": "dart", "label": "DART", "emitted": "1,4"}
    tab.push({"run": "large", "lanes": [{**latest, "latest": large("dart", 1, 256, 0)}]})
    shows(tab, "dart", 1)
    wide = "document.querySelector('svg').getBoundingClientRect().width"
    full = tab.page.evaluate(wide)
    tab.page.get_by_role("button", name="Larger").click()
    tab.wait(f"Math.abs({wide} - 1.25 * {full}) < 3")
    tab.page.get_by_role("button", name="Full size").click()
    tab.wait(f"{wide} === {full}")
    tab.page.get_by_role("button", name="Smaller").click()
    tab.wait(f"Math.abs({wide} - {full} / 1.25) < 3")
    tab.page.get_by_role("button", name="Fit the whole drawing").click()
    tab.wait(f"{wide} < 0.5 * {full}")
    fit = tab.page.get_by_role("button", name="Fit the whole drawing")
    expect(fit).to_have_attribute("aria-pressed", "true")
    tab.page.get_by_role("button", name="Full size").click()
    tab.wait(f"{wide} === {full}")
    tab.page.evaluate("document.body.style.setProperty('--scale', '1.5')")  # a presenter's page
    tab.wait(f"Math.abs({wide} - 1.5 * {full}) < 3")


def test_markup_in_labels_stays_text(tab):
    pool = {"tokens": [MARKUP], "parents": [-1], "score": [-1.0], "node": [-1]}
    text = tree("dart", 1, [MARKUP, MARKUP], [-1, 0], [0], pool)
    lane = {"engine": "dart", "label": MARKUP, "emitted": "1,1", "latest": text}
    tab.push({"run": "r1", "lanes": [lane]})
    shows(tab, "dart", 1)
    tab.locate("#tree-pruned").check()
    expect(view(tab).locator(".node")).to_have_count(4)
    view(tab).locator(".node.rejected").click()
    expect(view(tab).locator(".tree-detail")).to_contain_text(MARKUP)
    expect(view(tab).locator("h3")).to_have_text(MARKUP)
    expect(tab.locate(".tree-engines button")).to_have_text(MARKUP)
    assert tab.locate("#panel img, #panel b").count() == 0
    assert tab.page.evaluate("window.pwned") is None


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_trees_are_accessible_and_fit_a_phone(page, browser, theme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    with page.tab(browser, viewport={"width": 390, "height": 844}) as tab:
        tab.open(f"?__theme={theme}")
        tab.push(value("pool", dart=[1, 4], eagle3=[1, 4], pool=POOL))
        shows(tab, "eagle3", 1)
        tab.locate("#tree-pruned").check()
        expect(view(tab).locator(".node.pruned")).to_have_count(3)
        assert tab.page.evaluate("document.documentElement.scrollWidth") <= 390
        options = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]}
        found = axe.run(tab.page, context="#panel", options=options).response["violations"]
        assert not [(one["id"], one["nodes"][0]["html"][:200]) for one in found]
