"""The sampling rule: transformers' filters, noise by position, and the target's own law under any
tree.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from models import head_config, output, random_head, run, tiny_target
from scipy.stats import chi2, chisquare
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from dart_core.drafters import DraftSettings
from dart_core.drafters.dart import DartDrafter
from dart_core.drafters.eagle3 import Eagle3Drafter
from dart_core.errors import ArenaError
from dart_core.heads import DartHead, Eagle3Head
from dart_core.sampling import (
    GREEDY_TEMPERATURE,
    Sampler,
    SamplingParams,
    greedy_tokens,
    gumbel_noise,
    process_logits,
)
from dart_core.tree import DraftTree

SIGNIFICANCE = 1e-4
LAW = torch.tensor([0.30, 0.25, 0.15, 0.10, 0.08, 0.06, 0.04, 0.02])


def warped(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """The filtered distribution [..., V] by transformers' own warpers: the oracle."""
    scores = logits.reshape(-1, logits.shape[-1]).float()
    scores = TemperatureLogitsWarper(params.temperature)(None, scores)
    if params.top_k:
        scores = TopKLogitsWarper(params.top_k)(None, scores)
    if 0 < params.top_p < 1:
        scores = TopPLogitsWarper(params.top_p)(None, scores)
    return scores.view(logits.shape).softmax(-1)


def ours(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    scores, ids = process_logits(logits, params)
    law = torch.zeros(len(logits))
    law[slice(None) if ids is None else ids] = scores.softmax(-1)
    return law


@pytest.mark.parametrize("top_k", [0, 1, 3, 50, 1000])
@pytest.mark.parametrize("top_p", [0.0, 0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.5])
def test_filters_are_those_of_transformers(temperature, top_k, top_p):
    params = SamplingParams(temperature, top_k, top_p)
    for seed in range(5):
        logits = torch.randn(200, generator=torch.Generator().manual_seed(seed)) * 3
        torch.testing.assert_close(ours(logits, params), warped(logits, params))


def test_top_k_keeps_ties_with_the_kth():
    logits = torch.tensor([1.0, 3.0, 2.0, 2.0, 0.0])
    params = SamplingParams(1.0, top_k=2)
    torch.testing.assert_close(ours(logits, params), warped(logits, params))
    assert (ours(logits, params) > 0).tolist() == [False, True, True, True, False]


def test_noise_is_finite_uniform_and_depends_on_all_of_its_key():
    tokens = torch.arange(200_000)
    noise = gumbel_noise(7, 11, tokens)
    assert torch.isfinite(noise).all()
    uniform = torch.exp(-torch.exp(-noise)).numpy()
    counts, _ = np.histogram(uniform, bins=100, range=(0, 1))
    assert chisquare(counts).pvalue > SIGNIFICANCE
    assert torch.equal(noise, gumbel_noise(7, 11, tokens))
    assert torch.equal(noise[[5, 17]], gumbel_noise(7, 11, torch.tensor([5, 17])))
    assert not torch.equal(noise, gumbel_noise(8, 11, tokens))
    assert not torch.equal(noise, gumbel_noise(7, 12, tokens))
    other = gumbel_noise(7, 12, tokens)
    assert abs(np.corrcoef(noise.numpy(), other.numpy())[0, 1]) < 0.02


def first_draws(params: SamplingParams, logits: torch.Tensor, count: int) -> np.ndarray:
    """How often each token is drawn, over ``count`` positions of one noise stream."""
    sampler = Sampler(params)
    drawn = [sampler.draw(logits, position) for position in range(count)]
    return np.bincount(drawn, minlength=len(logits))


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.5])
@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (3, 1.0), (0, 0.8), (5, 0.7)])
def test_draws_follow_the_filtered_law(temperature, top_k, top_p):
    params = SamplingParams(temperature, top_k, top_p, seed=1)
    expected = warped(LAW.log(), params).double().numpy()
    counts = first_draws(params, LAW.log(), 2_500)
    alive = expected > 0
    assert counts[~alive].sum() == 0
    if alive.sum() > 1:
        law = expected[alive] / expected[alive].sum()
        assert chisquare(counts[alive], law * counts.sum()).pvalue > SIGNIFICANCE


def verified_pairs(count: int, accept) -> np.ndarray:
    """Two-token outputs of a one-step verify over a fixed tree, for ``count`` seeds, by an
    acceptance function.

    The target's law at the second token depends on the first, so that taking a draft when it should
    not shows.
    """
    size = len(LAW)
    rows = torch.stack([torch.roll(LAW, shift) for shift in range(size)]).log()
    tree = DraftTree.of([0, 1, 2, 5, 3], [-1, 0, 0, 1, 2])  # 0 -> {1 -> 5, 2 -> 3}
    logits = torch.stack([rows[token] for token in tree.tokens])
    counts = np.zeros((size, size), dtype=int)
    for seed in range(count):
        sampler = Sampler(SamplingParams(1.0, seed=seed))
        emitted = accept(tree, logits, sampler)
        while len(emitted) < 2:  # the loop's next step: plain decoding from the last token
            emitted.append(sampler.draw(rows[emitted[-1]], 10 + len(emitted)))
        counts[emitted[0], emitted[1]] += 1
    return counts


def our_rule(tree, logits, sampler) -> list[int]:
    path, bonus = tree.accept(sampler.drawer(logits, 9, tree.depths()))
    return [*tree.tokens[path[1:]].tolist(), bonus]


def wrong_rule(tree, logits, sampler) -> list[int]:
    """Takes the first child whenever the target gives it at least half of its best token's
    probability.
    """
    emitted, node = [], 0
    while True:
        children = np.flatnonzero(tree.parents == node)
        best = logits[node].max()
        good = [c for c in children if logits[node, tree.tokens[c]] > best - np.log(2)]
        if not good:
            return [*emitted, sampler.draw(logits[node], 10 + len(emitted))]
        node = int(good[0])
        emitted.append(int(tree.tokens[node]))


def pair_pvalue(counts: np.ndarray) -> float:
    rows = torch.stack([torch.roll(LAW, shift) for shift in range(len(LAW))])
    expected = (rows[0][:, None] * rows).double().numpy().ravel()
    return chisquare(counts.ravel(), expected / expected.sum() * counts.sum()).pvalue


def test_acceptance_is_exact_and_the_test_has_power():
    assert pair_pvalue(verified_pairs(3_000, our_rule)) > SIGNIFICANCE
    assert pair_pvalue(verified_pairs(3_000, wrong_rule)) < 1e-12


def test_speculation_and_plain_decoding_share_one_noise_stream():
    """Same seed, same position, same token: the tree's draw is the plain draw, pair by pair."""

    def plain(tree, logits, sampler):
        return [sampler.draw(logits[0], 10)]

    assert np.array_equal(verified_pairs(500, our_rule), verified_pairs(500, plain))


def test_top_k_with_a_drafter_that_has_another_favourite():
    """Case: one draft by the arg-max of another law, top-k 3. The target's renormalised top 3 must
    come out.
    """
    params = [SamplingParams(1.0, top_k=3, seed=seed) for seed in range(4_000)]
    tree = DraftTree.of([0, 2], [-1, 0])
    logits = LAW.log().expand(2, -1)
    counts = np.zeros(len(LAW), dtype=int)
    for each in params:
        path, bonus = tree.accept(Sampler(each).drawer(logits, 0, tree.depths()))
        counts[int(tree.tokens[path[1]]) if len(path) > 1 else bonus] += 1
    expected = LAW[:3].double().numpy() / LAW[:3].sum().item()
    sigma = np.sqrt(expected * (1 - expected) * len(params))
    assert (np.abs(counts[:3] - expected * len(params)) < 4 * sigma).all()
    assert counts[3:].sum() == 0


# Whole engines


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_greedy_takes_the_lowest_of_equal_maxima(dtype):
    logits = torch.zeros(3, 600, dtype=dtype)
    logits[0, [599, 17, 300]] = 2.0
    logits[1, [18, 17]] = 1.0
    assert greedy_tokens(logits).tolist() == [17, 17, 0]


@pytest.mark.parametrize("temperature", [0.0, 1e-8, 1e-6, 1e-5, 1e-4])
def test_temperatures_near_zero_neither_overflow_nor_leave_the_greedy_token(temperature):
    logits = torch.tensor([60_000.0, 59_990.0, -60_000.0]).half()
    params = SamplingParams(temperature, seed=None if temperature < GREEDY_TEMPERATURE else 0)
    assert params.greedy == (temperature < GREEDY_TEMPERATURE)
    assert Sampler(params).draw(logits, 3) == 0


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(1.0, seed=0)])
def test_logits_that_are_not_finite_are_an_error_not_a_token(params):
    with pytest.raises(ArenaError, match="not finite"):
        Sampler(params).draw(torch.tensor([0.0, float("nan"), 1.0]), 0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("top_k", -1),
        ("top_p", 1.5),
        ("seed", -1),
        ("seed", 1.5),
        ("temperature", "0.7"),
        ("top_k", 2.0),
        ("top_p", None),
    ],
)
def test_values_out_of_range_are_named(field, value):
    with pytest.raises(ArenaError, match=str(value).replace(".", r"\.")):
        SamplingParams(**{field: value})
