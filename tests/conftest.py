"""The order of the files, the tests' threads, and what may be skipped: GPU tests without a GPU; in
CI nothing else.
"""

from __future__ import annotations

import os
import signal
from collections import Counter

import pytest

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as in dart_core/__main__.py; before torch
# A shell's `&` switches Ctrl-C off for all it starts; programs that tests interrupt would not end.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

LONG = {"slow": 100, "browser": 10}  # a test's share of its file's weight; others have 1


def pytest_configure(config):
    if hasattr(config, "workerinput"):  # one of several, each with a core of its own
        import torch

        torch.set_num_threads(1)


def pytest_collection_modifyitems(items):
    _longest_files_first(items)
    needing_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if needing_gpu:
        import torch

        if not torch.cuda.is_available():
            for item in needing_gpu:
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))


def _longest_files_first(items):
    """A worker takes a file at a time: a long one that begins last would leave the others idle."""
    weight = Counter()
    for item in items:
        marks = [LONG[mark.name] for mark in item.iter_markers() if mark.name in LONG]
        weight[item.path] += max(marks, default=1)
    items.sort(key=lambda item: -weight[item.path])


def _fail_skip_in_ci(report):
    if os.environ.get("CI") == "true" and report.outcome == "skipped":
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"CI=true allows no skip but for want of a GPU. {reason}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    if item.get_closest_marker("gpu") or hasattr(report, "wasxfail"):
        return report
    return _fail_skip_in_ci(report)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report():
    return _fail_skip_in_ci((yield))


@pytest.fixture(scope="module")
def browser():
    """A real Chromium; only tests that import ``browsing``, which skips without one, ask for it."""
    from browsing import CHROMIUM, CHROMIUM_ARGS, playwright

    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_ARGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def site():
    """(arena, url) of a module's page, see ``pages.scripted_site``; some modules have their own."""
    from pages import scripted_site

    with scripted_site() as found:
        yield found


@pytest.fixture
def visit(browser, site):
    """Opens tabs on the page of a module's ``site``, see ``pages.visitors``."""
    from pages import visitors

    with visitors(browser, site[1]) as opened:
        yield opened
