"""Conformance of the DART head, its search input, trees and loop with recordings of the published
implementation. (Trie and search alone: test_golden_trie, test_golden_search.)
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from dart_core.drafters import DraftSettings
from dart_core.drafters.dart import DartDrafter, draft_levels
from dart_core.generate import generate
from dart_core.heads import load_dart_head
from dart_core.ngram import NgramModel, import_trie
from dart_core.sampling import SamplingParams
from dart_core.target import Target
from dart_core.tree import DraftTree

GOLDEN = Path(__file__).parent / "golden" / "dart"
CLOSE = {"rtol": 0.0, "atol": 1e-4}
HEAD_CASES = json.loads((GOLDEN / "head" / "cases.json").read_text())
RUNS = json.loads((GOLDEN / "generate" / "runs.json").read_text())
# Below this gap at a cut of the beam, the budget or the 25 best logits, a tree depends on rounding.
CLEAR_MARGIN = 1e-4


@pytest.fixture(scope="module")
def target() -> Target:
    return Target.load(GOLDEN / "checkpoint" / "target", dtype=torch.float32, device="cpu")


@pytest.fixture(scope="module")
def head(target):
    return load_dart_head(
        GOLDEN / "checkpoint" / "dart",
        dtype=torch.float32,
        device="cpu",
        target_config=target.config,
    )


@pytest.fixture(scope="module")
def ngram(tmp_path_factory):
    """Opens a recorded trie by its published file name."""
    folder, opened = tmp_path_factory.mktemp("ngram"), {}

    def open_trie(name: str) -> NgramModel:
        if name not in opened:
            path = folder / f"{name}.ngram"
            import_trie(GOLDEN / "trie" / name, path, vocab_size=512)
            opened[name] = NgramModel.open(path)
        return opened[name]

    yield open_trie
    for model in opened.values():
        model.close()


def paths(tokens, parents) -> set[tuple[int, ...]]:
    """The tree as a set of root-to-node token paths; numbering within a depth means nothing."""
    tree = DraftTree.of(tokens, parents)
    return {tuple(int(tree.tokens[i]) for i in tree.path(node)) for node in range(len(tree))}


def parents_from(mask: torch.Tensor, depths: torch.Tensor) -> list[int]:
    """Parents from a recorded tree mask: the deepest ancestor other than the node itself."""
    parents = [-1]
    for node in range(1, len(depths)):
        ancestors = [i for i in mask[node].nonzero().flatten().tolist() if i != node]
        parents.append(max(ancestors, key=lambda i: int(depths[i])))
    return parents


@pytest.mark.parametrize("name", HEAD_CASES)
def test_head_calls(target, head, name):
    """Prefill and three incremental calls: normed output, doubly normed logits, cache, top-25."""
    recorded = load_file(GOLDEN / "head" / f"{name}.safetensors")
    cache = head.new_cache(256)
    with torch.inference_mode():
        for facts in HEAD_CASES[name]["calls"]:
            prefix = f"call{facts['call']}_"
            assert cache.length == facts["cache_len_before"]
            embeddings = target.embed(recorded[prefix + "embed_ids"])
            output = head(recorded[prefix + "hidden_in"], embeddings, cache)
            logits = head.logits(output)
            torch.testing.assert_close(output, recorded[prefix + "head_out_norm1"], **CLOSE)
            torch.testing.assert_close(logits, recorded[prefix + "logits"], **CLOSE)
            for ours, key in ((cache.keys, "cache_k"), (cache.values, "cache_v")):
                theirs = recorded[prefix + key]
                torch.testing.assert_close(ours[:, : theirs.shape[1]], theirs, **CLOSE)
            assert cache.length == facts["cache_len_before"] + facts["real_positions"]
    assert facts["call"] == 3


@pytest.mark.parametrize("name", HEAD_CASES)
def test_search_input(target, head, name):
    """The 25 best of every level as target ids, softmax over those alone."""
    recorded = load_file(GOLDEN / "head" / f"{name}.safetensors")
    cache = head.new_cache(256)
    with torch.inference_mode():
        for call in range(4):
            prefix = f"call{call}_"
            embeddings = target.embed(recorded[prefix + "embed_ids"])
            ids, scores = draft_levels(head, recorded[prefix + "hidden_in"], embeddings, cache)
            np.testing.assert_array_equal(ids, recorded[prefix + "topk_target_ids"].numpy())
            expected = recorded[prefix + "topk_scores"].numpy()
            np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", HEAD_CASES)
def test_both_norms_matter(target, head, name):
    """The recordings tell one final norm from two."""
    recorded = load_file(GOLDEN / "head" / f"{name}.safetensors")
    once = head.lm_head(recorded["call0_head_out_norm1"])
    assert (once - recorded["call0_logits"]).abs().max() > 0.1


@pytest.mark.parametrize("name", HEAD_CASES)
def test_trees_of_the_recorded_calls(target, head, ngram, name):
    """The drafter fed with the recorded states proposes the recorded trees."""
    recorded = load_file(GOLDEN / "head" / f"{name}.safetensors")
    drafter = DartDrafter(head, {"full": ngram(HEAD_TRIE)}, target.embed)
    run = drafter.begin(recorded["prompt_ids"], 256, DraftSettings(), frozenset({511}))
    with torch.inference_mode():
        for call in range(4):
            prefix = f"call{call}_"
            run.observe(recorded[prefix + "hidden_in"], recorded[prefix + "embed_ids"])
            tree = run.propose().tree
            tokens = recorded[prefix + "draft_tokens"].tolist()
            depths = recorded[prefix + "tree_position_ids"]
            parents = parents_from(recorded[prefix + "tree_mask"], depths)
            assert paths(tree.tokens, tree.parents) == paths(tokens, parents)
            assert sorted(tree.depths()) == sorted(depths.tolist())
    run.close()


@pytest.mark.parametrize("name", HEAD_CASES)
def test_target_passes(target, head, name):
    """Prefill and tree verification: logits and tapped states, along the accepted paths."""
    recorded = load_file(GOLDEN / "head" / f"{name}.safetensors")
    prompt = recorded["prompt_ids"]
    cache = target.new_cache(512)
    output = target.prefill(prompt, cache, taps=head.config.taps)
    torch.testing.assert_close(output.hidden, recorded["prefill_aux_hidden"], **CLOSE)
    torch.testing.assert_close(output.logits[-1], recorded["prefill_lm_logits"][-1], **CLOSE)
    for facts in HEAD_CASES[name]["calls"][:3]:
        prefix = f"call{facts['call']}_"
        tokens, depths = recorded[prefix + "draft_tokens"], recorded[prefix + "tree_position_ids"]
        parents = parents_from(recorded[prefix + "tree_mask"], depths)
        seen = torch.ones(len(tokens), cache.length, dtype=torch.bool)
        mask = torch.cat((seen, recorded[prefix + "tree_mask"].bool()), dim=1)
        output = target.forward(
            tokens, depths + cache.length, cache, mask=mask, taps=head.config.taps
        )
        torch.testing.assert_close(output.logits, recorded[prefix + "verify_lm_logits"], **CLOSE)
        torch.testing.assert_close(output.hidden, recorded[prefix + "verify_aux_hidden"], **CLOSE)
        best = output.logits.argmax(-1).tolist()
        path, bonus = DraftTree.of(tokens, parents).accept(best.__getitem__)
        assert tokens[path[1:]].tolist() == facts["accepted_draft_ids"]
        assert bonus == facts["next_token"]
        following = recorded[f"call{facts['call'] + 1}_hidden_in"]
        torch.testing.assert_close(output.hidden[path], following, **CLOSE)
        cache.keep(path)


HEAD_TRIE = "a_order3.trie"


@pytest.mark.parametrize("run", RUNS, ids=[run["id"] for run in RUNS])
def test_generation(target, head, ngram, run):
    """Output, cut exactly; every step's accepted drafts, and its tree where no rounding decides."""
    steps = list(
        generate(
            target,
            DartDrafter(head, {"full": ngram(run["trie"])}, target.embed),
            run["prompt"],
            sampling=SamplingParams(),
            max_new_tokens=run["max_new_token_num"],
            max_length=run["max_length"],
            eos_token_ids=frozenset({run["eos_token"]}),
            settings=DraftSettings(tree_budget=run["remain_total"]),
        )
    )
    output = [token for step in steps for token in step.tokens]
    expected = run["hf_ar_output_ids"][len(run["prompt"]) :][: run["max_new_token_num"]]
    if run["eos_token"] in expected:
        expected = expected[: expected.index(run["eos_token"]) + 1]
    assert output == expected
    verify = steps[1:]
    assert 0 < len(verify) <= len(run["steps"])
    for step, theirs in zip(verify, run["steps"], strict=False):
        assert step.tree.tokens[0] == theirs["draft_tokens"][0]
        ours = paths(step.tree.tokens, step.tree.parents)
        if ours != paths(theirs["draft_tokens"], theirs["parents"]):
            # Another tree may accept another number of tokens; from there on the steps differ.
            assert theirs["advisory_margin"] <= CLEAR_MARGIN
            break
        accepted = step.tree.tokens[list(step.path)][1:].tolist()
        assert accepted == theirs["accepted"]
        assert len(accepted) == theirs["accept_length"]
        assert step.bonus == theirs["next_token"]
