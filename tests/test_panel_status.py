"""The status line alone: the sentence, and the run as files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from browsing import expect
from panels import served_panel

from app.panels import status_line

pytestmark = pytest.mark.browser

IDLE = {"run": "", "running": False, "text": "Nothing has run."}
DONE = {"run": "r1", "running": False, "text": "Done: <b>DART</b> 12.0 tokens per second."}
KEPT = {
    ("r1", "json"): '{"prompt": "é <b>"}',
    ("r1", "csv"): "engine,step\r\ndart,0\r\n",
    ("large", "json"): '{"prompt": "é","candidates_left_out":12,"trees_cut":3,\n"events":[]}\n',
    ("text", "json"): '{"prompt":"é",\n"events":["\\"candidates_left_out\\":7"]}\n',
}
SAVE, CSV, TEXT = ".arena-save", ".arena-csv", ".arena-status"


@pytest.fixture(scope="module")
def site():
    def record_of(run: str, kind: str) -> str:
        if run == "broken":
            raise RuntimeError("no")
        return KEPT.get((run, kind), "")

    with served_panel(
        lambda: status_line(IDLE, record_of=record_of, elem_id="panel"), TEXT
    ) as page:
        yield page


def saved(tab, selector: str, path: Path) -> str:
    with tab.page.expect_download() as download:
        tab.locate(selector).click()
    download.value.save_as(path)
    return path.read_bytes().decode()


def test_a_run_can_be_saved_once_it_is_over(site, browser):
    with site.tab(browser) as tab:
        expect(tab.locate(TEXT)).to_have_text(IDLE["text"])
        expect(tab.locate(SAVE)).to_be_hidden()
        expect(tab.locate(CSV)).to_be_hidden()
        tab.push({**DONE, "running": True})
        expect(tab.locate(TEXT)).to_have_text(DONE["text"])
        expect(tab.locate("body")).to_have_class(re.compile("arena-running"))
        expect(tab.locate(SAVE)).to_be_hidden()
        tab.push(DONE)
        expect(tab.locate("body")).not_to_have_class(re.compile("arena-running"))
        expect(tab.locate(SAVE)).to_be_visible()
        expect(tab.locate(SAVE)).to_have_attribute("data-run", "r1")
        expect(tab.locate(CSV)).to_be_visible()
        tab.push(IDLE)
        expect(tab.locate(SAVE)).to_be_hidden()


def test_both_files_hold_what_the_server_says(site, browser, tmp_path):
    with site.tab(browser) as tab:
        tab.push(DONE)
        expect(tab.locate(SAVE)).to_have_text("Download run (JSON)")
        expect(tab.locate(CSV)).to_have_text("Download steps (CSV)")
        assert saved(tab, SAVE, tmp_path / "run.json") == KEPT["r1", "json"]
        assert saved(tab, CSV, tmp_path / "steps.csv") == KEPT["r1", "csv"]


def test_a_file_without_all_candidates_says_so(site, browser, tmp_path):
    with site.tab(browser) as tab:
        tab.push({**DONE, "run": "text"})
        expect(tab.locate(SAVE)).to_have_attribute("data-run", "text")
        saved(tab, SAVE, tmp_path / "run.json")
        expect(tab.locate(TEXT)).to_have_text(DONE["text"])
        tab.push({**DONE, "run": "large"})
        expect(tab.locate(SAVE)).to_have_attribute("data-run", "large")
        assert saved(tab, SAVE, tmp_path / "run.json") == KEPT["large", "json"]
        for said in ("without the pruned candidates of 12 steps", "not accepted of 3 steps"):
            expect(tab.locate(TEXT)).to_contain_text(said)


@pytest.mark.parametrize("run", ["forgotten", "broken"])
def test_a_run_that_is_gone_is_told(site, browser, run):
    with site.tab(browser) as tab:
        tab.push({**DONE, "run": run})
        expect(tab.locate(CSV)).to_be_visible()
        tab.locate(CSV).click()
        expect(tab.locate(TEXT)).to_have_text("The server no longer keeps this run.")


def test_the_buttons_work_by_keyboard_and_the_sentence_is_said_politely(site, browser):
    with site.tab(browser) as tab:
        tab.push(DONE)
        expect(tab.locate(SAVE)).to_be_visible()
        tab.locate(SAVE).focus()
        with tab.page.expect_download() as download:
            tab.page.keyboard.press("Enter")
        assert download.value.suggested_filename == "dart-arena-run.json"
        expect(tab.locate(TEXT)).to_have_attribute("aria-live", "polite")
