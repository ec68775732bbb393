"""The page in a real Chromium, for everybody: screen readers, little motion, phones."""

from __future__ import annotations

import re

import pytest
from browsing import expect

pytestmark = pytest.mark.browser


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
    long = "'.arena-status, .lane-note, .lane-details, #arena-facts b'"
    tab.page.evaluate(
        f"document.querySelectorAll({long}).forEach((n) => {{ n.textContent = 'W'.repeat(150); }})"
    )
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= 390
    tab.page.locator("#presenter").click()  # its type is larger
    expect(tab.page.locator("body")).to_have_class(re.compile(r"\bpresenter\b"))
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= 390
