"""The table of totals in a real Chromium: the test pushes the values."""

from __future__ import annotations

import copy

import pytest
from browsing import expect
from panels import served_panel

from app.panels import totals_table

pytestmark = pytest.mark.browser

MARKUP = "<b>x</b><img src='https://example.com/x.png' onerror='window.pwned = 1'>"
IDLE = {"run": "", "columns": [], "rows": [], "facts": []}


def row(name: str, label: str, cells: list[str], worse: list[bool] | None = None) -> dict:
    definition = f"What {label} means."
    marks = worse or [False] * len(cells)
    return {
        "name": name, "label": label, "definition": definition, "cells": cells, "worse": marks,
    }  # fmt: skip


VALUE = {
    "run": "r1",
    "columns": [{"engine": "dart", "label": "DART"}, {"engine": "eagle3", "label": "EAGLE3"}],
    "rows": [
        row("tokens_per_second", "tokens / s", ["30.1", "9.0"]),
        row("speedup", "× plain decoding", ["2.41×", "0.72×"], [False, True]),
        row("tau", "τ, tokens / step", ["3.10", "2.20"]),
    ],
    "facts": [["target", "scripted"], ["tree budget", 60], ["seed", MARKUP]],
}


@pytest.fixture(scope="module")
def page():
    with served_panel(lambda: totals_table(IDLE, elem_id="panel"), "#pushed input") as page:
        yield page


@pytest.fixture
def tab(page, browser):
    with page.tab(browser) as tab:
        yield tab


def test_a_real_table(tab):
    expect(tab.locate(".totals")).to_be_attached()
    expect(tab.locate(".totals")).to_be_hidden()
    tab.push(VALUE)
    expect(tab.locate(".totals")).to_be_visible()
    expect(tab.locate("table caption")).to_have_text("Totals")
    expect(tab.locate("thead th[scope=col]")).to_have_text(["Figure", "DART", "EAGLE3"])
    expect(tab.locate("tbody th[scope=row] span")).to_have_text(
        ["tokens / s", "× plain decoding", "τ, tokens / step"]
    )
    expect(tab.locate("tbody tr:has(th) td")).to_have_text(
        ["30.1", "9.0", "2.41×", "▼ 0.72×", "3.10", "2.20"]
    )
    expect(tab.locate(".totals-facts dt")).to_have_text(["target", "tree budget", "seed"])
    expect(tab.locate(".totals-facts dd")).to_have_text(["scripted", "60", MARKUP])
    tab.push(IDLE)
    expect(tab.locate(".totals")).to_be_hidden()


def test_what_is_worse_is_marked_by_colour_and_sign(tab):
    tab.push(VALUE)
    worse = tab.locate("td.worse")
    expect(worse).to_have_text(["▼ 0.72×"])
    expect(worse.get_by_role("img")).to_have_accessible_name("worse than plain decoding:")
    color = "node => getComputedStyle(node).color"
    assert worse.evaluate(color) != tab.locate("td.dart, tbody td").first.evaluate(color)
    better = copy.deepcopy(VALUE)
    better["rows"][1].update(cells=["0.90×", "1.10×"], worse=[True, False])
    tab.push(better)
    expect(tab.locate("tbody tr:has(th) td")).to_have_text(
        ["30.1", "9.0", "▼ 0.90×", "1.10×", "3.10", "2.20"]
    )
    expect(worse).to_have_count(1)


def test_definitions_open_in_place_and_stay_open_as_figures_change(tab):
    tab.push(VALUE)
    button = tab.page.get_by_role("button", name="What is “τ, tokens / step”?")
    definition = tab.page.locator(f"#{button.get_attribute('aria-controls')}")
    expect(button).to_have_attribute("aria-expanded", "false")
    expect(definition).to_be_hidden()
    button.focus()
    button.press("Enter")
    expect(button).to_have_attribute("aria-expanded", "true")
    expect(definition).to_be_visible()
    expect(definition).to_have_text("What τ, tokens / step means.")
    below = definition.evaluate("node => node.previousElementSibling.textContent")
    assert below.startswith("τ, tokens / step")
    grown = copy.deepcopy(VALUE)
    grown["rows"][2]["cells"] = ["3.25", "2.10"]
    tab.push(grown)
    expect(tab.locate("tbody tr:has(th)").last.locator("td")).to_have_text(["3.25", "2.10"])
    expect(definition).to_be_visible()
    expect(button).to_be_focused()
    button.click()
    expect(button).to_have_attribute("aria-expanded", "false")
    expect(definition).to_be_hidden()
    button.click()
    three = copy.deepcopy(VALUE)  # another run, with a third engine
    three["run"] = "r2"
    three["columns"].append({"engine": "ar", "label": "AR"})
    for one in three["rows"]:
        one["cells"].append("–")
        one["worse"].append(False)
    tab.push(three)
    expect(tab.locate("thead th")).to_have_text(["Figure", "DART", "EAGLE3", "AR"])
    expect(tab.locate(".totals-definition:visible")).to_have_text("What τ, tokens / step means.")
    expect(tab.locate(".totals-definition:visible td")).to_have_attribute("colspan", "4")


def test_markup_stays_text(tab):
    hostile = {
        "run": "r1",
        "columns": [{"engine": "dart", "label": MARKUP}],
        "rows": [{**row("tau", MARKUP, [MARKUP], [True]), "definition": MARKUP}],
        "facts": [[MARKUP, MARKUP]],
    }
    tab.push(hostile)
    tab.locate(".totals-what").click()
    for place in ("thead th.dart", "tbody th span", ".totals-definition", "dt", "dd"):
        expect(tab.locate(f"#panel {place}")).to_have_text(MARKUP)
    expect(tab.locate("td.worse")).to_have_text(f"▼ {MARKUP}")
    assert tab.locate("#panel img, #panel b").count() == 0
    assert tab.page.evaluate("window.pwned") is None


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_table_is_accessible_and_fits_a_phone(page, browser, theme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    with page.tab(browser, viewport={"width": 390, "height": 844}) as tab:
        tab.open(f"?__theme={theme}")
        tab.push(VALUE)
        tab.locate(".totals-what").first.click()
        expect(tab.locate(".totals-definition:visible")).to_have_count(1)
        assert tab.page.evaluate("document.documentElement.scrollWidth") <= 390
        options = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]}
        found = axe.run(tab.page, context="#panel", options=options).response["violations"]
        assert not [(one["id"], one["nodes"][0]["html"][:200]) for one in found]
