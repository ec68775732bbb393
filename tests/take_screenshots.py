"""The README's screenshots: the page replaying a shipped recording, in a real Chromium.

    python tests/take_screenshots.py [--recording NAME]

Writes assets/screenshots/{light,dark,phone,presenter}.png.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from browsing import CHROMIUM, CHROMIUM_ARGS, Tab, expect, free_port, playwright

from app.arena import Arena
from app.page import build_page
from app.serve import close, launch

ASSETS = Path(__file__).parent.parent / "assets"
DESKTOP = {"width": 1440, "height": 1000}
SHOTS = {
    # name: (how the page is opened, viewport, screenshot of the whole page)
    "light": ("?__theme=light", DESKTOP, True),
    "dark": ("?__theme=dark", DESKTOP, True),
    "phone": ("?__theme=light", {"width": 390, "height": 844}, False),
    "presenter": ("#presenter=1", {"width": 1600, "height": 900}, False),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--recording", metavar="NAME", help="file name; default: the first")
    args = parser.parse_args()
    arena = Arena()
    page = build_page(arena, recordings=ASSETS / "recordings")
    port = free_port()
    launch(page, host="127.0.0.1", port=port)
    folder = ASSETS / "screenshots"
    folder.mkdir(exist_ok=True)
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_ARGS)
        for name, (query, viewport, whole) in SHOTS.items():
            tab = Tab(browser, f"http://127.0.0.1:{port}/", ready=".lane-title", viewport=viewport)
            tab.open(query)
            tab.page.reload()
            tab.page.wait_for_selector("#replay")
            tab.page.locator("#speed input").click()
            tab.page.get_by_role("option", name="at once").click()
            if args.recording:
                tab.page.locator("#recorded input").click()
                tab.page.get_by_role("option").filter(has_text=args.recording).first.click()
            tab.page.locator("#replay").click()
            for engine in ("dart", "eagle3"):
                lane = tab.page.locator(f".lane[data-engine={engine}]")
                expect(lane).to_have_attribute("data-state", "done")
            expect(tab.page.locator(".tree-view svg").first).to_be_attached()
            tab.wait(  # charts are drawn one after the other
                "Array.from(document.querySelectorAll('#charts .plot'))"
                ".every(plot => plot.data?.some(trace => trace.x.length))"
            )
            tab.page.wait_for_timeout(1000)  # their last redraw
            if not whole:
                tab.page.locator("#panels").evaluate("node => node.scrollIntoView()")
            tab.page.screenshot(path=folder / f"{name}.png", full_page=whole)
            print(folder / f"{name}.png")
            tab.close()
        browser.close()
    close(page)
    os._exit(0)


if __name__ == "__main__":
    main()
