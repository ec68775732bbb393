"""Figures by hand: cut tokens and the prefill's token never count in τ or speed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from dart_core.metrics import (
    DEFINITIONS,
    Tally,
    chosen_sizes,
    sizes_in_words,
    speedup,
    summarize,
)
from dart_core.tree import DraftTree


@dataclass
class Seconds:
    draft: float = 0.0
    search: float = 0.0
    verify: float = 0.0
    rest: float = 0.0

    @property
    def total(self) -> float:
        return self.draft + self.search + self.verify + self.rest


def prefill(seconds: float = 0.5, tokens=(9,)):
    return SimpleNamespace(
        kind="prefill",
        tokens=tokens,
        drafted=0,
        accepted=0,
        tree=None,
        seconds=Seconds(verify=seconds),
    )


def verify(tokens: int, accepted: int, drafted: int, seconds: Seconds | None = None):
    chain = DraftTree.of(range(drafted + 1), range(-1, drafted))
    return SimpleNamespace(
        kind="verify",
        tokens=tuple(range(tokens)),
        drafted=drafted,
        accepted=accepted,
        tree=chain,
        seconds=seconds or Seconds(verify=0.1),
    )


def test_tau_is_not_counted_past_the_end():
    """Rounds of 4 and 2 tokens, then five matching drafts whose third is the end token."""
    steps = [prefill(), verify(4, 3, 5), verify(2, 1, 5), verify(3, 3, 5)]
    metrics = summarize(steps)
    assert metrics["tau"] == 3.0
    assert metrics["new_tokens"] == sum(len(step.tokens) for step in steps) == 10
    assert metrics["tokens_per_second"] == pytest.approx(9 / 0.3)
    assert metrics["time_to_first_token"] == 0.5
    assert metrics["total_seconds"] == pytest.approx(0.8)
    assert metrics["speculative_decoding"] == {
        "mean_acceptance_length": 1 + 7 / 3,
        "draft_acceptance_rate": 7 / 15,
        "acceptance_histogram": {1: 1, 3: 2},
        "per_position_acceptance": [1.0, 2 / 3, 2 / 3, 0.0, 0.0],
        "num_spec_steps": 3,
        "num_accepted_draft_tokens": 7,
        "num_draft_tokens": 15,
        "num_spec_tokens": 5,
    }


def test_plain_decoding_has_tau_one():
    metrics = summarize([prefill(), *[verify(1, 0, 0) for _ in range(7)]])
    assert metrics["tau"] == 1.0
    assert metrics["verify_steps"] == 7
    assert metrics["speculative_decoding"]["draft_acceptance_rate"] is None
    assert metrics["speculative_decoding"]["mean_acceptance_length"] == 1.0
    assert metrics["speculative_decoding"]["per_position_acceptance"] == []


def test_undefined_figures_are_none():
    for steps in ([], [prefill()]):
        metrics = summarize(steps)
        assert metrics["tau"] is None
        assert metrics["tokens_per_second"] is None
        assert metrics["decode_seconds"] == 0
    assert summarize([])["time_to_first_token"] is None
    assert summarize([prefill()])["new_tokens"] == 1


def test_stages_sum_to_the_decode_seconds():
    stages = Seconds(draft=0.1, search=0.02, verify=0.3, rest=0.01)
    metrics = summarize([prefill(), verify(2, 1, 3, stages), verify(1, 0, 3, stages)])
    assert metrics["stage_seconds"]["draft"] == pytest.approx(0.2)
    assert sum(metrics["stage_seconds"].values()) == metrics["decode_seconds"]
    assert metrics["decode_seconds"] == pytest.approx(2 * stages.total)


def test_tally_follows_a_run_and_adds_runs_up():
    run = [prefill(0.2), verify(2, 1, 3)]
    tally = Tally()
    for count, step in enumerate(run, 1):
        tally.add(step)
        assert tally.summary() == summarize(run[:count])
    both = summarize([*run, prefill(0.4), verify(4, 3, 3)])
    assert both["time_to_first_token"] == pytest.approx(0.3)
    assert both["tau"] == 3.0


def test_speedup_names_its_baseline():
    fast, slow = {"tokens_per_second": 30.0}, {"tokens_per_second": 10.0}
    assert speedup(fast, slow, "ar of this run") == {"value": 3.0, "baseline": "ar of this run"}
    assert speedup(fast, {"tokens_per_second": None}, "ar") is None


def test_every_figure_is_defined_and_fits_json():
    metrics = summarize([prefill(), verify(4, 3, 5)])
    speculative = metrics["speculative_decoding"]
    json.dumps(metrics, allow_nan=False)
    names = {*metrics, *(f"speculative_decoding.{name}" for name in speculative)}
    assert names - {"speculative_decoding"} | {"speedup"} == set(DEFINITIONS)


def chosen(drafted: int, tokens: int, *, asked: int, cost: float, expected: float):
    step = verify(tokens, tokens - 1, drafted)
    step.choice = SimpleNamespace(asked=asked, cost=cost, expected=expected)
    return step


def test_sizes_that_were_chosen_and_what_came_of_them():
    fixed = [prefill(), verify(1, 0, 4)]
    for step in fixed:
        step.choice = None
    assert chosen_sizes(fixed) is None
    steps = [
        *fixed,
        chosen(6, 4, asked=8, cost=1.5, expected=3.0),
        chosen(0, 1, asked=0, cost=1.0, expected=1.0),
        chosen(1, 2, asked=2, cost=1.1, expected=1.4),
    ]
    sizes = chosen_sizes(steps)
    assert sizes == {
        "steps": 3,
        "mean": pytest.approx(7 / 3),
        "smallest": 0,
        "largest": 6,
        "cost": pytest.approx(1.2),
        "expected": pytest.approx(1.8),
        "emitted": pytest.approx(7 / 3),
        "rested": 1,
    }
    assert sizes_in_words(sizes) == (
        "auto: 2.3 drafts a step (0 to 6), for verify passes of 1.20 × a plain one's time and "
        "1.80 tokens expected; 2.33 came; drafting rested in 1 of 3 steps, as it did not pay"
    )
    assert sizes_in_words(sizes | {"rested": 0}).endswith("2.33 came")
