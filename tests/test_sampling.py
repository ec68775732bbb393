"""The sampling rule: transformers' filters, noise by position, and the target's own law under any
tree.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from dart_core.errors import ArenaError
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
    """The filtered distribution by transformers' own warpers: the oracle."""
    scores = TemperatureLogitsWarper(params.temperature)(None, logits[None].float())
    if params.top_k:
        scores = TopKLogitsWarper(params.top_k)(None, scores)
    if 0 < params.top_p < 1:
        scores = TopPLogitsWarper(params.top_p)(None, scores)
    return scores[0].softmax(-1)


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
    counts = first_draws(params, LAW.log(), 10_000)
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
    assert pair_pvalue(verified_pairs(8_000, our_rule)) > SIGNIFICANCE
    assert pair_pvalue(verified_pairs(8_000, wrong_rule)) < 1e-12


def test_speculation_and_plain_decoding_share_one_noise_stream():
    """Same seed, same position, same token: the tree's draw is the plain draw, pair by pair."""

    def plain(tree, logits, sampler):
        return [sampler.draw(logits[0], 10)]

    assert np.array_equal(verified_pairs(500, our_rule), verified_pairs(500, plain))


def test_top_k_with_a_drafter_that_has_another_favourite():
    """Case: one draft by the arg-max of another law, top-k 3. The target's renormalised top 3 must
    come out.
    """
    params = [SamplingParams(1.0, top_k=3, seed=seed) for seed in range(10_000)]
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
