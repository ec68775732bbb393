"""The page in a real Chromium: its settings, its links, the presenter's mode."""

from __future__ import annotations

import re
from urllib.parse import quote

import pytest
from browsing import expect
from pages import MARKUP, STORY

pytestmark = pytest.mark.browser


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
    tab.on("request", lambda request: asked.append(request.url))
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
