"""``check`` calls equal equal, a rounding tie a tie, and everything else DIFFERENT."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from models import (
    ForcedDrafter,
    autoregressive,
    chain,
    head_config,
    oracle,
    output,
    random_head,
    random_trees,
    run,
    tiny_target,
)

from dart_core.check import (
    ROUNDING,
    Verdict,
    Verdicts,
    _explains,
    _judge,
    compare,
    measure_rounding,
    own_flip,
    replay_row,
)
from dart_core.drafters.autoregressive import AutoregressiveDrafter
from dart_core.drafters.eagle3 import Eagle3Drafter
from dart_core.heads import Eagle3Head
from dart_core.sampling import Sampler, SamplingParams

PROMPT = [5, 9, 23]
GREEDY = SamplingParams()


def twins(target, first: int, second: int) -> None:
    """Two tokens with the same output row: their logits are always equal."""
    weight = target.model.get_output_embeddings().weight
    with torch.no_grad():
        weight[second] = weight[first]


def shake(monkeypatch, target, token: int, amount: float) -> None:
    """Forward passes over trees score ``token`` higher by ``amount``, as other kernels might."""
    forward = target.forward

    def shaken(tokens, *args, **kwargs):
        result = forward(tokens, *args, **kwargs)
        if len(tokens) > 1 and kwargs.get("mask") is not None:
            result.logits[:, token] += amount
        return result

    monkeypatch.setattr(target, "forward", shaken)


def both(target, drafter, sampling=GREEDY, count: int = 30):
    """Steps of plain decoding and of the drafter."""
    options = {"sampling": sampling, "max_new_tokens": count}
    return (
        run(target, AutoregressiveDrafter(), PROMPT, **options),
        run(target, drafter, PROMPT, **options),
    )


@pytest.fixture
def target():
    """A fresh one: the tests bend it."""
    return tiny_target()


@pytest.mark.parametrize("sampling", [GREEDY, SamplingParams(1.0, 50, 0.9, seed=3)])
def test_equal(target, sampling):
    plain = autoregressive(target, PROMPT, sampling=sampling, max_new_tokens=30)
    steps = both(target, random_trees(plain, 1, 12, target.vocab_size), sampling)
    assert compare(target, PROMPT, *steps, sampling).status == "equal"


def planted(monkeypatch, target, amount: float):
    """Twins of which plain decoding takes the lower id; in trees the higher gets ``amount``."""
    drawn = autoregressive(target, PROMPT, max_new_tokens=8)[5]
    other = drawn + 1 if drawn + 1 < target.vocab_size else drawn - 1
    low, high = sorted((drawn, other))
    twins(target, drawn, other)
    shake(monkeypatch, target, high, amount)
    plain = autoregressive(target, PROMPT, max_new_tokens=40)
    return low, high, both(target, oracle(plain, 4))


def test_planted_tie(monkeypatch, target):
    low, high, steps = planted(monkeypatch, target, 2e-5)
    verdict = compare(target, PROMPT, *steps, GREEDY)
    assert verdict.status == "tie"
    assert (verdict.expected, verdict.found) == (low, high)
    assert output(steps[0])[verdict.position] == low
    assert verdict.gap == 0.0
    assert 0 < verdict.difference <= verdict.bound
    assert f"tie at position {verdict.position} (ar {low}, here {high}; gap" in verdict.describe()


def test_planted_fault_is_different(monkeypatch, target):
    """The same flip, but by more than rounding: a wrong mask or a stale cache looks like this."""
    _, _, steps = planted(monkeypatch, target, 0.5)
    verdict = compare(target, PROMPT, *steps, GREEDY)
    assert verdict.status == "DIFFERENT"
    assert verdict.difference == pytest.approx(0.5, rel=1e-3)
    assert "more than rounding" in verdict.describe()


def test_rounding_that_explains_nothing_is_different(target):
    """Right rows of logits, but a token that was not drawn from them: a wrong acceptance."""
    plain, steps = both(target, oracle(autoregressive(target, PROMPT, max_new_tokens=40), 4))
    step = steps[3]
    wrong = (step.tokens[-1] + 1) % target.vocab_size
    steps[3] = replace(step, tokens=(*step.tokens[:-1], wrong), bonus=wrong)
    verdict = compare(target, PROMPT, plain, steps, GREEDY)
    assert verdict.status == "DIFFERENT"
    assert verdict.difference <= verdict.bound
    assert verdict.found == wrong
    assert "no such difference" in verdict.describe()


def test_other_end_is_different(target):
    plain, steps = both(target, oracle(autoregressive(target, PROMPT, max_new_tokens=40), 4))
    verdict = compare(target, PROMPT, plain, steps[:-1], GREEDY)
    assert verdict.status == "DIFFERENT"
    assert verdict.found is None
    assert verdict.position == len(output(steps[:-1]))
    assert "end elsewhere" in verdict.describe()


def test_sampled_tie_at_the_top_k_boundary(monkeypatch, target):
    """Twins share the one place of top-k 1; a nudge in the tree leaves it to one of them."""
    low, high, _ = planted(monkeypatch, target, 2e-5)
    seen = set()
    for seed in range(6):
        sampling = SamplingParams(1.0, top_k=1, seed=seed)
        plain = autoregressive(target, PROMPT, sampling=sampling, max_new_tokens=30)
        steps = both(target, oracle(plain, 4), sampling, 20)
        verdict = compare(target, PROMPT, *steps, sampling)
        assert verdict.status in {"equal", "tie"}
        seen.add(verdict.status)
        if verdict.status == "tie":
            assert {verdict.expected, verdict.found} == {low, high}
    assert "tie" in seen


def test_replay_gives_the_rows_that_were_drawn_from(target):
    """Every emitted token, greedy, is the arg-max of its replayed row; AR's rows and the tree's."""
    steps = both(target, random_trees(autoregressive(target, PROMPT, max_new_tokens=40), 2, 9, 512))
    for recorded in steps:
        for position in (0, 1, 2, 7, 19):
            row = replay_row(target, PROMPT, recorded, position)
            assert int(row.argmax()) == output(recorded)[position]


def test_a_head_is_judged_like_any_drafter(target):
    config = head_config(target, draft_length=None, draft_vocab_size=256)
    drafter = Eagle3Drafter(random_head(Eagle3Head, config, seed=1), target.embed)
    assert compare(target, PROMPT, *both(target, drafter), GREEDY).status == "equal"


def test_what_a_perturbation_explains_greedily():
    row = torch.tensor([1.0, 3.0, 2.9, 0.0])
    assert _explains(row, row, 2, 0.06, 0, GREEDY)
    assert not _explains(row, row, 2, 0.04, 0, GREEDY)
    assert _explains(row, torch.tensor([1.0, 2.9, 3.0, 0.0]), 2, 0.1, 0, GREEDY)


def test_what_a_perturbation_explains_at_the_boundary():
    """Token 2 wins the race once 3, which beats it, falls out of the top 4 in favour of 4."""
    row = torch.tensor([0.0, 4.0, 4.0, 1.001, 1.0, -9.0, 3.0])
    found = 0
    for seed in range(500):
        sampling = SamplingParams(1.0, top_k=4, seed=seed)
        without = row.clone()
        without[3] -= 1
        if Sampler(sampling).draw(row, 7) == 3 and Sampler(sampling).draw(without, 7) == 2:
            found += 1
            assert _explains(row, row, 2, 0.001, 7, sampling)
            assert not _explains(row, row, 2, 0.0004, 7, sampling)
    assert found


def test_the_gap_of_a_sampled_tie_holds_the_noise():
    """Two rows no further apart than ``difference`` cannot tip a race that is decided by more."""
    generator = torch.Generator().manual_seed(0)
    sampling, ties = SamplingParams(0.7, seed=5), 0
    for place in range(400):
        row = (3 * torch.randn(12, generator=generator)).bfloat16()
        other = (row + 0.1 * torch.randn(12, generator=generator)).bfloat16()
        drawn = [Sampler(sampling).draw(each, place) for each in (row, other)]
        if drawn[0] != drawn[1]:
            verdict = _judge(row, other, place, *drawn, 0, sampling)
            ties += verdict.status == "tie"
            assert 0 <= verdict.gap <= 2 * verdict.difference
    assert ties > 3


def test_stated_bounds_hold_on_another_model():
    """Llama-class, weights as a fresh model has them; the bounds come from a real model."""
    for dtype in (torch.float32, torch.bfloat16):
        model = tiny_target("llama", initializer_range=0.02).model.to(dtype)
        measured = measure_rounding(type(tiny_target())(model), [list(range(1, 70))])
        assert 0 < measured <= ROUNDING[dtype]


def test_wrong_drafts_cost_no_tokens(target):
    drafter = ForcedDrafter(lambda _at, last: chain(last, [1, 2, 3]))
    assert compare(target, PROMPT, *both(target, drafter), GREEDY).status == "equal"


SAMPLED = SamplingParams(1.0, 50, 0.9, seed=3)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
@pytest.mark.parametrize("rows", [1, 3, 8, 100])
def test_in_fp32_plain_decoding_agrees_with_itself(target, sampling, rows):
    plain = both(target, AutoregressiveDrafter(), sampling)[0]
    assert own_flip(target, PROMPT, plain, sampling, rows) is None


def test_a_flip_of_plain_decoding_itself_is_found_where_it_is(monkeypatch, target):
    """Of twins, passes of several rows take the higher: nothing but the pass's shape differs."""
    low, _, (plain, _) = planted(monkeypatch, target, 2e-5)
    position = output(plain).index(low)
    assert position > 0
    for rows in (2, 8, 100):
        assert own_flip(target, PROMPT, plain, GREEDY, rows) == position
    assert own_flip(target, PROMPT, plain, GREEDY, rows=1) is None
    sampling = SamplingParams(1.0, top_k=1, seed=3)
    plain = run(target, AutoregressiveDrafter(), PROMPT, sampling=sampling, max_new_tokens=40)
    assert own_flip(target, PROMPT, plain, sampling) == output(plain).index(low)


def test_verdicts_are_counted_and_the_largest_figures_of_the_ties_kept():
    verdicts = Verdicts()
    assert verdicts.summary()["tie_rate"] == 0 and verdicts.summary()["largest_gap"] is None
    assert verdicts.describe() == "0 equal, 0 tie, 0 DIFFERENT"
    for verdict in (
        Verdict("equal"),
        Verdict("tie", 3, 17, 18, gap=-0.25, difference=0.5, bound=4.0),
        Verdict("tie", 9, 17, 18, gap=0.125, difference=1.0, bound=2.0),
        Verdict("DIFFERENT", 0, 1, 2, gap=9.0, difference=9.0, bound=1.0),
    ):
        verdicts.add(verdict)
    assert verdicts.summary() == {
        "equal": 1,
        "tie": 2,
        "DIFFERENT": 1,
        "tie_rate": 0.5,
        "largest_gap": 0.25,
        "largest_share_of_bound": 0.5,
    }
    assert verdicts.describe() == (
        "1 equal, 2 tie (gap at most 0.25, logits differ by at most 50% of what rounding allows), "
        "1 DIFFERENT"
    )
