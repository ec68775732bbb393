"""Near-ties at the top of the logits: equal in fp32, told apart from bugs in bf16, lowest id when
exact.
"""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from models import autoregressive, output, random_trees, run, tiny_model

from dart_core.check import compare
from dart_core.drafters import DraftSettings
from dart_core.drafters.autoregressive import AutoregressiveDrafter
from dart_core.sampling import SamplingParams
from dart_core.target import Target

PROMPTS = 80
BUDGET = 6


def target_with_twins(dtype: torch.dtype, *, exact: bool) -> Target:
    """Output rows 17 and 18 are equal, or one bf16 step apart in one weight, and often the best."""
    model = tiny_model(tie_word_embeddings=False)
    with torch.no_grad():
        rows = model.lm_head.weight
        rows[17] = rows.mean(0) + 3 * rows[17]
        rows.copy_(rows.bfloat16().float())
        rows[18] = rows[17]
        if not exact:
            step = torch.finfo(torch.bfloat16).eps
            rows[18, 5] = (rows[17, 5] * (1 + step)).bfloat16().float()
            assert rows[18, 5] != rows[17, 5]
    return Target(model.to(dtype))


def verdicts(target: Target) -> tuple[Counter, list[int]]:
    counts, tokens = Counter(), []
    for seed in range(PROMPTS):
        prompt = [(seed * 31 + i * 7) % 500 for i in range(3)]
        plain = run(target, AutoregressiveDrafter(), prompt, max_new_tokens=BUDGET)
        trees = random_trees(output(plain), seed, 40, target.vocab_size)
        steps = run(
            target,
            trees,
            prompt,
            max_new_tokens=BUDGET,
            settings=DraftSettings(tree_budget=40),
        )
        verdict = compare(target, prompt, plain, steps, SamplingParams())
        if verdict.status != "equal":
            assert verdict.position is not None
            assert None not in (verdict.gap, verdict.difference, verdict.bound)
        counts[verdict.status] += 1
        tokens += output(steps)
    return counts, tokens


@pytest.mark.slow
def test_distinct_logits_in_fp32_never_diverge():
    counts, tokens = verdicts(target_with_twins(torch.float32, exact=False))
    assert counts == {"equal": PROMPTS}
    assert {17, 18} & set(tokens)  # the near-tie did stand at the top


@pytest.mark.slow
def test_bf16_divergences_are_ties_with_figures():
    counts, _ = verdicts(target_with_twins(torch.bfloat16, exact=False))
    assert counts["DIFFERENT"] == 0
    assert counts["equal"] + counts["tie"] == PROMPTS


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_exact_tie_goes_to_the_lowest_id_on_both_paths(dtype):
    target = target_with_twins(dtype, exact=True)
    plain, drafted = [], []
    for seed in range(40):
        prompt = [seed, seed + 100, seed + 200]
        plain += autoregressive(target, prompt, max_new_tokens=BUDGET)
        trees = random_trees(plain[-BUDGET:], seed, 20, target.vocab_size)
        drafted += output(run(target, trees, prompt, max_new_tokens=BUDGET))
    assert 17 in plain and 17 in drafted
    assert 18 not in plain and 18 not in drafted
