"""The page as it is served: behind a proxy, from the command line, with the demo's models."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from browsing import expect, free_port
from pages import STORY, Script, Visitor, served
from proxy import behind_prefix

from app.race import Moved
from dart_core.presets import DEMO_ASSETS

pytestmark = pytest.mark.browser

ROOT = Path(__file__).parent.parent


def test_health_and_own_files(site):
    with urlopen(site[1] + "healthz") as answer:
        assert json.load(answer) == {"status": "ready"}
    with urlopen(site[1] + "arena-assets/plotly.min.js") as answer:
        assert "javascript" in answer.headers["content-type"]
    for other in ("widgetbundle.js", "templates/plotly.json"):
        with pytest.raises(HTTPError):
            urlopen(site[1] + "arena-assets/" + other)
    with pytest.raises(HTTPError):  # Gradio's page of who used what
        urlopen(site[1] + "monitoring")


def test_all_works_behind_a_proxy_that_strips_its_prefix(browser):
    with served(Script().engine(), root_path="/arena") as (_, url):
        assert urlopen(url + "healthz").status == 200
        with behind_prefix(url, "/arena") as outside:
            tab = Visitor(browser, outside)  # any request beside the prefix is a trouble
            tab.finish("race")
            tab.expect_text("dart", STORY)
            tab.lane("dart", ".tok.d").first.click()  # its tree is asked for
            svg = tab.page.locator(".tree-view[data-engine=dart] svg")
            expect(svg).to_have_attribute("data-step", "1")
            tab.wait("document.getElementById('chart-race').data?.[1].x.length > 3")
            assert not tab.troubles
            tab.close()


def test_a_taken_port_is_said_before_anything_is_loaded():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-m", "app", "--preset", "demo", "--server-port", str(port)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"error: port {port} on 127.0.0.1 is taken; stop what uses it or choose another with "
        "--server-port"
    ]
    assert done.stdout == ""


@pytest.mark.slow
@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_app_cleanly(signum, code):
    if not (DEMO_ASSETS / "dart").is_dir():
        pytest.skip("the demo's heads are not in this checkout")
    port = free_port()
    command = [sys.executable, "-m", "app", "--preset", "demo", "--server-port", str(port)]
    app = subprocess.Popen(
        [*command, "--no-warmup"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert app.stdout.readline() == f"Running on http://localhost:{port}\n"
        app.send_signal(signum)
        out, err = app.communicate(timeout=60)
    finally:
        app.kill()
    assert app.returncode == code
    assert "closing the page" in out
    assert "Traceback" not in err


@pytest.mark.slow
def test_the_demo_races_losslessly(browser):
    if not (DEMO_ASSETS / "dart").is_dir():
        pytest.skip("the demo's heads are not in this checkout")
    import torch

    from dart_core.engine import Engine

    engine = Engine.load("demo", dtype=torch.float32, progress=lambda line: None)
    with served(engine, max_length=512) as (arena, url):
        tab = Visitor(browser, url)
        tab.settings()
        tab.page.locator("#knob-max-new-tokens input").fill("48")
        tab.page.get_by_label("Keep pruned candidates").check()
        tab.finish("Name three fruits and say what colour each of them is.")
        text = tab.text("dart")
        assert len(text) > 20
        tab.expect_text("eagle3", text)

        events = next(reversed(arena._visits.values())).view.events
        order = [event.engine for event in events if isinstance(event, Moved)]
        switches = sum(a != b for a, b in pairwise(order))
        assert switches > 4
        steps = [e.step for e in events if isinstance(e, Moved) and e.engine == "dart"]
        tab.wait("n => document.getElementById('chart-accepted').data[0].y.length === n",
                 len(steps) - 1)  # fmt: skip
        view = tab.page.locator(".tree-view[data-engine=dart]")
        expect(view.locator(".badge")).to_have_text("native pruner")
        last = steps[-1]
        expect(view.locator(".node:not(.pruned)")).to_have_count(
            len(last.tree) + (last.bonus is not None)
        )
        tab.page.locator("#tree-pruned").check()
        expect(view.locator(".node.pruned").first).to_be_attached()
        tab.finish("And which one is the largest?", button="#follow")
        expect(tab.lane("dart")).to_contain_text("Name three fruits")
        tab.expect_text("eagle3", tab.text("dart"))
        assert not tab.troubles
        tab.close()


if os.environ.get("CI") == "true":

    def test_ci_has_a_demo():
        assert (DEMO_ASSETS / "dart").is_dir(), "CI must run the demo's test"
