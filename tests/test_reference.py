"""The reference in assets/reference says what the code says, whoever asks for it and where."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import make_reference
import pytest
from make_reference import COMMAND, FILES, FOLDER, outdated

import dart_core
from app.__main__ import build_parser as app_parser
from dart_core.cli import build_parser


def test_the_reference_is_what_the_code_says():
    assert not outdated(), f"assets/reference is not what the code says: run {COMMAND}"


def test_what_changed_is_found(tmp_path, monkeypatch):
    for name in FILES:
        (tmp_path / name).write_text((FOLDER / name).read_text(encoding="utf-8"), encoding="utf-8")
    assert outdated(tmp_path) == []
    (tmp_path / "python.md").unlink()
    assert outdated(tmp_path) == ["python.md"]

    def changed() -> argparse.ArgumentParser:
        parser = app_parser()
        parser.add_argument("--new-flag", help="of which nobody has heard")
        return parser

    monkeypatch.setattr(make_reference, "app_parser", changed)
    assert outdated(tmp_path) == list(FILES)
    assert "of which nobody has heard" in make_reference.command_lines()


def test_it_is_the_same_for_everyone(monkeypatch):
    """Neither the terminal nor the environment nor this machine shows in it."""
    for name, value in (
        ("COLUMNS", "40"),
        ("GRADIO_SERVER_PORT", "1234"),
        ("GRADIO_SHARE", "true"),
        ("GRADIO_ROOT_PATH", "/prefix"),
        ("DART_ARENA_CACHE", "/elsewhere"),
    ):
        monkeypatch.setenv(name, value)
    assert not outdated()
    for name in FILES:
        text = (FOLDER / name).read_text(encoding="utf-8")
        assert str(make_reference.ROOT) not in text and str(Path.home()) not in text
        assert " at 0x" not in text and "<function" not in text


def flags(parser: argparse.ArgumentParser) -> set[str]:
    """All flags of a parser and its commands, but for help."""
    found = set()
    for action in parser._actions:
        found |= set(action.option_strings)
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                found |= flags(each)
    return found - {"-h", "--help"}


@pytest.mark.parametrize("command", [None, "generate", "api", "batch", "bench", "ngram", "train"])
def test_every_flag_is_there_with_its_own_line(command):
    text = (FOLDER / "command-lines.md").read_text(encoding="utf-8")
    told = set(re.findall(r"^(?:--[\w-]+, )?(--[\w-]+)", text, re.MULTILINE))
    told |= set(re.findall(r"^(--[\w-]+)", text, re.MULTILINE))
    wanted = flags(app_parser() if command is None else build_parser(command))
    assert wanted and wanted <= told


def test_every_public_name_is_there():
    text = (FOLDER / "python.md").read_text(encoding="utf-8")
    for name in dart_core._HOMES:
        assert f"\n### {name}\n" in text
    for call in ("DartModel.from_pretrained", "DartModel._dart_generate", "Engine.load"):
        assert f"\n{call}(\n" in text or f"\n{call}(input_ids" in text


def test_links_lead_to_headings():
    for name in FILES:
        text = (FOLDER / name).read_text(encoding="utf-8")
        titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
        links = re.findall(r"\]\(#([^)]+)\)", text)
        assert links and set(links) <= set(map(make_reference._anchor, titles))
        assert len(set(titles)) == len(titles), "two headings of one name: links find the first"
