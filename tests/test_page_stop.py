"""The page in a real Chromium: runs stopped, left or cleared, and the device free again."""

from __future__ import annotations

import re
import threading

import pytest
from browsing import expect, until
from pages import STORY

pytestmark = pytest.mark.browser


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
    tab.on("response", lambda answer: answer.ok or failures.append(answer.url))
    for _ in range(5):
        tab.running("endless")
        for _ in range(4):
            tab.page.locator("#stop").click()
        tab.expect_state("dart", "stopped")
    tab.finish("race")
    assert not failures


def test_stop_before_the_first_token(visit, site, monkeypatch):
    arena = site[0]
    began, go, stream = threading.Event(), threading.Event(), arena.engine.stream

    def slow(*args, **options):
        began.set()
        go.wait(60)  # the prefill, which nothing interrupts
        yield from stream(*args, **options)

    tab = visit()
    monkeypatch.setattr(arena.engine, "stream", slow)
    tab.run("race")
    assert began.wait(60)
    expect(tab.page.locator("body")).to_have_class(re.compile("arena-running"))
    tab.page.locator("#stop").click()
    until(next(reversed(arena._visits.values()))._run.stop.is_set)
    go.set()
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
    tab.settings()
    tab.page.locator("#prompt textarea").press("Control+Enter")
    tab.wait("document.querySelectorAll('.lane[data-engine=dart] .tok').length > 3")
    tab.page.locator("#knob-third input").click()
    expect(tab.page.get_by_role("listbox")).to_be_visible()
    tab.page.keyboard.press("Escape")  # the list's
    expect(tab.page.get_by_role("listbox")).to_have_count(0)
    tab.wait("document.querySelectorAll('.lane[data-engine=dart] .tok').length > 30")
    tab.expect_state("dart", "running")
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


def test_clear_in_mid_run_stays_clear(visit, site):
    engine = site[0].engine
    tab = visit()
    tab.on("dialog", lambda dialog: dialog.accept())
    for _ in range(4):
        engine.closed.clear()
        tab.running("endless")
        tab.page.locator("#clear").click()
        tab.expect_state("dart", "idle")
        until(lambda: sorted(engine.closed) == ["dart", "eagle3"])
        tab.page.wait_for_timeout(500)  # whatever the run still had to say would be there by now
        assert tab.text("dart") == ""
        expect(tab.lane("dart")).to_have_attribute("data-state", "idle")
