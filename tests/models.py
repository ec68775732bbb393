"""Tiny targets, random heads and forced drafters: the whole engine on a CPU in milliseconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from dart_core.drafters import DraftSettings, Proposal, nothing
from dart_core.drafters.autoregressive import AutoregressiveDrafter
from dart_core.generate import generate
from dart_core.heads.config import HeadConfig
from dart_core.step import Step
from dart_core.target import Target
from dart_core.tree import DraftTree


def tiny_model(family: str = "qwen3", *, seed: int = 0, vocab_size: int = 512, **changes):
    """A randomly initialised target: 7 layers, hidden 64, grouped key/value heads."""
    torch.manual_seed(seed)
    config = {"qwen3": Qwen3Config, "llama": LlamaConfig}[family]
    sizes = {
        "vocab_size": vocab_size,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 7,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 1024,
        "initializer_range": 0.3,  # wide: logits lie far apart, texts do not loop at once
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    return AutoModelForCausalLM.from_config(config(**{**sizes, **changes}))


def tiny_target(family: str = "qwen3", **kwargs) -> Target:
    return Target(tiny_model(family, **kwargs))


def head_config(target: Target, *, draft_length: int | None, draft_vocab_size: int) -> HeadConfig:
    """The config of a head that fits a tiny target; ``draft_length=None`` is an EAGLE3 head."""
    return HeadConfig(
        hidden_size=target.hidden_size,
        intermediate_size=96,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        vocab_size=target.vocab_size,
        draft_vocab_size=draft_vocab_size,
        target_hidden_size=target.hidden_size,
        draft_length=draft_length,
        target_layers=target.num_layers,
    )


def random_head(kind: type, config: HeadConfig, seed: int):
    """A head with random weights and a random draft vocabulary."""
    torch.manual_seed(seed)
    head = kind(config).requires_grad_(False).eval()
    for name, parameter in head.named_parameters():
        if "norm" not in name:
            torch.nn.init.normal_(parameter, std=0.2)
    if config.draft_vocab_size < config.vocab_size:
        chosen = torch.randperm(config.vocab_size)[: config.draft_vocab_size].sort().values
        head.set_draft_vocabulary(chosen)
    return head


class ForcedDrafter:
    """Proposes whatever ``propose(position, last_token)`` returns, a DraftTree whose root is
    ``last_token``.

    ``position`` is the number of committed tokens after the prompt. It also checks what the loop
    hands it: hidden states must pair with the tokens that follow them.
    """

    name = "forced"

    def __init__(self, propose: Callable[[int, int], DraftTree], taps: tuple[int, ...] = ()):
        self.propose_tree, self.taps = propose, taps
        self.open_runs = 0

    def begin(self, prompt, capacity: int, settings: DraftSettings, eos: frozenset[int]):
        self.open_runs += 1
        return _ForcedRun(self, len(prompt))


class _ForcedRun:
    def __init__(self, drafter: ForcedDrafter, prompt_length: int):
        self.drafter, self.prompt_length, self.seen = drafter, prompt_length, 0

    def observe(self, hidden, tokens) -> None:
        if self.drafter.taps:
            assert hidden.shape[0] == len(tokens)
        assert self.seen or len(tokens) == self.prompt_length
        self.seen += len(tokens)
        self.last = int(tokens[-1])

    def propose(self, limit: int | None = None, meanwhile=nothing) -> Proposal:
        position = self.seen - self.prompt_length + 1
        return Proposal(self.drafter.propose_tree(position, self.last), 0.0, 0.0, "none")

    def close(self) -> None:
        self.drafter.open_runs -= 1


def chain(root: int, tokens: Sequence[int]) -> DraftTree:
    return DraftTree.of([root, *tokens], [-1, *range(len(tokens))])


def oracle(continuation: Sequence[int], length: int) -> ForcedDrafter:
    """Proposes the next ``length`` tokens of the AR run, so all of them are accepted."""
    return ForcedDrafter(lambda at, last: chain(last, continuation[at : at + length]))


def wrong(continuation: Sequence[int], length: int, vocab_size: int) -> ForcedDrafter:
    """Proposes only tokens the target does not pick."""

    def tree(at: int, last: int) -> DraftTree:
        picked = continuation[at] if at < len(continuation) else 0
        return chain(last, [(picked + 1 + i) % vocab_size for i in range(length)])

    return ForcedDrafter(tree)


def random_trees(
    continuation: Sequence[int], seed: int, nodes: int, vocab_size: int
) -> ForcedDrafter:
    """Random trees in which six nodes in ten carry the AR run's token of their place; siblings may
    repeat a token.
    """
    rng = np.random.default_rng(seed)

    def tree(at: int, last: int) -> DraftTree:
        tokens, parents, depths = [last], [-1], [0]
        for _ in range(nodes):
            parent = int(rng.integers(0, len(tokens)))
            place = at + depths[parent]
            hit = place < len(continuation) and rng.random() < 0.6
            tokens.append(continuation[place] if hit else int(rng.integers(0, vocab_size)))
            parents.append(parent)
            depths.append(depths[parent] + 1)
        return DraftTree.of(tokens, parents)

    return ForcedDrafter(tree, taps=(1, 2, 3))


def run(target: Target, drafter, prompt: Sequence[int], **options) -> list[Step]:
    return list(generate(target, drafter, prompt, **options))


def output(steps: Sequence[Step]) -> list[int]:
    return [token for step in steps for token in step.tokens]


def autoregressive(target: Target, prompt: Sequence[int], **options) -> list[int]:
    return output(run(target, AutoregressiveDrafter(), prompt, **options))
