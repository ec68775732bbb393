"""The page in a real Chromium: runs as files, saved, loaded and shown again."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from browsing import WAIT, expect, until
from pages import MARKUP, STORY, Script, Visitor, served
from recorded import TEXT, recording

from app.race import Moved
from app.recording import Recording

pytestmark = pytest.mark.browser


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
        tab.close()


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
        alone.page.locator("#speed input").click()
        alone.page.get_by_role("option", name="¼ ×").click()  # or it may be over before Stop
        alone.page.locator("#replay").click()
        alone.expect_state("dart", "running")
        alone.page.locator("#stop").click()
        alone.expect_state("dart", "stopped")
        assert not alone.troubles
        alone.close()
