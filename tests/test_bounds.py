"""The lower bounds of what is installed exclude the versions whose holes we would be open to."""

from __future__ import annotations

import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

PROJECT = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
WANTED = {wanted.name: wanted for wanted in map(Requirement, PROJECT["dependencies"])}


@pytest.mark.parametrize(
    ("name", "last", "first", "hole"),
    [
        ("torch", "2.5.1", "2.6.0", "CVE-2025-32434: weights-only loading ran code"),
        ("transformers", "5.2.0", "5.24.0", "CVE-2026-4372: a config.json ran code"),
        ("transformers", "5.8.0", "5.24.0", "CVE-2026-9856: files written elsewhere"),
        ("accelerate", "1.11.0", "1.12.0", "CVE-2025-14925: a checkpoint ran code"),
        ("filelock", "3.20.2", "3.20.3", "CVE-2025-68146, CVE-2026-22701: links followed"),
        ("gradio", "6.15.2", "6.31.0", "CVE-2026-28416 and others: files read, addresses fetched"),
        ("starlette", "0.49.0", "1.3.1", "CVE-2025-62727: a Range header of quadratic cost"),
        ("starlette", "1.3.0", "1.3.1", "CVE-2026-54283: a form without limits"),
        ("python-multipart", "0.0.26", "0.0.27", "CVE-2026-42561: headers without end"),
        ("h11", "0.14.0", "0.16.0", "CVE-2025-43859: requests hidden in others"),
    ],
)
def test_no_version_with_a_known_hole_is_asked_for(name, last, first, hole):
    wanted = WANTED[name].specifier
    assert last not in wanted, f"{name} {last}: {hole}"
    assert first in wanted


@pytest.mark.parametrize("name", WANTED)
def test_what_is_installed_is_what_is_asked_for(name):
    assert version(name).partition("+")[0] in WANTED[name].specifier
