"""The page in a real Chromium: two visitors, or two runs of one; one waits or gives way."""

from __future__ import annotations

import re
import threading

import pytest
from browsing import expect
from pages import STORY
from recorded import TEXT, recording

pytestmark = pytest.mark.browser


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


@pytest.mark.parametrize("how", ["button", "key"])
def test_stop_while_waiting_leaves_the_queue(visit, site, how):
    engine = site[0].engine
    first, second = visit(), visit()
    first.running("endless")
    second.run("race")
    expect(second.page.locator("#status")).to_contain_text("queue")
    opened = len(engine.opened)
    if how == "key":
        second.page.keyboard.press("Escape")
    else:
        second.page.locator("#stop").click()
    expect(second.page.locator(".arena-status")).to_contain_text("before it began")
    first.wait(  # goes on, undisturbed
        "document.querySelectorAll('.lane[data-engine=dart] .tok').length > 9"
    )
    first.page.locator("#stop").click()
    first.expect_state("dart", "stopped")
    second.finish("race")
    assert len(engine.opened) == opened + 2  # the run that was left never started


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


def test_a_new_run_takes_the_place_of_a_replay(visit, site, tmp_path):
    recording(TEXT * 40).save(tmp_path / "run.json.gz")
    tab = visit()
    tab.page.locator("#replays button").first.click()
    tab.load(tmp_path / "run.json.gz")
    expect(tab.page.locator(".arena-status")).to_contain_text("Replaying")
    tab.running("endless", settle=False)  # the replay goes on for a minute
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
