"""What a user should know about how it runs: said once, at loading or after the answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dart_core._native import choose_backend
from dart_core.drafters import Drafter
from dart_core.drafters.dart import DartDrafter

SHORT_ANSWER = 20  # tokens: below it, prefill and the first steps are most of the time


def loading_notices(drafters: Mapping[str, Drafter]) -> list[str]:
    """What makes the loaded engines slower, or accept less, than they could."""
    dart = drafters.get("dart")
    if not isinstance(dart, DartDrafter):
        return []
    lines = []
    if choose_backend(None) == "twin":
        lines.append(
            "slow tree construction: the native extension is missing, so DART searches with its "
            "Python twin, some fifty times slower; with a C++20 compiler, build it: "
            "pip install -e . (launch/*.sh do)"
        )
    if not dart.ngrams:
        lines.append(
            "no n-gram: DART drafts from its head alone, with a lower acceptance length; "
            "--ngram-model-name-or-path gives it one"
        )
    elif next(iter(dart.ngrams)) == "small":
        lines.append(
            "the small n-gram is in use: quick to load, but acceptance (τ) is lower than with the "
            "full one; for benchmarks and production: --ngram full"
        )
    return lines


def short_answers(metrics: Iterable[Mapping[str, Any]]) -> str | None:
    """A line where every answer is too short for a speedup to show."""
    longest = max((figures.get("new_tokens", 0) for figures in metrics), default=0)
    if not 0 < longest < SHORT_ANSWER:
        return None
    return (
        f"{longest} new tokens at most: answers under about {SHORT_ANSWER} show no speedup, for "
        "the first step drafts nothing; judge it by answers of 128 tokens or more"
    )
