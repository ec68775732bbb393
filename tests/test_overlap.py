"""What a step leaves for later runs while the next tree is drafted: in this order, and once."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from models import (
    autoregressive,
    chain,
    head_config,
    output,
    random_head,
    run,
    tiny_model,
    tiny_target,
)

from dart_core.cache import KVCache
from dart_core.capture import run_eagerly
from dart_core.drafters import DraftSettings, Proposal, dart, eagle3
from dart_core.drafters.autoregressive import AutoregressiveDrafter
from dart_core.drafters.transfer import Transfer
from dart_core.generate import generate
from dart_core.heads import DartHead, Eagle3Head
from dart_core.target import Target

PROMPT = [5, 9, 23, 4, 5, 9]


def drafter(name: str, target: Target, *, static: bool = False):
    if name == "ar":
        return AutoregressiveDrafter()
    length = 3 if name == "dart" else None
    config = head_config(target, draft_length=length, draft_vocab_size=200)
    head = random_head(DartHead if name == "dart" else Eagle3Head, config, 3).to(target.device)
    if name == "dart":
        made = dart.DartDrafter(head, {}, target.embed)
    else:
        made = eagle3.Eagle3Drafter(head, target.embed)
    if static:
        made.use_static_shapes(run_eagerly)
    return made


@pytest.fixture
def order(monkeypatch):
    """What happened: candidates queued and waited for, the search, rows kept."""
    seen: list[str] = []

    class Seen(Transfer):
        def __init__(self, tensor):
            seen.append("queued")
            super().__init__(tensor)

        def wait(self):
            seen.append("waited")
            return super().wait()

    monkeypatch.setattr(dart, "Transfer", Seen)
    monkeypatch.setattr(eagle3, "Transfer", Seen)
    searching, keeping, ranking = dart.TreePruner.search, KVCache.keep, eagle3.rerank

    def marked(what, call, *args, **options):
        seen.append(what)
        return call(*args, **options)

    def search(*args, **options):
        return marked("searched", searching, *args, **options)

    def keep(*args, **options):
        return marked("kept", keeping, *args, **options)

    monkeypatch.setattr(dart.TreePruner, "search", search)
    monkeypatch.setattr(eagle3, "rerank", partial(marked, "searched", ranking))
    monkeypatch.setattr(KVCache, "keep", keep)
    return seen


@pytest.mark.parametrize("static", [False, True], ids=["dynamic", "static"])
@pytest.mark.parametrize("lookup", [0, 4])
@pytest.mark.parametrize("name", ["dart", "eagle3"])
def test_rows_are_kept_between_the_drafting_and_the_search(name, lookup, static, order):
    target = tiny_target()
    made = drafter(name, target, static=static)
    settings = DraftSettings(tree_budget=8, eagle3_depth=2, prompt_lookup=lookup)
    steps = run(target, made, PROMPT, settings=settings, max_new_tokens=30)
    later = len(steps) - 2
    assert later > 3
    first = ["kept", "queued", "waited", "searched"]  # the prompt's rows are kept by the prefill
    assert order == [*first, *["queued", "kept", "waited", "searched"] * later]


def test_a_plain_step_keeps_its_row_too(order):
    target = tiny_target()
    steps = run(target, drafter("ar", target), PROMPT, max_new_tokens=9)
    assert order == ["kept"] * (len(steps) - 1)


def test_what_was_accepted_is_kept_where_no_drafter_is_asked_for_a_tree():
    """Sizes that skip drafting for a step: the step before it may have moved rows."""
    target = tiny_target()
    expected = autoregressive(target, PROMPT, max_new_tokens=24)
    made = drafter("dart", target)
    made.begin = partial(Alternating, expected)
    settings = DraftSettings(auto_budget=True, tree_budget=8, sizes=((8, 8), (0, 0)) * 12)
    steps = list(generate(target, made, PROMPT, settings=settings, max_new_tokens=24, sizes=None))
    assert output(steps) == expected
    assert max(step.accepted for step in steps) == 2
    assert {step.drafted for step in steps[1:]} == {0, 4}


class Alternating:
    """A run whose tree has its right path behind a wrong one, so that accepted rows must move."""

    def __init__(self, text, prompt, capacity, settings, eos):
        self.text, self.at = text, -len(prompt)

    def observe(self, hidden, tokens):
        self.at += len(tokens)

    def propose(self, limit=None, meanwhile=None):
        at = self.at
        wrong = [(token + 1) % 512 for token in self.text[at + 1 : at + 3]]
        wanted = [*wrong, *self.text[at + 1 : at + 3]]
        tree = chain(self.text[at], wanted)
        tree.parents[3:4] = 0
        return Proposal(tree, 0.0, 0.0, "none")

    def close(self):
        pass


def test_a_transfer_on_a_cpu_is_the_tensor_itself():
    tensor = torch.arange(6)
    assert Transfer(tensor).wait() is tensor


@pytest.mark.gpu
def test_a_transfer_is_queued_and_brings_what_was_there_before():
    """What overwrites the tensor afterwards, on the same stream, comes too late."""
    tensor = torch.arange(1 << 20, device="cuda", dtype=torch.int32)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        queued = Transfer(tensor)
        tensor.zero_()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(queued.wait(), torch.arange(1 << 20, dtype=torch.int32))


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["dart", "eagle3"])
def test_drafts_are_the_same_on_a_gpu(name):
    target = Target(tiny_model("qwen3").to("cuda"))
    made = drafter(name, target)
    expected = autoregressive(target, PROMPT, max_new_tokens=40)
    assert output(run(target, made, PROMPT, max_new_tokens=40)) == expected
