"""A finished run as plain JSON data, and as lines for people."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dart_core.errors import ArenaError
from dart_core.names import told_facts
from dart_core.tree import DraftTree

if TYPE_CHECKING:
    from dart_core.engine import Engine, Generation, GenerationSettings
    from dart_core.step import Step

STAGES = ("draft", "search", "verify", "rest")


def run_record(run: Generation) -> dict[str, Any]:
    """One run: ids of prompt and answer (new tokens only), text, metrics, steps and more."""
    return {
        "engine": run.engine,
        "prompt_ids": list(run.prompt_ids),
        "output_ids": list(run.output_ids),
        "text": run.text,
        "finish_reason": run.finish_reason,
        "seed": run.steps[0].seed,
        "metrics": run.metrics,
        "steps": [step_record(step) for step in run.steps],
    }


def step_record(step: Step) -> dict[str, Any]:
    """One step. ``tree.path``: accepted nodes, root first. Seconds are this step's alone."""
    seconds = {stage: getattr(step.seconds, stage) for stage in STAGES}
    return {
        "index": step.index,
        "kind": step.kind,
        "emitted": list(step.tokens),
        "drafted": step.drafted,
        "accepted": step.accepted,
        "backend": step.backend,
        "seconds": {**seconds, "total": step.seconds.total},
        "choice": step.choice and asdict(step.choice),
        "tree": None if step.tree is None else _tree_record(step.tree, step.path),
    }


def _tree_record(tree: DraftTree, path: Sequence[int]) -> dict[str, Any]:
    return {
        "tokens": tree.tokens.tolist(),
        "parents": tree.parents.tolist(),
        "scores": [_figure(score) for score in tree.scores.tolist()],
        "path": list(path),
    }


def _figure(value: float) -> float | None:
    """float32 in its own seven digits; JSON knows no NaN or infinity."""
    return float(f"{value:.7g}") if math.isfinite(value) else None


def provenance(engine: Engine, settings: GenerationSettings) -> dict[str, Any]:
    """What the figures were measured with: settings, device, dtype, versions, models; no folder of
    this machine.
    """
    return {"settings": settings_record(settings), **told_facts(engine.facts)}


def settings_record(settings: GenerationSettings) -> dict[str, Any]:
    record = asdict(settings)
    record["eos_token_ids"] = sorted(settings.eos_token_ids)
    return record


def write_json(data: Mapping[str, Any], destination: str) -> None:
    """Write to a file, whole or not at all; to a device or pipe; or to stdout for "-"."""
    # A terminal's or a pipe's encoding may hold ASCII only.
    plain = destination == "-"
    text = json.dumps(data, ensure_ascii=plain, allow_nan=False, default=str) + "\n"
    if destination == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    path = Path(destination)
    try:
        if path.exists() and not path.is_file():
            # Replacing /dev/null by a file would be a bad surprise.
            path.write_text(text, encoding="utf-8", errors="backslashreplace")
            return
        path = path.resolve()  # the file that a link names is replaced, not the link
        partial = _partial(path)
        # Text from a command line or a JSON escape may hold half characters: JSON escapes again.
        partial.write_text(text, encoding="utf-8", errors="backslashreplace")
        os.replace(partial, path)
    except OSError as error:
        raise ArenaError(f"cannot write {path}: {error.strerror or error}") from error


def check_destination(
    destination: str | None,
    flag: str = "--json",
    apart_from: Mapping[str, Sequence[str | Path] | None] | None = None,
) -> None:
    """Raises ArenaError where the file ``destination`` could not be written, or is one of
    ``apart_from``, files by what they are: better now than after the run.
    """
    if destination is None or destination == "-":
        return
    if not destination:
        raise ArenaError(f'{flag} "": expected the name of a file')
    path = Path(destination)
    try:
        if path.is_dir():
            raise ArenaError(f"{flag} {destination}: this is a folder; give a file in it")
        if path.exists() and not path.is_file():  # opening a pipe would wait for its reader
            if not os.access(path, os.W_OK):
                raise ArenaError(f"{flag} {destination}: no right to write to it; choose another")
            return
        for what, files in (apart_from or {}).items():
            if any(_same_file(path, Path(file)) for file in files or ()):
                raise ArenaError(
                    f"{flag} {destination} is {what} itself: give one of them another name"
                )
        partial = _partial(path.resolve())
        if not partial.parent.exists():
            raise ArenaError(f"{flag} {destination}: no folder {partial.parent}")
        # Rights tell not all: nobody makes a file in /proc, or on a disk that is read-only.
        left_over = partial.exists()
        partial.open("a").close()
        if not left_over:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise ArenaError(
            f"{flag} {destination}: no file can be written there ({error.strerror or error}); "
            "choose another place"
        ) from error


def _same_file(path: Path, other: Path) -> bool:
    if path.exists() and other.exists():
        return path.samefile(other)
    return path.resolve() == other.resolve()


def _partial(path: Path) -> Path:
    """Where a file is written until it is whole."""
    return path.with_name(path.name + ".partial")


def figures(metrics: Mapping[str, Any]) -> str:
    """One line of a run's main figures."""
    return (
        f"{metrics['new_tokens']} tokens in {metrics['verify_steps']} steps, "
        f"τ {number(metrics['tau'])}, {number(metrics['tokens_per_second'])} tok/s, "
        f"first token {number(metrics['time_to_first_token'])} s"
    )


def number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned: the first and last to the left, figures to the right."""
    lines = [list(header), *map(list, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    last = len(header) - 1
    aligned = (
        "  ".join(
            cell.ljust(width) if column in (0, last) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
    return "\n".join(aligned)
