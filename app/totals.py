"""The table of totals: one row per figure, each with its definition."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dart_core.metrics import DEFINITIONS

DEFINITIONS_HERE = {
    "of_ideal": "Speedup ÷ τ. With drafts for free and a verify step no dearer than one plain "
    "step the speedup would be τ, so this is the share of the ideal that was reached.",
    "step": "Mean milliseconds of a verify step on the engine's own clock.",
    "draft": "Mean milliseconds of a step in the draft head.",
    "search": "Mean milliseconds of a step in building the tree: search and pruning.",
    "verify": "Mean milliseconds of a step in the target's forward pass over the tree.",
    "rest": "Mean milliseconds of a step in everything else: accepting, committing, stop rules.",
}


def rows_of(
    metrics: Sequence[Mapping[str, Any]], plain: Sequence[bool], baseline: float | None
) -> list[dict]:
    """Rows for the engines' metrics (see ``dart_core.metrics``).

    plain: which of them is plain decoding, for which drafting's figures mean nothing. baseline:
    plain decoding's tokens per second, None where it was not measured.
    """

    def row(name: str, label: str, cells: list[str], worse: list[bool] | None = None) -> dict:
        definition = DEFINITIONS_HERE.get(name) or DEFINITIONS[name]
        marks = worse or [False] * len(cells)
        return {
            "name": name,
            "label": label,
            "definition": definition,
            "cells": cells,
            "worse": marks,
        }

    def each(value: Callable[[Mapping], float | None], shown: str, unit: str = "") -> list[str]:
        return [_cell(value(m), shown, unit) for m in metrics]

    def drafting(value: Callable[[Mapping], float | None], shown: str, unit: str = "") -> list[str]:
        cells = each(value, shown, unit)
        return ["–" if is_plain else cell for cell, is_plain in zip(cells, plain, strict=True)]

    def rate(m: Mapping) -> float | None:
        return m["tokens_per_second"]

    def speedup(m: Mapping) -> float | None:
        fast = rate(m)
        return fast / baseline if fast and baseline else None

    def of_ideal(m: Mapping) -> float | None:
        faster = speedup(m)
        return faster / m["tau"] if faster and m["tau"] else None

    def drafts(name: str) -> Callable[[Mapping], float | None]:
        return lambda m: m["speculative_decoding"][name]

    def mean_ms(stage: str) -> Callable[[Mapping], float | None]:
        def mean(m: Mapping) -> float | None:
            stages = m["stage_seconds"]
            seconds = m["decode_seconds"] if stage == "step" else stages[stage]
            return 1000 * seconds / m["verify_steps"] if m["verify_steps"] else None

        return mean

    slower = [
        not is_plain and (speedup(m) or 1) < 1 for m, is_plain in zip(metrics, plain, strict=True)
    ]
    return [
        row("tokens_per_second", "tokens / s", each(rate, ".1f")),
        row("speedup", "× plain decoding", drafting(speedup, ".2f", "×"), slower),
        row("tau", "τ, tokens / step", each(lambda m: m["tau"], ".2f")),
        row("of_ideal", "speedup ÷ τ", drafting(of_ideal, ".2f")),
        row("new_tokens", "new tokens", each(lambda m: m["new_tokens"], "d")),
        row("verify_steps", "verify steps", each(lambda m: m["verify_steps"], "d")),
        row(
            "speculative_decoding.num_draft_tokens",
            "drafted",
            drafting(drafts("num_draft_tokens"), "d"),
        ),
        row(
            "speculative_decoding.num_accepted_draft_tokens",
            "accepted",
            drafting(drafts("num_accepted_draft_tokens"), "d"),
        ),
        row(
            "time_to_first_token",
            "prefill",
            each(lambda m: _times(m["time_to_first_token"]), ".0f", " ms"),
        ),
        row("decode_seconds", "decoding", each(lambda m: m["decode_seconds"], ".2f", " s")),
        row("step", "a step", each(mean_ms("step"), ".2f", " ms")),
        *(
            row(
                stage,
                f"… {stage}",
                (drafting if stage in ("draft", "search") else each)(mean_ms(stage), ".2f", " ms"),
            )
            for stage in ("draft", "search", "verify", "rest")
        ),
    ]


def _times(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds


def _cell(value: float | None, shown: str, unit: str) -> str:
    return "–" if value is None else f"{value:{shown}}{unit}"
