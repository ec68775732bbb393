"""The sampling rule: transformers' filters, noise by position, and the target's own law under any
tree. Whole engines are in test_sampled_law.py.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from laws import SIGNIFICANCE, warped
from scipy.stats import chisquare

from dart_core.errors import ArenaError
from dart_core.sampling import (
    GREEDY_TEMPERATURE,
    Sampler,
    SamplingParams,
    _signed,
    first_maxima,
    greedy_tokens,
    gumbel_noise,
    process_logits,
)
from dart_core.tree import DraftTree

LAW = torch.tensor([0.30, 0.25, 0.15, 0.10, 0.08, 0.06, 0.04, 0.02])


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


@pytest.mark.parametrize("params", [SamplingParams(1.0), SamplingParams(1.0, top_k=5)])
def test_filters_that_are_off_leave_out_nothing(params):
    """Not even what has no probability at all; then there are no ids to look up."""
    scores, ids = process_logits(torch.tensor([0.0, -1e4, 1.0, -torch.inf, 2.0]), params)
    assert len(scores) == 5
    assert ids is None


@pytest.mark.parametrize(
    ("logits", "top_p"), [([0.0, 0.0], 0.5), ([0.0, 1.0, 0.5], 1e-9), ([3.0, 0.0, 3.0, 1.0], 0.2)]
)
def test_the_nucleus_ends_where_that_of_transformers_does(logits, top_p):
    """Shares that add up to it exactly; and less than any token has."""
    logits, params = torch.tensor(logits), SamplingParams(1.0, top_p=top_p)
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


def splitmix64(value: int) -> int:
    """The finaliser on unsigned 64-bit integers, as published (Steele, Lea, Flood 2014)."""
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    value = (value ^ value >> 27) * 0x94D049BB133111EB % 2**64
    return value ^ value >> 31


def test_a_key_wraps_as_int64_does():
    for value, wrapped in (
        (0, 0), (2**63 - 1, 2**63 - 1), (2**63, -(2**63)), (2**64 - 1, -1), (2**64 + 5, 5),
    ):  # fmt: skip
        assert _signed(value) == wrapped


def test_noise_is_splitmix64_of_seed_position_and_token():
    """Bit by bit: a text sampled with a seed stays what it was, whatever version samples it."""
    weyl = 0x9E3779B97F4A7C15
    tokens = [0, 1, 2, 31_999, 151_935, 2**31]
    for seed in (0, 1, 7, 2**31, 2**63 - 1):
        for position in (0, 1, 5, 4_095, 131_072):
            key = splitmix64((splitmix64((seed + weyl) % 2**64) + position * weyl) % 2**64)
            mixed = [splitmix64((token * weyl + key) % 2**64) for token in tokens]
            uniform = torch.tensor([((n >> 12) + 0.5) / 2**52 for n in mixed], dtype=torch.float64)
            noise = gumbel_noise(seed, position, torch.tensor(tokens))
            assert torch.equal(noise, -torch.log(-torch.log(uniform)))


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_greedy_takes_the_lowest_of_equal_maxima(dtype):
    logits = torch.zeros(3, 600, dtype=dtype)
    logits[0, [599, 17, 300]] = 2.0
    logits[1, [18, 17]] = 1.0
    assert greedy_tokens(logits).tolist() == [17, 17, 0]


def test_a_device_draws_the_lowest_of_equals_and_says_what_is_not_finite():
    logits = torch.randint(-3, 4, (50, 99)).float()
    assert torch.equal(first_maxima(logits), greedy_tokens(logits))
    for bad in (torch.nan, torch.inf):
        logits[7, 3] = bad
        assert first_maxima(logits)[7] == 99 > first_maxima(logits)[8]
    assert first_maxima(torch.full((1, 5), -torch.inf)).tolist() == [5]


def test_a_device_that_found_no_finite_maximum_is_an_error():
    """It says so by a token beyond the vocabulary; the host does not look at its logits."""
    logits = torch.empty(4, 9, device="meta")
    assert Sampler._checked(8, logits, 3, 3) == 8
    with pytest.raises(ArenaError, match="row 3"):
        Sampler._checked(9, logits, 3, 3)


@pytest.mark.parametrize("temperature", [0.0, 1e-8, 1e-6, 1e-5, 1e-4])
def test_temperatures_near_zero_neither_overflow_nor_leave_the_greedy_token(temperature):
    logits = torch.tensor([60_000.0, 59_990.0, -60_000.0]).half()
    params = SamplingParams(temperature, seed=None if temperature < GREEDY_TEMPERATURE else 0)
    assert params.greedy == (temperature < GREEDY_TEMPERATURE)
    assert Sampler(params).draw(logits, 3) == 0


@pytest.mark.parametrize(
    ("params", "row"), [(SamplingParams(), 0), (SamplingParams(1.0, seed=0), 6)]
)
def test_logits_that_are_not_finite_are_an_error_not_a_token(params, row):
    """It names the row: the node of a tree, or the position that is drawn."""
    bad = torch.tensor([0.0, float("nan"), 1.0])
    with pytest.raises(ArenaError, match=rf"not finite \(row {row}\)"):
        Sampler(params).draw(bad, 6)
    draw = Sampler(params).drawer(torch.stack([torch.zeros(3), bad]), 4, [0, 1])
    with pytest.raises(ArenaError, match=rf"not finite \(row {row or 1}\)"):
        draw(1)
    assert draw(0) in range(3)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 100.1),
        ("temperature", float("nan")),
        ("top_k", -1),
        ("top_p", 1.001),
        ("top_p", -0.001),
        ("seed", -1),
        ("seed", 2**63),
        ("seed", 1.5),
        ("temperature", "0.7"),
        ("top_k", 2.0),
        ("top_p", None),
    ],
)
def test_values_out_of_range_are_named(field, value):
    with pytest.raises(ArenaError, match=str(value).replace(".", r"\.")):
        SamplingParams(**{field: value})


def test_the_ends_of_every_range_are_taken():
    assert SamplingParams() == SamplingParams(0.0, 0, 1.0, None)
    for params in (SamplingParams(100.0, 1, 0.0, 2**63 - 1), SamplingParams(0.0, 0, 1.0, 0)):
        Sampler(params)
    for value in (0.0, 1e-6, 0.99, 1.0):
        assert SamplingParams(top_p=value).top_p == value


def test_only_a_sampling_run_needs_a_seed():
    Sampler(SamplingParams())
    Sampler(SamplingParams(seed=5))
    Sampler(SamplingParams(1.0, seed=5))
    with pytest.raises(ValueError, match="seed"):
        Sampler(SamplingParams(1.0))
