"""τ without decoding: draft trees replayed against text that the target wrote once.

Whatever the drafter, the emitted text is the target's own. So the text and the target's states
along it are all that drafting needs, and any head, n-gram or tree size can be measured on them
without running the target again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dart_core.drafters import Drafter, DraftSettings
from dart_core.training.decoding import continue_prompts
from dart_core.training.features import (
    FeatureCache,
    Features,
    RecomputedFeatures,
    target_features,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class Passage:
    """A prompt of P tokens and what the target wrote after it.

    tokens int64 [N], prompt first; hidden [N, taps * H], the target's states at these positions.
    """

    tokens: Tensor
    hidden: Tensor
    prompt: int


@dataclass(frozen=True, slots=True)
class Replay:
    """new_tokens: emitted by verify steps, cut at the end of the text. accepted: by step, drafts
    accepted.
    """

    new_tokens: int
    accepted: tuple[int, ...]

    @property
    def steps(self) -> int:
        return len(self.accepted)


@torch.inference_mode()
def replay(
    drafter: Drafter,
    passage: Passage,
    settings: DraftSettings,
    eos: frozenset[int] = frozenset(),
) -> Replay:
    """Every verify step of a run that emits exactly the passage's text; ``eos`` as the run's."""
    tokens, length = passage.tokens, len(passage.tokens)
    run = drafter.begin(tokens[: passage.prompt], length, settings, eos)
    committed = passage.prompt + 1  # the prefill emits the first token
    run.observe(passage.hidden[: passage.prompt], tokens[1:committed])
    emitted, accepted = 0, []
    while committed < length:
        tree = run.propose().tree
        depths = tree.depths()

        def draw(node: int, depths: np.ndarray = depths, first: int = committed) -> int:
            place = first + int(depths[node])
            return int(tokens[place]) if place < length else -1

        path, _ = tree.accept(draw)
        end = min(committed + len(path), length)  # accepted drafts and the target's own token
        emitted += end - committed
        accepted.append(len(path) - 1)
        if end < length:
            run.observe(passage.hidden[committed - 1 : end - 1], tokens[committed:end])
        committed = end
    run.close()
    return Replay(emitted, tuple(accepted))


def tau(replays: Iterable[Replay]) -> float | None:
    """Tokens per verify step over all passages, each step counted alike; None without a step."""
    replays = list(replays)
    steps = sum(r.steps for r in replays)
    return sum(r.new_tokens for r in replays) / steps if steps else None


def held_out_passages(
    cache: FeatureCache | RecomputedFeatures | Sequence[Features],
    count: int,
    max_new_tokens: int = 128,
) -> Iterator[Passage]:
    """The first answer of each of the first ``count`` sequences of a cache."""
    for index in range(min(count, len(cache))):
        item = cache[index]
        own = item.supervised.nonzero().squeeze(1)
        start = int(own[0])
        rest = (~item.supervised[start:]).nonzero()
        end = start + (int(rest[0]) if len(rest) else len(item.tokens) - start)
        end = min(end, start + max_new_tokens)
        if end - start > 1:
            yield Passage(item.tokens[:end], item.hidden[:end], start)


@torch.inference_mode()
def written_passages(
    model: PreTrainedModel,
    prompts: list[list[int]],
    taps: tuple[int, ...],
    max_new_tokens: int,
    eos: Set[int],
    batch: int = 8,
) -> Iterator[Passage]:
    """Let the target answer prompts greedily, as plain decoding does, and read its states along the
    answers. eos: tokens that end one.
    """
    for start in range(0, len(prompts), batch):
        group = prompts[start : start + batch]
        zeros, limits = [0.0] * len(group), [max_new_tokens] * len(group)
        written = continue_prompts(model, group, zeros, limits, eos, seed=0)
        for ids, row in zip(group, written, strict=True):
            if len(row) < 2:  # the prefill's own token: no verify step
                continue
            whole = torch.tensor([ids + row])
            nothing = torch.zeros_like(whole, dtype=torch.bool)
            hidden, _, _ = target_features(model, whole.to(model.device), taps, nothing, 1)
            yield Passage(whole[0], hidden[0].cpu(), len(ids))
