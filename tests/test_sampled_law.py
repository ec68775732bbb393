"""Whole engines sample the target's law: real trees, drafts and caches, judged token by token."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from laws import SIGNIFICANCE, warped
from models import head_config, output, random_head, run, tiny_target
from scipy.stats import chi2, chisquare

from dart_core.drafters import DraftSettings
from dart_core.drafters.dart import DartDrafter
from dart_core.drafters.eagle3 import Eagle3Drafter
from dart_core.heads import DartHead, Eagle3Head
from dart_core.sampling import Sampler, SamplingParams
from dart_core.tree import DraftTree


@cache
def small_world():
    """A tiny target of eight tokens, and drafters whose trees it accepts about half of."""
    target = tiny_target(vocab_size=8, num_hidden_layers=2, initializer_range=0.15)
    config = head_config(target, draft_length=3, draft_vocab_size=8)
    config = replace(config, aux_layers=(0, 1, 1))
    dart = random_head(DartHead, config, seed=1)
    eagle3 = random_head(Eagle3Head, replace(config, draft_length=None), seed=1)
    return target, {
        "dart": DartDrafter(dart, {}, target.embed),
        "eagle3": Eagle3Drafter(eagle3, target.embed),
    }


def places_in_the_law(name: str, params: SamplingParams, count: int) -> np.ndarray:
    """Where each token of one sampled text lies in the target's own law at its place, and the law's
    share of the tokens that were drafted there: [count, 2].

    The first are uniform in (0, 1) and independent if and only if the engine samples from that
    law; NaN is a token that the filters leave out.

    The law is transformers' forward pass over the finished text, filtered by its warpers. Tokens
    that were drafted there come first in the cumulative law, so that a rule that favours or shuns
    drafts shows; the place inside the token's own interval is drawn.
    """
    target, drafters = small_world()
    steps = run(
        target,
        drafters[name],
        [1, 2, 3],
        sampling=params,
        max_new_tokens=count,
        settings=DraftSettings(tree_budget=16, beam=6, eagle3_depth=2, eagle3_top_k=4),
    )
    assert sum(step.accepted for step in steps) > count / 8
    tokens = output(steps)
    with torch.inference_mode():
        logits = target.model(torch.tensor([[1, 2, 3, *tokens]]), use_cache=False).logits[0, 2:-1]
    laws = warped(logits, params).double().numpy()
    drafted = [set()]  # by place: the prefill's token follows no draft
    for step in steps[1:]:
        for node in step.path[: len(step.tokens)]:
            drafted.append(set(step.tree.tokens[step.tree.parents == node].tolist()))
    generator = np.random.default_rng(params.seed)
    rows = []
    for token, law, known in zip(tokens, laws, drafted, strict=True):
        order = sorted(range(len(law)), key=lambda each: (each not in known, -law[each]))
        below = law[order[: order.index(token)]].sum()
        place = (below + generator.uniform() * law[token]) / law.sum()
        share = law[list(known)].sum() / law.sum()
        rows.append((place if law[token] else np.nan, share))
    return np.array(rows)


def least_pvalue(name: str, filters: dict) -> float:
    """Of three temperatures, each by itself and all together; and of how often drafts are hit."""
    rows = [
        places_in_the_law(name, SamplingParams(temperature, seed=seed, **filters), 100)
        for seed, temperature in enumerate((0.3, 1.0, 1.5))
    ]
    rows.append(np.concatenate(rows))
    places, shares = rows[-1].T
    if np.isnan(places).any():
        return 0.0
    excess = (places < shares).sum() - shares.sum()
    hits = chi2.sf(excess**2 / (shares * (1 - shares)).sum(), 1)
    return min(hits, *(chisquare(np.histogram(r[:, 0], 10, (0, 1))[0]).pvalue for r in rows))


@pytest.mark.parametrize(
    "filters",
    [{"top_k": 4}, {"top_p": 0.8}, {"top_k": 5, "top_p": 0.9}],
    ids=["top-k", "top-p", "both"],
)
@pytest.mark.parametrize("name", ["dart", "eagle3"])
def test_whole_engines_sample_the_targets_law(name, filters):
    """Text of real trees, real drafts and real caches, against transformers' law of each token."""
    assert least_pvalue(name, filters) > SIGNIFICANCE


@pytest.mark.parametrize("name", ["dart", "eagle3"])
def test_a_rule_that_favours_drafts_is_found(monkeypatch, name):
    """Where the draw hits no draft, this rule draws once more before it gives the drafts up."""
    drawer, accept = Sampler.drawer, DraftTree.accept

    def two_drawers(sampler, *where):
        other = Sampler(replace(sampler.params, seed=sampler.params.seed + 1))
        return drawer(sampler, *where), drawer(other, *where)

    def favouring(tree, draws):
        def draw(node):
            token = draws[0](node)
            missed = token not in tree.tokens[tree.parents == node]
            return draws[1](node) if missed else token

        return accept(tree, draw)

    monkeypatch.setattr(Sampler, "drawer", two_drawers)
    monkeypatch.setattr(DraftTree, "accept", favouring)
    assert least_pvalue(name, {"top_k": 5}) < SIGNIFICANCE


def test_filters_in_another_order_are_found(monkeypatch):
    """Top-p before temperature, as some do it: another law at any temperature but 1."""

    def top_p_first(logits, params):
        kept = warped(logits, replace(params, temperature=1.0)) > 0
        return logits.float().masked_fill(~kept, -torch.inf) / params.temperature, None

    monkeypatch.setattr("dart_core.sampling.process_logits", top_p_first)
    assert least_pvalue("dart", {"top_p": 0.8}) < SIGNIFICANCE
