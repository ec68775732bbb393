"""``python -m app.record``: the recorded runs that we ship, made by the demo's models as the page
makes them. launch/record.sh calls it.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.arena import Arena, Ask
from app.controls import checked, controls
from app.replays import SHIPPED, label
from dart_core.errors import ArenaError
from dart_core.prompts import read_prompt_file

PROMPTS = Path(__file__).parent.parent / "assets" / "prompts" / "small.jsonl"
PANELS = {"first": "dart", "second": "eagle3", "third": "ar"}
TREE_BUDGET = 16  # as launch/demo.sh: a CPU pays for larger ones more than they are worth
MAX_LENGTH = 1024


@dataclass(frozen=True, slots=True)
class Shot:
    """One run to record: its file's name, how its prompt begins, and what is not as usual."""

    name: str
    prompt: str
    settings: Mapping[str, Any] = field(default_factory=dict)


SHOTS = (
    Shot("1-steel-ships", "Explain to a ten-year-old"),
    Shot("2-longest-word", "Write a Python function that returns the longest word"),
    Shot("3-bakers-rolls", "A baker sells 24 rolls"),
    Shot("4-second-language-sampled", "Give three reasons", {"temperature": 0.7, "seed": 7}),
    Shot("5-merge-lists-pruned-kept", "Write a Python function that merges", {"candidates": True}),
)


def build_parser() -> argparse.ArgumentParser:
    """The flags."""
    parser = argparse.ArgumentParser(
        prog="python -m app.record", description="Record the runs that launch/replay.sh shows."
    )
    parser.add_argument("--output", type=Path, default=SHIPPED, metavar="FOLDER",
                        help="default: assets/recordings")  # fmt: skip
    parser.add_argument("--max-new-tokens", type=int, default=160, metavar="N",
                        help="of an answer; default: 160")  # fmt: skip
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Record every shot; returns the exit code."""
    args = build_parser().parse_args(arguments)
    try:
        made = {
            "command": f"bash launch/record.sh --max-new-tokens {args.max_new_tokens}",
            "source": _source(),
            "hardware": _hardware(),
        }
        prompts = _prompts()
        arena = _arena()
        try:
            args.output.mkdir(parents=True, exist_ok=True)
            arena.warm_up(_say)
            for shot in SHOTS:
                _record(arena, shot, prompts[shot.name], args, made)
        finally:
            arena.close()
    except (ArenaError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _record(
    arena: Arena, shot: Shot, prompt: str, args: argparse.Namespace, made: dict[str, Any]
) -> None:
    """Run one shot and save it. Raises ArenaError if an engine did not come to its end."""
    table = controls(
        arena.engines,
        max_new_tokens=args.max_new_tokens,
        max_length=arena.max_length,
        tree_budget=TREE_BUDGET,
        auto_budget=False,
        ngrams=arena.ngrams,
        thinks=arena.thinks,
    )
    defaults = {control.name: control.default for control in table}
    settings = checked(table, {**defaults, **PANELS, **shot.settings})
    visit = arena.begin("record", Ask(prompt, settings))
    for _ in visit.paced(0.25):
        pass
    lanes = visit.view.lanes.values()
    recording = arena.recording(visit.view.run)
    if recording is None or visit.failed or any(lane.state != "done" for lane in lanes):
        notes = " ".join(lane.note for lane in lanes)
        raise ArenaError(f"{shot.name} was not recorded: {visit.failed or notes}")
    recording.header["made"] = made
    path = args.output / f"{shot.name}.json.gz"
    recording.save(path)
    _say(f"{path.name}, {path.stat().st_size / 1000:.0f} kB: {label(recording.header)}")
    _say(visit.view.sentence())


def _arena() -> Arena:
    import torch
    from transformers.utils import logging

    from dart_core.engine import Engine

    logging.disable_progress_bar()
    engine = Engine.load("demo", dtype=torch.float32, progress=_say)
    return Arena(engine, max_length=MAX_LENGTH)


def _prompts() -> dict[str, str]:
    """Shot -> its prompt. Raises ArenaError where the prompt file has none that begins so."""
    texts = [prompt.turns[0] for prompt in read_prompt_file(PROMPTS)]
    found = {}
    for shot in SHOTS:
        matches = [text for text in texts if text.startswith(shot.prompt)]
        if len(matches) != 1:
            raise ArenaError(
                f"{len(matches)} prompts of {PROMPTS.name} begin with {shot.prompt!r}, not one"
            )
        found[shot.name] = matches[0]
    return found


def _source() -> str:
    """The commit of this tree, as git names it."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        result = subprocess.run(command, cwd=PROMPTS.parent, capture_output=True, text=True)
    except OSError:
        return "unknown"
    return result.stdout.strip() or "unknown"


def _hardware() -> dict[str, Any]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "machine": platform.machine(),
        "system": platform.system(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory / 2**30, 1),
    }


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
