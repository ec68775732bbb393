"""A run as a table, one row per engine and step, for spreadsheets and scripts."""

from __future__ import annotations

import csv
import io
import math
import re

from app.race import Moved
from app.recording import Recording

COLUMNS = (
    "engine", "step", "kind", "clock_s", "draft_ms", "search_ms", "verify_ms", "rest_ms", "drafted",
    "accepted", "emitted", "tau_so_far", "tokens_per_second_so_far", "token_ids", "text",
)  # fmt: skip

# What makes a spreadsheet compute: one of these first in a cell, perhaps after spaces and quotes.
# Its cells are not always ours: in half of Europe they are split at semicolons.
_FORMULA = "=+\\-@＝＋－＠"
_AT_START = re.compile(rf"[\s\"']*[{_FORMULA}\t\r]")
_AFTER_SPLIT = re.compile(rf"([;\t\r\n\"][\s\"']*)(?=[{_FORMULA}])")


def steps_csv(recording: Recording) -> str:
    """The run's steps as CSV (RFC 4180) with a header row, engine by engine.

    Seconds and milliseconds are the engine's own; an unknown figure is an empty cell. A text that a
    spreadsheet could take for a formula has an apostrophe put before it.
    """
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(COLUMNS)
    moves = [event for event in recording.events if isinstance(event, Moved)]
    for engine in dict.fromkeys(move.engine for move in moves):
        writer.writerows(_row(move) for move in moves if move.engine == engine)
    return out.getvalue()


def _row(move: Moved) -> list[str | int | float]:
    step, seconds = move.step, move.step.seconds
    stages = (seconds.draft, seconds.search, seconds.verify, seconds.rest)
    return [
        move.engine,
        step.index,
        step.kind,
        round(move.clock, 6),
        *(round(1000 * stage, 3) for stage in stages),
        step.drafted,
        step.accepted,
        len(step.tokens),
        _figure(move.tau),
        _figure(move.tokens_per_second),
        " ".join(map(str, step.tokens)),
        text_cell("".join(move.pieces)),
    ]


def _figure(value: float) -> float | str:
    return round(value, 4) if math.isfinite(value) else ""


def text_cell(text: str) -> str:
    """A text that no spreadsheet computes."""
    text = _AFTER_SPLIT.sub(r"\1'", text)
    return f"'{text}" if _AT_START.match(text) else text
