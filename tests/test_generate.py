"""The loop: exact budgets, end-of-sequence wherever it falls, honest accounting, caches that go
away.
"""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from models import (
    ForcedDrafter,
    autoregressive,
    chain,
    oracle,
    output,
    random_trees,
    run,
    tiny_model,
    tiny_target,
    wrong,
)

from dart_core.cache import free_memory
from dart_core.drafters import DraftSettings
from dart_core.drafters.autoregressive import AutoregressiveDrafter
from dart_core.errors import ArenaError
from dart_core.generate import generate
from dart_core.memory import OutOfMemory
from dart_core.sampling import SamplingParams
from dart_core.target import Target
from dart_core.tree import DraftTree

PROMPT = [5, 9, 23]


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target()


@pytest.fixture(scope="module")
def continuation(target) -> list[int]:
    return autoregressive(target, PROMPT, max_new_tokens=64)


def test_plain_decoding_is_what_transformers_generates(continuation):
    model = tiny_model().eval()
    expected = model.generate(
        torch.tensor([PROMPT]), max_new_tokens=64, do_sample=False, eos_token_id=None
    )
    assert continuation == expected[0, len(PROMPT) :].tolist()


@pytest.mark.parametrize("place", range(1, 9))
@pytest.mark.parametrize("drafts", [0, 3, 6])
def test_end_of_sequence_ends_the_output_wherever_it_falls_in_a_round(
    target, continuation, place, drafts
):
    eos = continuation[place]
    first = continuation.index(eos)
    steps = run(
        target,
        oracle(continuation, drafts),
        PROMPT,
        max_new_tokens=24,
        eos_token_ids=frozenset({eos}),
    )
    assert output(steps) == continuation[: first + 1]
    assert steps[-1].finish_reason == "stop"
    assert [step.finish_reason for step in steps[:-1]] == [None] * (len(steps) - 1)


def test_end_of_sequence_is_a_set(target, continuation):
    eos = frozenset({continuation[6], continuation[4], 511})
    steps = run(target, oracle(continuation, 6), PROMPT, max_new_tokens=24, eos_token_ids=eos)
    assert output(steps)[-1] in eos
    assert not eos & set(output(steps)[:-1])


@pytest.mark.parametrize("budget", [1, 2, 7, 8, 9, 16, 17])
@pytest.mark.parametrize("kind", ["ar", "oracle", "wrong", "random"])
def test_the_budget_is_exact(target, continuation, budget, kind):
    drafter = {
        "ar": AutoregressiveDrafter(),
        "oracle": oracle(continuation, 7),
        "wrong": wrong(continuation, 7, target.vocab_size),
        "random": random_trees(continuation, 1, 20, target.vocab_size),
    }[kind]
    steps = run(target, drafter, PROMPT, max_new_tokens=budget)
    assert output(steps) == continuation[:budget]
    assert steps[-1].finish_reason == "length"


def test_max_length_counts_the_prompt(target, continuation):
    steps = run(target, oracle(continuation, 7), PROMPT, max_new_tokens=50, max_length=13)
    assert output(steps) == continuation[:10]
    assert steps[-1].finish_reason == "length"


@pytest.mark.parametrize(
    ("prompt", "options", "said"),
    [
        ([], {}, "empty"),
        (PROMPT, {"max_new_tokens": 0}, "below 1"),
        (PROMPT, {"max_length": 3}, "3 tokens and max length is 3"),
        (PROMPT, {"max_new_tokens": 5.0}, r"max new tokens must be a whole number.*5\.0 \(float\)"),
        (PROMPT, {"max_new_tokens": None}, r"max new tokens must be .* got None"),
        (PROMPT, {"max_length": "9"}, r"max length must be a whole number.*'9' \(str\)"),
        (PROMPT, {"eos_token_ids": 2}, "come as a set or list of ints, .*; got 2"),
        (PROMPT, {"eos_token_ids": ["2"]}, r"must be a whole number, an int; got '2' \(str\)"),
        ([5, 512], {}, "token 512 is outside the target's vocabulary of 512"),
        ([5, -1], {}, "token -1"),
    ],
)
def test_prompts_that_do_not_fit_are_refused_with_the_numbers(target, prompt, options, said):
    with pytest.raises(ArenaError, match=said):
        run(target, AutoregressiveDrafter(), prompt, **options)


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        (torch.tensor([[0, 0, 5], [1, 2, 3]]), "batch of 2 prompts.*batch size 1"),
        ([[1, 2], [1, 2, 3]], "batch of 2 prompts.*batch size 1"),
        ("text", "whole numbers"),
        ([1.5], "whole numbers"),
        (None, "got None: Engine.chat_ids makes one of messages"),
        (torch.tensor(5), "got 5: Engine.chat_ids"),
    ],
)
def test_batches_and_texts_are_refused_by_name(target, prompt, said):
    with pytest.raises(ArenaError, match=said):
        run(target, AutoregressiveDrafter(), prompt)


def test_accounting_of_a_round_cut_by_end_of_sequence(target, continuation):
    """Rounds that emit 4 and 2 tokens, then one whose five drafts all match with end-of-sequence as
    the third.
    """
    lengths = {1: 3, 5: 1, 7: 5}
    drafter = ForcedDrafter(lambda at, last: chain(last, continuation[at : at + lengths[at]]))
    eos = continuation[9]
    assert eos not in continuation[:9]
    steps = run(target, drafter, PROMPT, max_new_tokens=40, eos_token_ids=frozenset({eos}))
    emitted = [len(step.tokens) for step in steps if step.kind == "verify"]
    assert emitted == [4, 2, 3]
    assert [step.accepted for step in steps if step.kind == "verify"] == [3, 1, 3]
    assert [step.drafted for step in steps if step.kind == "verify"] == [3, 1, 5]
    assert sum(len(step.tokens) for step in steps) == 10


def test_steps_tell_the_story_of_their_tree(target, continuation):
    steps = run(
        target,
        random_trees(continuation, 3, 12, target.vocab_size),
        PROMPT,
        max_new_tokens=30,
    )
    assert [step.index for step in steps] == list(range(len(steps)))
    assert steps[0].kind == "prefill" and steps[0].tree is None and len(steps[0].tokens) == 1
    committed = list(steps[0].tokens)
    for step in steps[1:]:
        assert step.tree.tokens[0] == committed[-1]
        assert step.path[0] == 0 and step.drafted == 12
        walked = [int(step.tree.tokens[node]) for node in step.path[1:]] + [step.bonus]
        assert list(step.tokens) == walked[: len(step.tokens)]
        for parent, node in zip(step.path, step.path[1:], strict=False):
            assert step.tree.parents[node] == parent
        assert step.seconds.total > 0
        committed += step.tokens


def test_a_drafter_that_is_never_right_costs_no_correctness(target, continuation):
    steps = run(target, wrong(continuation, 5, 512), PROMPT, max_new_tokens=20)
    assert output(steps) == continuation[:20]
    assert {step.accepted for step in steps} == {0}


def test_of_equal_siblings_one_is_accepted_once(target, continuation):
    drafter = ForcedDrafter(
        lambda at, last: DraftTree.of(
            [last, continuation[at], continuation[at], continuation[at + 1], continuation[at + 1]],
            [-1, 0, 0, 1, 2],
        )
    )
    steps = run(target, drafter, PROMPT, max_new_tokens=21)
    assert output(steps) == continuation[:21]
    assert {step.path for step in steps[1:-1]} == {(0, 1, 3)}


@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(1.0, seed=5)])
def test_a_second_run_on_the_same_target_owes_nothing_to_the_first(target, sampling):
    short, long = [4, 8, 15], [i % 500 for i in range(16, 166)]
    fresh = autoregressive(tiny_target(), long, max_new_tokens=20, sampling=sampling)
    first = autoregressive(target, short, max_new_tokens=30, max_length=64, sampling=sampling)
    trees = random_trees(fresh, 2, 30, 512)
    assert output(run(target, trees, long, max_new_tokens=20, sampling=sampling)) == fresh
    again = autoregressive(target, short, max_new_tokens=30, max_length=64, sampling=sampling)
    assert again == first


def test_long_prompts_are_prefilled_in_pieces_with_the_same_result(target, monkeypatch):
    prompt = [(7 * i) % 512 for i in range(100)]
    whole = autoregressive(target, prompt, max_new_tokens=12)
    monkeypatch.setattr("dart_core.target.PREFILL_CHUNK", 16)
    assert autoregressive(target, prompt, max_new_tokens=12) == whole


def test_closing_early_frees_the_caches(target, continuation):
    drafter = oracle(continuation, 3)
    steps = generate(target, drafter, PROMPT, max_new_tokens=50)
    next(steps)
    assert drafter.open_runs == 1
    cache = steps.gi_frame.f_locals["cache"]
    assert cache._blocks
    steps.close()
    assert drafter.open_runs == 0
    assert not cache._blocks and not cache.layers


def test_inference_mode_does_not_leak_into_the_consumer(target):
    for _ in generate(target, AutoregressiveDrafter(), PROMPT, max_new_tokens=3):
        assert not torch.is_inference_mode_enabled()


SEEDED = """
import sys; sys.path.insert(0, "tests")
import torch; torch.set_num_threads(1)
from models import autoregressive, head_config, output, random_head, run, tiny_target
from dart_core.drafters.dart import DartDrafter
from dart_core.drafters.eagle3 import Eagle3Drafter
from dart_core.heads import DartHead, Eagle3Head
from dart_core.sampling import SamplingParams
target = tiny_target()
options = {"max_new_tokens": 30, "sampling": SamplingParams(1.0, seed=42)}
print(autoregressive(target, [5, 9, 23], **options))
for kind, length in ((DartHead, 3), (Eagle3Head, None)):
    head = random_head(kind, head_config(target, draft_length=length, draft_vocab_size=99), 0)
    drafter = DartDrafter(head, {}, target.embed) if length else Eagle3Drafter(head, target.embed)
    print(output(run(target, drafter, [5, 9, 23], **options)))
"""


def test_a_seed_names_one_text_in_this_process_and_the_next(target):
    def text(seed: int) -> list[int]:
        random.seed()
        sampling = SamplingParams(1.0, seed=seed)
        return autoregressive(target, PROMPT, max_new_tokens=30, sampling=sampling)

    first = text(42)
    autoregressive(target, [1, 2], max_new_tokens=5, sampling=SamplingParams(1.0, seed=9))
    assert text(42) == first
    assert text(43) != first
    fresh = subprocess.run(
        [sys.executable, "-c", SEEDED], capture_output=True, text=True, check=True
    )
    assert fresh.stdout.splitlines() == [str(first)] * 3  # plain, DART and EAGLE3


def test_an_unset_seed_is_drawn_once_and_reported(target):
    sampling = SamplingParams(1.0)
    one = run(target, AutoregressiveDrafter(), PROMPT, max_new_tokens=20, sampling=sampling)
    two = run(target, AutoregressiveDrafter(), PROMPT, max_new_tokens=20, sampling=sampling)
    assert len({step.seed for step in one}) == 1
    assert one[0].seed != two[0].seed
    replay = SamplingParams(1.0, seed=one[0].seed)
    assert autoregressive(target, PROMPT, max_new_tokens=20, sampling=replay) == output(one)


@pytest.mark.parametrize("temperature", [0.0, 1e-8, 1e-6])
def test_below_the_greedy_threshold_every_engine_is_greedy(target, continuation, temperature):
    sampling = SamplingParams(temperature)
    assert autoregressive(target, PROMPT, max_new_tokens=20, sampling=sampling) == continuation[:20]
    steps = run(target, oracle(continuation, 4), PROMPT, max_new_tokens=20, sampling=sampling)
    assert output(steps) == continuation[:20] and steps[0].seed is None


@pytest.mark.parametrize("temperature", [1e-5, 1e-4])
def test_just_above_the_threshold_nothing_overflows(target, continuation, temperature):
    sampling = SamplingParams(temperature, seed=1)
    plain = autoregressive(target, PROMPT, max_new_tokens=20, sampling=sampling)
    trees = random_trees(plain, 5, 20, 512)
    assert output(run(target, trees, PROMPT, max_new_tokens=20, sampling=sampling)) == plain


def test_a_cache_beyond_the_free_memory_is_refused_with_the_figures(target, monkeypatch):

    bytes_a_row = 7 * 2 * 2 * 16 * 4  # layers, keys and values, heads, head dimension, float32
    monkeypatch.setattr("dart_core.target.free_memory", lambda device: 100 * bytes_a_row)
    target.new_cache(100).close()
    with pytest.raises(
        ArenaError, match=r"101 tokens.*take 0\.0 GiB, cpu has 0\.0 GiB free; lower"
    ):
        target.new_cache(101)
    with pytest.raises(OutOfMemory, match="no memory for a run of 103 tokens"):
        run(
            target,
            AutoregressiveDrafter(),
            PROMPT,
            max_new_tokens=90,
            settings=DraftSettings(tree_budget=9),
        )


@pytest.mark.parametrize(
    ("error", "raises"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), OutOfMemory),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), OutOfMemory),
        (RuntimeError("CUDA error: device-side assert triggered"), RuntimeError),
    ],
)
def test_only_a_lack_of_memory_is_told_as_one(target, monkeypatch, error, raises):
    def fail(**options):
        raise error

    monkeypatch.setattr("dart_core.target.KVCache", fail)
    with pytest.raises(Exception, match=r"no memory for a run|device-side") as told:
        target.new_cache(9)
    assert type(told.value) is raises


def test_free_memory_is_what_the_system_tells(monkeypatch):
    cpu = torch.device("cpu")
    if Path("/proc/meminfo").exists():
        assert 2**26 < free_memory(cpu) < 2**50
    said = "MemTotal: 900 kB\nMemFree: 100 kB\nMemAvailable:  300 kB\n"
    monkeypatch.setattr(Path, "read_text", lambda path, encoding: said)
    assert free_memory(cpu) == 300 * 1024
    said = "nothing of the kind"
    assert free_memory(cpu) is None

    def missing(path, encoding):
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_text", missing)
    assert free_memory(cpu) is None


def test_the_cache_refuses_to_be_outgrown(target, continuation):
    """A drafter that exceeds its tree budget is a bug that must not corrupt memory."""
    with pytest.raises(RuntimeError, match="the cache holds"):
        run(
            target,
            oracle(continuation, 40),
            PROMPT,
            max_new_tokens=4,
            settings=DraftSettings(tree_budget=2),
        )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tree_budget", 0),
        ("tree_budget", 5.5),
        ("tree_budget", True),
        ("beam", 0),
        ("beam", "20"),
        ("ngram_weight", -1.0),
        ("ngram_weight", None),
        ("eagle3_top_k", 0),
    ],
)
def test_draft_settings_out_of_range_are_named(field, value):
    with pytest.raises(ArenaError, match=str(value)):
        DraftSettings(**{field: value})
