"""Prompt lookup: what is copied from the text, and what of the head's tree makes room for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from models import autoregressive, head_config, output, random_head, run, tiny_target

from dart_core.drafters import DraftSettings
from dart_core.drafters.dart import DartDrafter
from dart_core.drafters.eagle3 import Eagle3Drafter
from dart_core.drafters.lookup import LONGEST, LookupRun, OwnText, graft
from dart_core.errors import ArenaError
from dart_core.heads import DartHead, Eagle3Head
from dart_core.tree import Candidates, DraftTree


def looked_up(tokens: list[int], limit: int) -> list[int]:
    """What a reader would say: the latest earlier place of the longest ending that has one."""
    end = len(tokens)
    for length in range(min(LONGEST, end), 0, -1):
        for place in range(end - 1, length - 1, -1):
            if tokens[place - length : place] == tokens[end - length :]:
                followed = tokens[place:]
                return [followed[step % len(followed)] for step in range(limit)]
    return []


@pytest.mark.parametrize("vocab", [2, 5, 40])
def test_continuations_are_those_a_reader_finds(vocab):
    rng = np.random.default_rng(vocab)
    tokens = rng.integers(0, vocab, 90).tolist()
    text, fed, found = OwnText(), 0, 0
    while fed < len(tokens):
        more = int(rng.integers(1, 5))
        text.extend(tokens[fed : fed + more])
        fed = min(fed + more, len(tokens))
        assert text.continuation(7) == looked_up(tokens[:fed], 7)
        found += bool(text.continuation(7))
    assert found > 20


def random_tree(rng, size: int) -> tuple[DraftTree, Candidates]:
    """A tree in no order of depth, with ties, and the pool it was chosen from."""
    parents = [-1] + [int(rng.integers(0, node)) for node in range(1, size)]
    scores = [0.0]
    for parent in parents[1:]:
        scores.append(scores[parent] - float(rng.integers(0, 3)))
    taken, tokens = set(), [7]
    for parent in parents[1:]:
        token = next(t for t in rng.permutation(200).tolist() if (parent, t) not in taken)
        taken.add((parent, token))
        tokens.append(token)
    tree = DraftTree.of(tokens, parents, scores, rng.random(size), rng.random(size))
    node = np.concatenate((np.arange(1, size), [-1, -1])).astype(np.int32)
    rng.shuffle(node)
    filler = np.zeros(len(node))
    return tree, Candidates(filler, filler, filler, node)


def names(tree: DraftTree) -> dict[tuple[int, ...], tuple]:
    """Every node by the tokens that lead to it: its score, probability and n-gram."""
    found = {}
    for node in range(len(tree)):
        key = tuple(tree.tokens[tree.path(node)].tolist())
        assert key not in found
        found[key] = (tree.scores[node], tree.probabilities[node], tree.ngram[node])
    return found


@pytest.mark.parametrize("seed", range(60))
def test_a_graft_keeps_the_best_of_the_tree(seed):
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 40))
    tree, pool = random_tree(rng, size)
    path = rng.integers(0, 200, int(rng.integers(1, 12))).tolist()
    node = int(rng.integers(0, size))  # the tree may hold the path's beginning
    known = tree.tokens[tree.path(node)[1:]].tolist()
    path = known + path
    budget = int(rng.integers(max(1, size - 1), size + 12))
    got, numbered = graft(tree, path, budget, pool)
    DraftTree.of(got.tokens, got.parents)  # well formed
    before, after = names(tree), names(got)
    assert got.drafted <= budget
    chain = [(7, *path[: length + 1]) for length in range(min(len(path), budget))]
    assert set(chain) <= set(after)
    new = [key for key in after if key not in before]
    assert new == [key for key in chain if key not in before]
    assert all(np.isnan(after[key]).all() for key in new)
    assert all(after[key] == before[key] for key in after if key in before)
    gone = [before[key][0] for key in before if key not in after]
    stayed = [before[key][0] for key in after if key in before and key not in chain]
    assert got.drafted == min(budget, tree.drafted + len(new))
    if gone:
        assert got.drafted == budget
        assert max(gone) <= min(stayed)
    for place, number in enumerate(pool.node):
        now = numbered.node[place]
        key = tuple(tree.tokens[tree.path(int(number))].tolist()) if number >= 0 else None
        if now >= 0:
            assert tuple(got.tokens[got.path(int(now))].tolist()) == key
        else:
            assert key is None or key not in after


@pytest.fixture(scope="module")
def target():
    return tiny_target("llama", seed=11, initializer_range=0.01)


@pytest.mark.parametrize("name", ["dart", "eagle3"])
def test_repeated_text_is_accepted_and_stays_what_plain_decoding_writes(name, target):
    """Heads that know nothing, over a target whose greedy text runs in circles."""
    kind, slots = (DartHead, 5) if name == "dart" else (Eagle3Head, None)
    head = random_head(kind, head_config(target, draft_length=slots, draft_vocab_size=64), seed=3)
    drafter = DartDrafter(head, {}, target.embed)
    if name == "eagle3":
        drafter = Eagle3Drafter(head, target.embed)
    prompt = [5, 6, 7, 8, 9, 5, 6]
    expected = autoregressive(target, prompt, max_new_tokens=160)
    settings = DraftSettings(tree_budget=12, eagle3_depth=3, candidates=True)
    accepted = {}
    for lookup in (0, 8):
        chosen = replace(settings, prompt_lookup=lookup)
        steps = run(target, drafter, prompt, settings=chosen, max_new_tokens=160)
        assert output(steps) == expected
        assert all(step.drafted <= 12 for step in steps)
        accepted[lookup] = sum(step.accepted for step in steps)
    assert accepted[8] > 2 * accepted[0] + 20


def test_the_first_tree_already_knows_the_prompt():
    class Nothing:
        def observe(self, hidden, tokens):
            self.root = int(tokens[-1])

        def propose(self, limit=None, meanwhile=None):
            from dart_core.drafters import Proposal

            return Proposal(DraftTree.root_only(self.root), 0.0, 0.0, "none")

    prompt = torch.tensor([4, 8, 15, 16, 23, 42, 4])
    lookup = LookupRun(Nothing(), prompt, DraftSettings(tree_budget=3, prompt_lookup=5))
    lookup.observe(None, torch.tensor([8, 15, 16, 23, 42, 4, 8]))
    tree = lookup.propose().tree
    assert tree.tokens.tolist() == [8, 15, 16, 23]
    assert tree.parents.tolist() == [-1, 0, 1, 2]


@pytest.mark.parametrize("value", [-1, 257, 1.5, "8"])
def test_what_is_no_length_is_refused(value):
    with pytest.raises(ArenaError, match="prompt lookup"):
        DraftSettings(prompt_lookup=value)
