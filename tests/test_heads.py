"""The heads' pieces against plain formulas, and both drafters in the loop."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from head_files import DRAFT_VOCAB, Folder, outputs, prompt_of
from models import head_config, random_head, tiny_model, tiny_target

from dart_core.drafters import DraftSettings
from dart_core.drafters.autoregressive import AutoregressiveDrafter
from dart_core.drafters.dart import DartDrafter
from dart_core.drafters.eagle3 import Eagle3Drafter, Pool, rerank
from dart_core.heads import DartHead, HeadConfig
from dart_core.heads.layers import attend, rope_table, rotate
from dart_core.ngram import NgramModel, build_ngram
from dart_core.packing import pack_linears
from dart_core.target import Target


@pytest.fixture(scope="module")
def target():
    return tiny_target()


@pytest.fixture(params=["dart", "eagle3"])
def folder(request, tmp_path, target) -> Folder:
    return Folder(tmp_path / "head", target, request.param)


@pytest.fixture
def eagle3(tmp_path, target) -> Folder:
    return Folder(tmp_path / "head", target, "eagle3")


def test_attention_is_the_plain_formula():
    """Grouped heads, a mask on the last keys: against repeated keys and a full mask."""
    torch.manual_seed(0)
    query, keys, values = torch.randn(6, 4, 8), torch.randn(2, 11, 8), torch.randn(2, 11, 8)
    tail = torch.where(torch.rand(4, 5) > 0.5, 0.0, -torch.inf)
    mask = torch.cat((torch.zeros(4, 6), tail), dim=1)
    expected = torch.nn.functional.scaled_dot_product_attention(
        query, keys.repeat_interleave(3, 0), values.repeat_interleave(3, 0), attn_mask=mask
    )
    ours = attend(query, keys, values, tail)
    torch.testing.assert_close(ours, expected.transpose(0, 1).reshape(4, 48))
    batched = attend(
        query.expand(3, 6, 4, 8), keys.expand(3, 2, 11, 8), values.expand(3, 2, 11, 8), tail
    )
    torch.testing.assert_close(batched, ours.expand(3, 4, 48))


def test_rotation_keeps_distances():
    """Scores of rotated vectors depend on the distance of their positions only."""
    config = HeadConfig(64, 96, 4, 2, 16, 512, 512, 64)
    cosines, sines = rope_table(config, 40, dtype=torch.float32, device="cpu")
    a, b = torch.randn(2, 1, 16)

    def score(i: int, j: int) -> float:
        rows = slice(i, i + 1), slice(j, j + 1)
        left = rotate(a, cosines[rows[0]], sines[rows[0]])
        return (left * rotate(b, cosines[rows[1]], sines[rows[1]])).sum().item()

    assert score(3, 7) == pytest.approx(score(30, 34), abs=1e-4)
    assert score(3, 7) != pytest.approx(score(3, 8), abs=1e-4)


def test_rerank_is_closed_under_ties():
    """Children that tie with their parents never come without them."""
    pool = Pool(
        scores=torch.tensor([-1.0, 0.0, -1.0, 0.0, 0.0, -1.0]).numpy(),
        tokens=torch.tensor([11, 12, 13, 14, 15, 16]).numpy(),
        parents=torch.tensor([-1, -1, 0, 1, 3, 4]).numpy(),
    )
    for budget in range(1, 9):
        tree, candidates = rerank(pool, 5, budget, candidates=True)
        assert tree.drafted == min(budget, 6)
        assert tree.tokens[0] == 5
        assert (candidates.node >= 0).sum() == tree.drafted
        for index, node in enumerate(candidates.node):
            if node < 0:
                continue
            parent = candidates.parents[index]
            assert tree.tokens[node] == candidates.tokens[index]
            assert tree.parents[node] == (0 if parent < 0 else candidates.node[parent])
    tree, _ = rerank(pool, 5, 3)
    assert tree.tokens.tolist() == [5, 12, 14, 15]
    assert tree.probabilities.tolist() == pytest.approx([1.0, 1.0, 1.0, 1.0])


def next_logits(target, committed: list[int], length: int = 3) -> torch.Tensor:
    prompt = [*prompt_of(target, length), *committed]
    return target.prefill(torch.tensor(prompt), target.new_cache(len(prompt))).logits[-1].float()


@pytest.mark.parametrize("length", [60, 64, 65, 200])
def test_beyond_the_declared_positions(folder, length):
    """64 declared positions; RoPE is extended, the output stays the target's."""
    folder.config["max_position_embeddings"] = 64
    drafter = folder.drafter()
    assert any("declares 64 positions" in note for note in drafter.head.notes)
    expected = outputs(folder.target, AutoregressiveDrafter(), length)
    assert outputs(folder.target, drafter, length) == expected


@pytest.mark.parametrize(
    "settings",
    [
        {"tree_budget": 1},
        {"tree_budget": 4096, "eagle3_depth": 3, "count": 2},
        {"eagle3_top_k": 256, "eagle3_depth": 1, "beam": 300},
        {"eagle3_depth": 0, "tree_budget": 200},
    ],
)
def test_settings_beyond_the_pool(folder, settings):
    """Budgets above the pool and top-k above the draft vocabulary are clamped."""
    expected = outputs(folder.target, AutoregressiveDrafter())[: settings.get("count", 16)]
    assert outputs(folder.target, folder.drafter(), **settings) == expected


@pytest.mark.parametrize("layout", ["single", "sharded", "stale index"])
def test_heads_borrow_a_tied_embedding(folder, tmp_path, layout):
    """The target is one file without lm_head, or shards, or one file beside a stale index; who has
    it loaded needs its files no more.
    """
    path = tmp_path / "target"
    tied = tiny_model(tie_word_embeddings=True)
    tied.save_pretrained(path, max_shard_size="100KB" if layout == "sharded" else "1GB")
    if layout == "stale index":
        stale = {
            "metadata": {},
            "weight_map": {"lm_head.weight": "model-00001-of-00002.safetensors"},
        }
        (path / "model.safetensors.index.json").write_text(json.dumps(stale))
    assert (path / "model.safetensors").exists() == (layout != "sharded")
    folder.target = Target.load(path, dtype=torch.float32, device="cpu")
    shutil.rmtree(path)
    weight = tied.get_input_embeddings().weight
    assert torch.equal(folder.target.embed.weight, weight)
    states = torch.eye(64)
    torch.testing.assert_close(folder.target.model.lm_head(states), weight.T)
    expected = outputs(folder.target, AutoregressiveDrafter())
    assert outputs(folder.target, folder.drafter()) == expected


@pytest.mark.parametrize("stored", [torch.float16, torch.float32])
def test_drafting_in_the_targets_dtype(folder, stored):
    """A bf16 target with a head stored otherwise; what differs from AR must be a tie."""
    folder.target = Target(tiny_model().to(torch.bfloat16))
    folder.tensors = {
        name: tensor.to(stored) if tensor.is_floating_point() else tensor
        for name, tensor in folder.tensors.items()
    }
    drafter = folder.drafter(dtype=torch.bfloat16)
    expected = outputs(folder.target, AutoregressiveDrafter())
    ours = outputs(folder.target, drafter)
    assert len(ours) == len(expected)
    differing = [i for i, pair in enumerate(zip(ours, expected, strict=True)) if len(set(pair)) > 1]
    if differing:
        committed = expected[: differing[0]]
        rows = next_logits(folder.target, committed)
        gap = rows[expected[differing[0]]] - rows[ours[differing[0]]]
        assert gap.abs() < 2**-5 * rows.abs().max()


def test_draft_vocabulary_below_the_candidates_per_level(tmp_path, target):
    config = head_config(target, draft_length=2, draft_vocab_size=11)
    drafter = DartDrafter(random_head(DartHead, config, seed=6), {}, target.embed)
    assert outputs(target, drafter) == outputs(target, AutoregressiveDrafter())


def test_eagle3_drafts_alike_when_it_drafts_less(eagle3, monkeypatch):
    """Leaving out what cannot enter the tree does not change the tree, at any budget."""
    head, embed = eagle3.load(), eagle3.target.embed
    logits, rows = head.logits, []
    monkeypatch.setattr(head, "logits", lambda states: rows.append(len(states)) or logits(states))
    torch.manual_seed(1)
    hidden, tokens = torch.randn(9, 192), torch.randint(512, (9,))
    drafted = []
    for budget in (1, 2, 5, 16, 60, 200):
        trees = []
        for candidates in (False, True):
            rows.clear()
            settings = DraftSettings(tree_budget=budget, candidates=candidates)
            run = Eagle3Drafter(head, embed).begin(tokens, 96, settings, frozenset())
            run.observe(hidden, tokens)
            proposal = run.propose()
            trees.append(proposal.tree)
            drafted.append(sum(rows))
        assert len(proposal.candidates.tokens) == 10 + 7 * 100
        assert trees[0].drafted == budget
        assert trees[0].tokens.tolist() == trees[1].tokens.tolist()
        assert trees[0].parents.tolist() == trees[1].parents.tolist()
    assert set(drafted[1::2]) == {1 + 7 * 10}
    assert drafted[0] < drafted[4] < drafted[-1]


def test_dart_drafts_alike_when_it_drafts_less(tmp_path, target, monkeypatch):
    """A tree has no more levels than drafts: those beyond are not drafted, and nothing changes."""
    config = head_config(target, draft_length=5, draft_vocab_size=DRAFT_VOCAB)
    head = random_head(DartHead, config, seed=8)
    logits, rows = head.logits, []
    monkeypatch.setattr(head, "logits", lambda states: rows.append(len(states)) or logits(states))
    torch.manual_seed(1)
    hidden, tokens = torch.randn(9, 192), torch.randint(512, (9,))
    path = tmp_path / "order3.ngram"
    build_ngram([tokens.tolist() * 3], 3, target.vocab_size, path)
    with NgramModel.open(path) as ngram:
        drafter = DartDrafter(head, {"full": ngram}, target.embed)
        for budget in (1, 2, 5, 6, 60):
            trees = []
            for candidates in (False, True):
                rows.clear()
                settings = DraftSettings(candidates=candidates)
                run = drafter.begin(tokens, 96, settings, frozenset())
                run.observe(hidden, tokens)
                trees.append(run.propose(budget).tree)
                assert rows == [6 if candidates else min(budget, 6)]
                assert run.cache.length == 9
            assert trees[0].drafted == budget
            assert trees[0].tokens.tolist() == trees[1].tokens.tolist()
            assert trees[0].parents.tolist() == trees[1].parents.tolist()
            np.testing.assert_allclose(trees[0].scores, trees[1].scores, atol=1e-5)


def test_observing_in_pieces_is_observing_at_once(folder):
    drafter = folder.drafter()
    torch.manual_seed(2)
    hidden, tokens = torch.randn(9, 192), torch.randint(512, (9,))
    trees = []
    for pieces in ([9], [4, 4, 1]):
        run = drafter.begin(tokens, 32, DraftSettings(), frozenset())
        for part, ids in zip(hidden.split(pieces), tokens.split(pieces), strict=True):
            run.observe(part, ids)
        trees.append(run.propose().tree)
    assert trees[0].tokens.tolist() == trees[1].tokens.tolist()
    assert trees[0].tokens[0] == tokens[-1]


def test_packed_heads_draft_the_same_trees(folder):
    drafter = folder.drafter()
    torch.manual_seed(3)
    hidden, tokens = torch.randn(9, 192), torch.randint(512, (9,))
    trees = []
    for _ in range(2):
        run = drafter.begin(tokens, 32, DraftSettings(tree_budget=12), frozenset())
        run.observe(hidden, tokens)
        trees.append(run.propose().tree)
        pack_linears(drafter.head)
    assert trees[0].tokens.tolist() == trees[1].tokens.tolist()
    np.testing.assert_allclose(trees[0].scores, trees[1].scores, atol=1e-4)


def test_the_ngram_reads_across_the_prompts_end(tmp_path, target):
    """A one-token prompt: its token is part of the context of the first search."""
    path = tmp_path / "order4.ngram"
    build_ngram([[1, 2, 3, 4]], 4, target.vocab_size, path)
    config = head_config(target, draft_length=2, draft_vocab_size=DRAFT_VOCAB)
    with NgramModel.open(path) as ngram:
        drafter = DartDrafter(random_head(DartHead, config, seed=7), {"full": ngram}, target.embed)
        run = drafter.begin(torch.tensor([9]), 32, DraftSettings(), frozenset())
        run.observe(torch.randn(1, 192), torch.tensor([8]))
        assert run.context == [9, 8]
        run.observe(torch.randn(3, 192), torch.tensor([7, 6, 5]))
        assert run.context == [7, 6, 5]
        assert run.propose().tree.tokens[0] == 5
