"""Conformance of the EAGLE3 head, tree and loop with recordings of the published implementation."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from dart_core.drafters import DraftSettings
from dart_core.drafters.eagle3 import Eagle3Drafter
from dart_core.generate import generate
from dart_core.heads import load_eagle3_head
from dart_core.sampling import SamplingParams
from dart_core.target import Target
from dart_core.tree import DraftTree

GOLDEN = Path(__file__).parent / "golden" / "eagle3"
CLOSE = {"rtol": 0.0, "atol": 1e-4}


def cases(name: str) -> dict:
    return json.loads((GOLDEN / name / "cases.json").read_text())


RUNS = json.loads((GOLDEN / "generate" / "runs.json").read_text())["runs"]


@pytest.fixture(scope="module")
def target() -> Target:
    return Target.load(GOLDEN / "checkpoint" / "target", dtype=torch.float32, device="cpu")


@pytest.fixture(scope="module")
def drafter(target) -> Eagle3Drafter:
    head = load_eagle3_head(
        GOLDEN / "checkpoint" / "head",
        dtype=torch.float32,
        device="cpu",
        target_config=target.config,
    )
    return Eagle3Drafter(head, target.embed)


@pytest.mark.parametrize("case", cases("head")["cases"], ids=lambda case: case["file"])
def test_head_calls(target, drafter, case):
    """Every call of a round: hidden output, logits and the stable cache."""
    head, recorded = drafter.head, load_file(GOLDEN / "head" / case["file"])
    cache = head.new_cache(256)
    calls = 0
    with torch.inference_mode():
        for index, facts in enumerate(case["rounds"]):
            used = 0
            for call in range(facts["n_calls"]):
                name = f"round{index}.call{call}."
                embeddings = target.embed(recorded[name + "input_ids"])
                count = len(embeddings)
                if call == 0:
                    states = head.fuse(recorded[f"round{index}.aux_in"])
                    output = head(states, embeddings, cache, rows=count)
                    logits = head.logits(output[-1:])
                else:
                    assert (
                        recorded[name + "positions"].tolist() == [cache.length + call - 1] * count
                    )
                    tail = torch.where(recorded[name + "tree_mask"] > 0, 0.0, -torch.inf)
                    states = recorded[name + "hidden_in"]
                    output = head.grow(states, embeddings, cache, level=call, used=used, tail=tail)
                    logits = head.logits(output)
                    used += count
                torch.testing.assert_close(output, recorded[name + "hidden_out"], **CLOSE)
                torch.testing.assert_close(logits, recorded[name + "logits"], **CLOSE)
                calls += 1
            length = cache.length
            assert length == facts["stable_kv_len"]
            for ours, key in ((cache.keys, "stable_key"), (cache.values, "stable_value")):
                torch.testing.assert_close(
                    ours[:, :length], recorded[f"round{index}.{key}"], **CLOSE
                )
    assert calls == sum(facts["n_calls"] for facts in case["rounds"])


@pytest.mark.parametrize("case", cases("head")["cases"], ids=lambda case: case["file"])
def test_tapped_states(target, drafter, case):
    recorded = load_file(GOLDEN / "head" / case["file"])
    prompt = recorded["prompt_ids"]
    output = target.prefill(prompt, target.new_cache(len(prompt)), taps=drafter.taps)
    torch.testing.assert_close(output.hidden, recorded["prefill.aux_hidden"], **CLOSE)
    torch.testing.assert_close(output.logits[0], recorded["prefill.target_logits_last"], **CLOSE)


def replay(drafter: Eagle3Drafter, case: dict, recorded: dict, *, candidates: bool):
    """Yield (round, proposal) with the recorded states fed to one run, round after round."""
    settings = DraftSettings(
        tree_budget=case["total_token"] - 1,
        eagle3_depth=case["depth"],
        eagle3_top_k=case["top_k"],
        candidates=candidates,
    )
    prompt = torch.tensor(case["prompt"])
    run = drafter.begin(prompt, 512, settings, frozenset())
    with torch.inference_mode():
        for facts in case["rounds"]:
            name = f"round{facts['round']}."
            hidden, sequence = recorded[name + "aux_in"], recorded[name + "input_ids"]
            run.observe(hidden, sequence[len(sequence) - len(hidden) :])
            yield facts, run.propose()
    run.close()


@pytest.mark.parametrize("case", cases("tree")["cases"], ids=lambda case: case["file"])
def test_trees(drafter, case):
    """Three rounds of one run: the pool, the kept nodes, the tree and what is derived from it."""
    recorded = load_file(GOLDEN / "tree" / case["file"])
    rounds = 0
    for facts, proposal in replay(drafter, case, recorded, candidates=True):
        name = f"round{facts['round']}."
        tree, pool = proposal.tree, proposal.candidates
        np.testing.assert_array_equal(tree.tokens, recorded[name + "draft_tokens"].numpy())
        np.testing.assert_array_equal(tree.parents, recorded[name + "parents"].numpy())
        np.testing.assert_array_equal(tree.ancestor_mask(), recorded[name + "tree_mask"].numpy())
        np.testing.assert_array_equal(tree.depths(), recorded[name + "tree_position_ids"].numpy())
        assert leaf_rows(tree) == unpad(recorded[name + "retrieve_indices"])
        np.testing.assert_array_equal(pool.tokens, recorded[name + "pool_tokens"].numpy())
        np.testing.assert_array_equal(pool.parents, recorded[name + "pool_parents"].numpy())
        scores = recorded[name + "pool_scores"].numpy()
        np.testing.assert_allclose(pool.scores, scores, rtol=0, atol=1e-4)
        kept = recorded[name + "selected_pool_indices"].numpy()
        np.testing.assert_array_equal(np.flatnonzero(pool.node >= 0), kept)
        np.testing.assert_allclose(tree.scores[1:], scores[kept], rtol=0, atol=1e-4)
        rounds += 1
    assert rounds == 3


@pytest.mark.parametrize("case", cases("tree")["cases"], ids=lambda case: case["file"])
def test_trees_without_the_whole_pool(drafter, case):
    """Drafting only what can still enter the tree gives the same tree."""
    recorded = load_file(GOLDEN / "tree" / case["file"])
    for facts, proposal in replay(drafter, case, recorded, candidates=False):
        name = f"round{facts['round']}."
        np.testing.assert_array_equal(proposal.tree.tokens, recorded[name + "draft_tokens"].numpy())
        np.testing.assert_array_equal(proposal.tree.parents, recorded[name + "parents"].numpy())
        assert proposal.candidates is None


def leaf_rows(tree: DraftTree) -> list[list[int]]:
    leaves = sorted(set(range(len(tree))) - set(tree.parents.tolist()))
    return [tree.path(leaf) for leaf in leaves]


def unpad(rows: torch.Tensor) -> list[list[int]]:
    return [[node for node in row if node >= 0] for row in rows.tolist()]


def tree_from_rows(tokens: list[int], rows: list[list[int]]) -> DraftTree:
    parents = [-1] * len(tokens)
    for row in rows:
        for parent, child in pairwise(row):
            parents[child] = parent
    return DraftTree.of(tokens, parents)


VERIFY = cases("verify")["cases"]


@pytest.mark.parametrize("case", VERIFY, ids=lambda case: case["name"])
def test_greedy_acceptance(case):
    """The accept walk against the reference's rule: the first row with the most leading matches."""
    recorded = load_file(GOLDEN / "verify" / "cases.safetensors")
    tokens = recorded[case["name"] + ".node_tokens"].tolist()
    rows = unpad(recorded[case["name"] + ".retrieve_indices"])
    best = recorded[case["name"] + ".node_logits"].argmax(-1).tolist()
    path, bonus = tree_from_rows(tokens, rows).accept(best.__getitem__)

    matches = []
    for row in rows:
        wrong = [i for i, (node, child) in enumerate(pairwise(row)) if best[node] != tokens[child]]
        matches.append(wrong[0] if wrong else len(row) - 1)
    assert len(path) - 1 == max(matches)
    winner = rows[matches.index(max(matches))][: len(path)]
    assert [tokens[node] for node in path] == [tokens[node] for node in winner]
    if case["greedy"]:
        assert [tokens[node] for node in path] == case["accepted_tokens"]
        assert len(path) - 1 == case["accept_length"]
        assert bonus == case["greedy_bonus"]


@pytest.mark.parametrize("run", RUNS, ids=range(len(RUNS)))
def test_generation(target, drafter, run):
    """The loop's output, cut exactly, and what every step accepted."""
    steps = list(
        generate(
            target,
            drafter,
            run["prompt"],
            sampling=SamplingParams(),
            max_new_tokens=run["max_new_tokens"],
            max_length=4096,
            eos_token_ids=frozenset({run["stop_token_id"]}),
            settings=DraftSettings(
                tree_budget=run["total_token"] - 1,
                eagle3_depth=run["depth"],
                eagle3_top_k=run["top_k"],
            ),
        )
    )
    output = [token for step in steps for token in step.tokens]
    assert output == run["expected_truncated_output"]
    verify = steps[1:]
    assert 0 < len(verify) <= run["n_steps"]
    for step, length, accepted in zip(
        verify, run["accept_lengths"], run["accepted_per_step"], strict=False
    ):
        assert len(step.path) - 1 == length
        assert step.tree.tokens[list(step.path)].tolist() == accepted
