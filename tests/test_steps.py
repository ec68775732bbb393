"""What the loop's steps report: their numbers, their seconds by a clock of the test's own, seeds
and sizes.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
import torch
from models import ForcedDrafter, autoregressive, chain, run, tiny_target

from dart_core import generate as loop
from dart_core.drafters import DraftSettings, Proposal
from dart_core.drafters.autoregressive import AutoregressiveDrafter
from dart_core.errors import ArenaError
from dart_core.generate import generate, prompt_tensor, token_budget, token_set
from dart_core.sampling import SamplingParams
from dart_core.step import SizeChoice, StageSeconds

PROMPT = [5, 9, 23, 4]


@pytest.fixture(scope="module")
def target():
    return tiny_target()


@pytest.fixture
def clock(monkeypatch):
    """Every look at the clock finds it a second later."""
    seconds = count(100.0)
    monkeypatch.setattr(loop, "perf_counter", lambda: next(seconds))


class Slow(ForcedDrafter):
    """Says that it took a quarter of a second to draft and half of one to search."""

    def begin(self, *args):
        drafting = super().begin(*args)
        propose = drafting.propose

        def slowly(limit=None, meanwhile=None) -> Proposal:
            return replace(propose(limit), draft_seconds=0.25, search_seconds=0.5, backend="twin")

        drafting.propose = slowly
        return drafting


class Sizes:
    """Asks for the drafts it is told to, keeps the tree's first nodes, and notes what it learns."""

    def __init__(self, asked, kept=None):
        self.asked, self.kept, self.learnt = list(asked), kept, []

    def limit(self):
        return self.asked.pop(0)

    def choose(self, proposal):
        return (None if self.kept is None else np.arange(self.kept)), SizeChoice(8, 2.5, 1.5)

    def learn(self, tokens, rows, verify, rest):
        self.learnt.append((tokens, rows, verify, rest))


def slow(target, drafts: int) -> Slow:
    text = autoregressive(target, PROMPT, max_new_tokens=40)
    return Slow(lambda at, last: chain(last, text[at : at + drafts]))


def test_every_stage_has_its_own_seconds(target, clock):
    steps = run(target, slow(target, 3), PROMPT, max_new_tokens=11)
    assert steps[0].seconds == StageSeconds(draft=0.0, search=0.0, verify=1.0, rest=1.0)
    # Looks: begun, proposed, verified, learnt, told; a step that ends the run learns nothing.
    assert steps[1].seconds == StageSeconds(draft=0.25, search=0.5, verify=1.0, rest=2.25)
    assert steps[-1].seconds == StageSeconds(draft=0.25, search=0.5, verify=1.0, rest=1.25)
    assert [step.index for step in steps] == list(range(len(steps)))
    assert [step.kind for step in steps] == ["prefill", *["verify"] * (len(steps) - 1)]
    assert [step.drafted for step in steps] == [0, *[3] * (len(steps) - 1)]
    assert [step.backend for step in steps] == ["none", *["twin"] * (len(steps) - 1)]


def test_seconds_are_never_below_nothing(target, monkeypatch):
    """A drafter that claims more than the whole step took."""
    monkeypatch.setattr(loop, "perf_counter", lambda: 100.0)
    steps = run(target, slow(target, 3), PROMPT, max_new_tokens=6)
    assert all(step.seconds.rest == 0.0 for step in steps)


def test_sizes_learn_what_a_step_brought_and_took(target, clock):
    sizes = Sizes([8] * 9)
    steps = list(generate(target, slow(target, 3), PROMPT, max_new_tokens=11, sizes=sizes))
    assert sizes.learnt == [(step.tokens, 4, 1.0, 1.25) for step in steps[1:-1]]
    assert [step.choice for step in steps] == [None, *[SizeChoice(8, 2.5, 1.5)] * (len(steps) - 1)]


@pytest.mark.parametrize(("kept", "drafted"), [(None, 3), (4, 3), (3, 2), (1, 0)])
def test_a_tree_is_cut_to_what_is_chosen(target, kept, drafted):
    sizes = Sizes([8] * 40, kept)
    steps = list(generate(target, slow(target, 3), PROMPT, max_new_tokens=12, sizes=sizes))
    assert {step.drafted for step in steps[1:]} == {drafted}
    assert {rows for _, rows, _, _ in sizes.learnt} == {drafted + 1}


def test_a_step_for_which_no_draft_is_wanted_is_a_plain_one(target):
    sizes = Sizes([8, 0, 8, 0, 0, 8])
    steps = list(generate(target, slow(target, 2), PROMPT, max_new_tokens=12, sizes=sizes))
    assert [step.drafted for step in steps] == [0, 2, 0, 2, 0, 0, 2]
    for step in steps:
        if step.index and not step.drafted:
            assert step.choice == SizeChoice(0, 1, 1)
            assert (step.seconds.draft, step.seconds.search) == (0.0, 0.0)
            assert step.backend == "none"
            assert len(step.tokens) == 1


def test_a_seed_that_is_not_given_is_drawn_below_two_to_the_31st(target, monkeypatch):
    monkeypatch.setattr(loop.secrets, "randbelow", lambda end: end - 1)
    plainly = AutoregressiveDrafter()
    steps = run(target, plainly, PROMPT, sampling=SamplingParams(1.0), max_new_tokens=3)
    assert [step.seed for step in steps] == [2**31 - 1] * 3
    given = SamplingParams(1.0, seed=7)
    assert run(target, plainly, PROMPT, sampling=given, max_new_tokens=1)[0].seed == 7
    for greedy in (SamplingParams(), SamplingParams(seed=7)):
        assert run(target, plainly, PROMPT, sampling=greedy, max_new_tokens=1)[0].seed is None


def test_the_budget_is_what_is_left_of_both():
    assert token_budget(4, 100, 10) == 6
    assert token_budget(4, 5, 10) == 5
    assert token_budget(9, 1, 10) == token_budget(1, 9, 2) == 1
    for wrong in (
        (0, 5, 10),
        (1, 5, 1),
        (4, 0, 10),
        (10, 5, 10),
        (4, 2.5, 10),
        (4, 5, 10.5),
        (4, "5", 10),
    ):
        with pytest.raises(ArenaError):
            token_budget(*wrong)


def test_budgets_that_nobody_sets_are_the_published_ones():
    defaults = {n: p.default for n, p in inspect.signature(generate).parameters.items()}
    assert (defaults["max_new_tokens"], defaults["max_length"]) == (512, 2048)


def test_every_id_of_the_vocabulary_may_be_in_a_prompt(target):
    edges = [0, target.vocab_size - 1]
    assert len(run(target, AutoregressiveDrafter(), edges, max_new_tokens=2)) == 2
    for wrong in (-1, target.vocab_size):
        with pytest.raises(ArenaError, match=f"prompt token {wrong} is outside"):
            run(target, AutoregressiveDrafter(), [3, wrong, 4], max_new_tokens=2)


def test_a_prompt_comes_as_numbers_of_any_kind():
    for prompt in (PROMPT, tuple(PROMPT), np.array(PROMPT), torch.tensor(PROMPT), map(int, PROMPT)):
        tensor = prompt_tensor(prompt)
        assert tensor.dtype == torch.int64
        assert tensor.tolist() == PROMPT
    for wrong, said in (
        ("5 9", "a list of token ids"),
        (7, "a list of token ids"),
        ([5, "9"], "a list of token ids"),
        ([5, 9.5], "a list of token ids"),
        (["a", "b"], "a list of token ids"),
        ([PROMPT, PROMPT], "a batch of 2 prompts"),
        ([5, PROMPT], "a batch of 2 prompts"),
        ([5, -(2**70), 6], f"prompt token {-(2**70)} is no token id"),
    ):
        with pytest.raises(ArenaError, match=said):
            prompt_tensor(wrong)


def test_ends_come_as_whole_numbers():
    assert token_set([3, 2, 3]) == token_set({2, 3}) == frozenset({2, 3})
    assert token_set(np.array([2])) == frozenset({2})
    for wrong in ("2", 2, None, [2.5], ["2"]):
        with pytest.raises(ArenaError):
            token_set(wrong)


def test_a_cache_has_a_row_for_every_token_and_every_draft_behind_it(target, monkeypatch):
    rows, drafter = [], slow(target, 3)
    new_cache = target.new_cache
    monkeypatch.setattr(target, "new_cache", lambda count: rows.append(count) or new_cache(count))
    settings = DraftSettings(tree_budget=6)
    run(target, drafter, PROMPT, settings=settings, max_new_tokens=5)
    assert rows == [len(PROMPT) + 5 + 6 + 1]
