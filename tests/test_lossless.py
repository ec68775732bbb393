"""The headline property: every drafter, greedy and seeded, reproduces plain decoding token for
token (fp32).

Random draws of (target, heads, n-gram, prompt, budgets, end-of-sequence, sampling). The heads are
random too, so most drafts are wrong and the trees are as unhelpful as trees get; forced trees and
the recorded checkpoints' heads add the deep paths.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from models import autoregressive, head_config, output, random_head, random_trees, run, tiny_target

from dart_core.budget import sizes_for
from dart_core.drafters import NGRAM_OFF, DraftSettings
from dart_core.drafters.dart import DartDrafter
from dart_core.drafters.eagle3 import Eagle3Drafter
from dart_core.engine import Engine
from dart_core.heads import DartHead, Eagle3Head
from dart_core.ngram import NgramModel, build_ngram, reduce_ngram
from dart_core.sampling import SamplingParams
from dart_core.verify_cost import VerifyCost

GOLDEN = Path(__file__).parent / "golden"
DRAWS = 160
TARGETS = [
    ("qwen3", {"seed": 0}),
    ("qwen3", {"seed": 1, "num_hidden_layers": 4, "num_key_value_heads": 4, "vocab_size": 300}),
    (
        "qwen3",
        {"seed": 2, "num_hidden_layers": 4, "num_key_value_heads": 1, "tie_word_embeddings": True},
    ),
    ("llama", {"seed": 3, "num_hidden_layers": 4, "head_dim": 24}),
    ("llama", {"seed": 4, "num_hidden_layers": 9, "vocab_size": 128}),
]


@cache
def target(index: int):
    family, changes = TARGETS[index]
    return tiny_target(family, **changes)


@pytest.fixture(scope="module")
def drafters(tmp_path_factory):
    """Per target: its drafters by name. The n-gram knows the target's text after a few prompts."""

    @cache
    def build(index: int):
        loaded = target(index)
        streams = [autoregressive(loaded, [t, t + 1], max_new_tokens=80) for t in range(1, 40, 3)]
        full, small = (tmp_path_factory.mktemp("ngram") / name for name in ("full", "small"))
        build_ngram(streams, 2 + index % 3, loaded.vocab_size, full)
        reduce_ngram(full, 3, small)
        ngrams = {path.name: NgramModel.open(path) for path in (full, small)}

        def head(kind, draft_length):
            size = loaded.vocab_size if index == 1 else loaded.vocab_size // 2
            config = head_config(loaded, draft_length=draft_length, draft_vocab_size=size)
            return random_head(kind, config, seed=index)

        return {
            "dart": DartDrafter(head(DartHead, 7), ngrams, loaded.embed),
            "short dart": DartDrafter(head(DartHead, 3), ngrams, loaded.embed),
            "eagle3": Eagle3Drafter(head(Eagle3Head, None), loaded.embed),
        }

    return build


def scenario(seed: int) -> dict:
    rng = np.random.default_rng(seed)
    index = int(rng.integers(0, len(TARGETS)))
    vocab = target(index).vocab_size
    greedy = rng.random() < 0.4
    return {
        "index": index,
        "prompt": rng.integers(0, vocab, size=int(rng.integers(1, 40))).tolist(),
        "max_new_tokens": int(np.exp(rng.uniform(0, np.log(100)))),
        "settings": DraftSettings(
            tree_budget=int(np.exp(rng.uniform(0, np.log(256)))),
            beam=int(rng.integers(1, 30)),
            ngram_weight=float(rng.choice([0.0, 0.5, 2.0])),
            ngram=(None, "full", "small", NGRAM_OFF)[seed // 2 % 4],
            eagle3_depth=int(rng.integers(0, 9)),
            eagle3_top_k=int(rng.integers(1, 13)),
            prompt_lookup=(0, 0, 3, 40)[seed // 8 % 4],
            auto_budget=seed // 4 % 2 == 1,
        ),
        "sampling": SamplingParams()
        if greedy
        else SamplingParams(
            temperature=float(rng.uniform(0.1, 1.5)),
            top_k=int(rng.choice([0, 1, 5, 50])),
            top_p=float(rng.choice([0.0, 0.3, 0.9, 1.0])),
            seed=int(rng.integers(0, 2**31)),
        ),
        "eos_place": int(rng.integers(0, 60)) if rng.random() < 0.5 else None,
    }


def verify_cost(seed: int) -> VerifyCost:
    """What size is made to cost where it is chosen: hardly anything, or up to ten plain steps."""
    return VerifyCost([1, 2, 64], [0.001, 0.001 + 0.01 * (seed % 3) ** 3 / 8, 0.02])


@pytest.mark.parametrize("seed", range(DRAWS))
def test_every_drafter_emits_what_plain_decoding_emits(seed, drafters):
    draw = scenario(seed)
    index, eos_place = draw.pop("index"), draw.pop("eos_place")
    loaded, prompt, settings = target(index), draw.pop("prompt"), draw.pop("settings")
    expected = autoregressive(loaded, prompt, **draw)
    eos = frozenset()
    if eos_place is not None and eos_place < len(expected):
        eos = frozenset({expected[eos_place]})
        expected = expected[: expected.index(expected[eos_place]) + 1]
    tried = dict(drafters(index))
    if seed % 2:
        del tried["short dart"]
        tried["forced"] = random_trees(expected, seed, settings.tree_budget, loaded.vocab_size)
    for name, drafter in tried.items():
        sizes = sizes_for(drafter, settings, lambda: verify_cost(seed))
        steps = run(
            loaded, drafter, prompt, settings=settings, sizes=sizes, eos_token_ids=eos, **draw
        )
        assert output(steps) == expected, name
        assert steps[-1].finish_reason == ("stop" if expected[-1] in eos else "length"), name
        assert all(step.drafted <= settings.tree_budget for step in steps), name


@pytest.mark.parametrize("name", ["dart", "eagle3"])
def test_trained_heads_emit_what_plain_decoding_emits(name):
    """Random heads are seldom right; the recorded checkpoints' are, so whole paths are accepted."""
    checkpoint = GOLDEN / name / "checkpoint"
    head = {"dart": checkpoint / "dart"} if name == "dart" else {"eagle3": checkpoint / "head"}
    if name == "dart":
        head["ngram"] = GOLDEN / "dart" / "trie" / "a_order3.trie"
    engine = Engine.load(target=checkpoint / "target", dtype=torch.float32, device="cpu", **head)
    runs = json.loads((GOLDEN / name / "generate" / "runs.json").read_text())
    prompts = [run["prompt"] for run in (runs if name == "dart" else runs["runs"])]
    accepted = []
    for seed in range(30):
        draw = scenario(seed)
        draft = draw["settings"]
        if draft.ngram == "small":  # there is one n-gram here
            draft = replace(draft, ngram="full")
        expected_settings = {k: draw[k] for k in ("max_new_tokens", "sampling")}
        prompt, loaded = prompts[seed % len(prompts)], engine.target
        expected = autoregressive(loaded, prompt, **expected_settings)
        eos = frozenset(expected[draw["eos_place"] :][:1] if draw["eos_place"] else [])
        end = min((expected.index(token) for token in eos), default=len(expected))
        steps = run(
            loaded,
            engine.drafter(name),
            prompt,
            settings=draft,
            sizes=sizes_for(engine.drafter(name), draft, lambda: verify_cost(1)),
            eos_token_ids=eos,
            **expected_settings,
        )
        assert output(steps) == expected[: end + 1], seed
        accepted += [step.accepted for step in steps]
    assert max(accepted) >= 4
    assert sum(accepted) > len(accepted) / 2
