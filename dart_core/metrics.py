"""Acceptance and speed: one definition for every engine, the command line and the page.

Sources: τ (tau) as in the EAGLE papers, restricted to what was really emitted; the names under
``speculative_decoding`` are those of vLLM's per-request acceptance metrics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dart_core.step import Step

# Shown in the page and the docs, so that no number stands without its meaning.
DEFINITIONS: dict[str, str] = {
    "tau": "Tokens emitted by verify steps ÷ verify steps. The bonus token counts. The first "
    "token, emitted by the prefill, and tokens cut by an end token, a stop string or the budget do "
    "not. Plain decoding has τ = 1.",
    "verify_steps": "Forward passes of the target after the prefill.",
    "new_tokens": "Tokens of the answer, the first one included.",
    "tokens_per_second": "Decoding speed: tokens emitted by verify steps ÷ their seconds on the "
    "engine's own clock. The prefill is left out.",
    "time_to_first_token": "Seconds of the prefill step, which emits the first token. Over several "
    "prompts: the mean.",
    "decode_seconds": "Seconds of all verify steps, on the engine's own clock.",
    "total_seconds": "Seconds of prefill and verify steps, on the engine's own clock.",
    "stage_seconds": "Decode seconds by stage: draft (the draft head), search (building the tree), "
    "verify (the target's forward pass) and the rest.",
    "speedup": "Decoding speed ÷ that of plain decoding, measured in the same run on the same "
    "prompts.",
    "speculative_decoding.mean_acceptance_length": "1 + accepted draft tokens ÷ verify steps. "
    "Differs from τ only where the last step was cut.",
    "speculative_decoding.draft_acceptance_rate": "Accepted draft tokens ÷ draft tokens. A tree "
    "drafts many tokens of which one path can be accepted, so this is low by design.",
    "speculative_decoding.acceptance_histogram": "How many verify steps accepted 0, 1, 2, … draft "
    "tokens. The bonus token is left out.",
    "speculative_decoding.per_position_acceptance": "For the 1st, 2nd, … draft token of a step: "
    "the share of verify steps that accepted it.",
    "speculative_decoding.num_spec_steps": "Verify steps.",
    "speculative_decoding.num_accepted_draft_tokens": "Draft tokens accepted and emitted.",
    "speculative_decoding.num_draft_tokens": "Nodes of all draft trees, the roots not counted.",
    "speculative_decoding.num_spec_tokens": "The most draft tokens one step could have accepted: "
    "the depth of the deepest draft tree.",
}


class Tally:
    """Metrics that follow a run step by step; several runs may be added up in one."""

    def __init__(self) -> None:
        self._prefills = 0
        self._prefill_seconds = 0.0
        self._prefill_tokens = 0
        self._steps = 0
        self._tokens = 0
        self._drafted = 0
        self._deepest = 0
        self._accepted: Counter[int] = Counter()
        self._stages = dict.fromkeys(("draft", "search", "verify", "rest"), 0.0)

    def add(self, step: Step) -> None:
        """Take the next ``Step``."""
        if step.kind == "prefill":
            self._prefills += 1
            self._prefill_seconds += step.seconds.total
            self._prefill_tokens += len(step.tokens)
            return
        self._steps += 1
        self._tokens += len(step.tokens)
        self._drafted += step.drafted
        self._accepted[step.accepted] += 1
        if step.drafted:
            assert step.tree is not None
            self._deepest = max(self._deepest, int(step.tree.depths().max()))
        for stage in self._stages:
            self._stages[stage] += getattr(step.seconds, stage)

    def summary(self) -> dict:
        """The metrics so far, ready for JSON; None where a figure has no meaning yet."""
        decode_seconds = sum(self._stages.values())
        accepted = sum(count * steps for count, steps in self._accepted.items())
        return {
            "tau": _ratio(self._tokens, self._steps),
            "verify_steps": self._steps,
            "new_tokens": self._prefill_tokens + self._tokens,
            "tokens_per_second": _ratio(self._tokens, decode_seconds),
            "time_to_first_token": _ratio(self._prefill_seconds, self._prefills),
            "decode_seconds": decode_seconds,
            "total_seconds": self._prefill_seconds + decode_seconds,
            "stage_seconds": dict(self._stages),
            "speculative_decoding": {
                "mean_acceptance_length": _ratio(self._steps + accepted, self._steps),
                "draft_acceptance_rate": _ratio(accepted, self._drafted),
                "acceptance_histogram": dict(sorted(self._accepted.items())),
                "per_position_acceptance": [
                    self._reached(position) / self._steps
                    for position in range(1, self._deepest + 1)
                ],
                "num_spec_steps": self._steps,
                "num_accepted_draft_tokens": accepted,
                "num_draft_tokens": self._drafted,
                "num_spec_tokens": self._deepest,
            },
        }

    def _reached(self, position: int) -> int:
        return sum(steps for count, steps in self._accepted.items() if count >= position)


def summarize(steps: Iterable) -> dict:
    """Metrics of one run, or of several runs' steps in a row. Definitions: ``DEFINITIONS``."""
    tally = Tally()
    for step in steps:
        tally.add(step)
    return tally.summary()


def chosen_sizes(steps: Iterable) -> dict | None:
    """What sizes were chosen, and why, over the verify steps whose trees had their sizes chosen;
    None where there is none.

    mean, smallest, largest: drafts verified a step. cost: seconds of a verify pass of these sizes ÷
    those of a plain one, estimated. expected: tokens a step was expected to emit; emitted: what it
    did. rested: steps in which nothing was drafted.
    """
    chosen = [step for step in steps if step.choice is not None]
    if not chosen:
        return None
    sizes = [step.drafted for step in chosen]
    count = len(chosen)
    return {
        "steps": count,
        "mean": sum(sizes) / count,
        "smallest": min(sizes),
        "largest": max(sizes),
        "cost": sum(step.choice.cost for step in chosen) / count,
        "expected": sum(step.choice.expected for step in chosen) / count,
        "emitted": sum(len(step.tokens) for step in chosen) / count,
        "rested": sum(step.choice.asked == 0 for step in chosen),
    }


def sizes_in_words(sizes: Mapping) -> str:
    """``chosen_sizes`` as a sentence."""
    words = (
        f"auto: {sizes['mean']:.1f} drafts a step ({sizes['smallest']} to {sizes['largest']}), for "
        f"verify passes of {sizes['cost']:.2f} × a plain one's time and "
        f"{sizes['expected']:.2f} tokens expected; {sizes['emitted']:.2f} came"
    )
    if sizes["rested"]:
        words += (
            f"; drafting rested in {sizes['rested']} of {sizes['steps']} steps, as it did not pay"
        )
    return words


def speedup(metrics: Mapping, baseline: Mapping, name: str) -> dict | None:
    """{"value", "baseline"}: decoding speed against a named baseline; None where unknown.

    ``name`` says what the baseline is and when it was measured ("ar of this run"), because a
    speedup against anything else than plain decoding on the same machine says nothing.
    """
    own, other = metrics["tokens_per_second"], baseline["tokens_per_second"]
    if not own or not other:
        return None
    return {"value": own / other, "baseline": name}


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
