"""The page in a real Chromium: conversations, and texts that stay what the engines wrote."""

from __future__ import annotations

import pytest
from browsing import expect
from pages import MARKDOWN, MARKUP, SPLIT, STORY

pytestmark = pytest.mark.browser


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
