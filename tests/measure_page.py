"""What the page costs, measured in a real Chromium with a scripted engine and no model; and how
long the demo's page takes to start.

    python tests/measure_page.py [--steps 400] [--rate 30] [--runs 50] [--starts 3]

Prints one Markdown table with the machine and the versions under it. Machines are noisy: compare
rows of one run, and quote them with what stands below the table.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

from browsing import CHROMIUM, CHROMIUM_ARGS, Tab, expect, free_port, playwright, until
from scripted import ScriptedEngine, ScriptedTokenizer, steps_of

from app.arena import Arena
from app.page import build_page
from app.serve import close, launch

WORDS = [" the", " sky", " is", " blue", " because", " light", " scatters", ".", "\n"]
SENTENCE = " the sky is blue because light scatters.\n"
# Counts what the page draws: updates that reach a token panel, and Plotly figures built anew.
WATCH = """() => {
  window.counted = {updates: 0, drawn: 0, built: 0};
  const flow = document.querySelector('.lane[data-engine=dart] .flow');
  new MutationObserver(() => { window.counted.updates += 1; }).observe(
    flow, {childList: true, subtree: true});
  for (const [name, key] of [
    ['newPlot', 'built'], ['react', 'built'], ['extendTraces', 'drawn'],
  ]) {
    const original = Plotly[name];
    Plotly[name] = (...given) => { window.counted[key] += 1; return original(...given); };
  }
}"""


def scripted(steps: int, rate: float) -> ScriptedEngine:
    """Two engines of ``steps`` steps, 4 tokens each, that take 1 / rate seconds each."""
    tokenizer = ScriptedTokenizer(WORDS)
    ids = tokenizer.encode(SENTENCE) * (4 * steps // 9 + 1)
    script = steps_of(ids[: 1 + 4 * steps], [4], seconds=1 / rate, extra=[ids[:6]] * 8)
    # Both take turns on one device, so each sleeps half of its own time.
    return ScriptedEngine({"ar": script[:4], "dart": script, "eagle3": script}, tokenizer, pace=0.5)


def resident() -> float:
    """MiB this process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def state(tab: Tab, engine: str, value: str) -> None:
    expect(tab.page.locator(f".lane[data-engine={engine}]")).to_have_attribute("data-state", value)


def start(tab: Tab) -> None:
    tab.page.locator("#prompt textarea").fill("go")
    tab.page.locator("#run").click()


def one_run(tab: Tab, arena: Arena, steps: int) -> dict[str, str]:
    """A whole run: how far the page lags behind the server, and what it costs."""
    before = set(arena._visits)
    tab.wait("window.Plotly")
    tab.page.evaluate(WATCH)
    start(tab)
    until(lambda: set(arena._visits) - before)
    (run,) = set(arena._visits) - before
    visit = arena._visits[run]
    began, cpu = time.monotonic(), time.process_time()
    until(lambda: visit._run.ended.is_set(), 600)
    ended, used = time.monotonic(), time.process_time() - cpu
    for engine in ("dart", "eagle3"):
        state(tab, engine, "done")
    tab.wait(
        "n => [1, 2].every(i => document.getElementById('chart-race').data[i].x.length === n)",
        steps + 1,
    )
    lag = time.monotonic() - ended
    counted = tab.page.evaluate("window.counted")
    return {
        "run, seconds on the server": f"{ended - began:.1f}",
        "page done after the server's end": f"{lag:.2f} s",
        "updates that reached the page": f"{counted['updates'] / (ended - began):.1f} a second",
        "chart redraws (extendTraces)": str(counted["drawn"]),
        "charts built (four at the start of a run, none within it)": str(counted["built"]),
        "server CPU per step (scripted engine included)": f"{1000 * used / (2 * steps):.2f} ms",
    }


def stops(tab: Tab, engine: ScriptedEngine, times: int = 10) -> str:
    """Seconds from the click on Stop to a free device."""
    seconds = []
    for _ in range(times):
        engine.closed.clear()
        moved = len(engine.moves)
        start(tab)
        until(lambda moved=moved: len(engine.moves) > moved + 8)
        began = time.monotonic()
        tab.page.locator("#stop").click()
        until(lambda: len(engine.closed) == 2)
        seconds.append(time.monotonic() - began)
        state(tab, "dart", "stopped")
    return f"median {statistics.median(seconds):.2f} s, worst {max(seconds):.2f} s of {times}"


def memory(tab: Tab, engine: ScriptedEngine, runs: int) -> str:
    """The server's resident memory after warm-up and after ``runs`` more runs."""
    seen = []
    for _ in range(runs + 25):  # as many runs are kept for their visitors: only then is it full
        engine.closed.clear()
        start(tab)
        until(lambda: len(engine.closed) == 2, 120)
        state(tab, "eagle3", "done")
        seen.append(resident())
    return f"{seen[24]:.0f} MiB after 25 runs, {seen[-1]:.0f} MiB after {runs} more"


def starts(times: int) -> str:
    """Seconds from the command to "Running on": models loaded, verify passes measured, page served.
    Everything has been fetched, and most of it is in memory, after a start that is not counted.
    """
    demo = ["-m", "app", "--preset", "demo", "--compare-eagle3", "--dtype", "float32"]
    seconds = []
    for _ in range(times + 1):
        command = [sys.executable, *demo, "--server-port", str(free_port())]
        began = time.monotonic()
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
            if not any(line.startswith("Running on") for line in started.stdout):
                raise SystemExit("the demo's page did not start; its reason stands above")
            seconds.append(time.monotonic() - began)
            started.send_signal(signal.SIGINT)
            started.communicate()  # what it still has to say
    seconds = seconds[1:]
    return f"median {statistics.median(seconds):.1f} s, worst {max(seconds):.1f} s of {times}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--rate", type=float, default=30, help="steps per second and engine")
    parser.add_argument("--runs", type=int, default=50, help="for the memory's row")
    parser.add_argument("--starts", type=int, default=3, help="of the demo's page; 0: leave out")
    args = parser.parse_args()
    start_row = {"warm start of the demo's page": starts(args.starts)} if args.starts else {}
    engine = scripted(args.steps, args.rate)
    arena = Arena(engine, max_length=30_000)
    arena.warm_up()
    page = build_page(arena, max_new_tokens=20_000)
    port = free_port()
    launch(page, host="127.0.0.1", port=port)
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_ARGS)
        tab = Tab(browser, f"http://127.0.0.1:{port}/", ready=".lane-title")
        rows = one_run(tab, arena, args.steps)
        rows["Stop to a free device"] = stops(tab, engine)
        engine.pace = 0.0
        if args.runs:
            rows["server memory"] = memory(tab, engine, args.runs)
        rows |= start_row
        chromium = browser.version
        browser.close()
    print(f"| 2 engines x {args.rate:g} steps/s, {args.steps} steps each | |\n| --- | --- |")
    for name, value in rows.items():
        print(f"| {name} | {value} |")
    load = os.getloadavg()[0]
    print(
        f"\n{os.cpu_count()} cores ({platform.machine()}), load {load:.1f}, Python "
        f"{platform.python_version()}, gradio {version('gradio')}, plotly {version('plotly')}, "
        f"Chromium {chromium}, headless"
    )
    close(page)
    arena.close()
    os._exit(0)


if __name__ == "__main__":
    main()
