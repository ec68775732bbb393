"""Decoding many prompts at once, for training data: what is finished leaves the batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dart_core.sampling import greedy_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TOP_K = 50  # tokens that sampling chooses from
SHRINK = 7 / 8  # of the rows still going: then the others are let go


def draw(scores: Tensor, temperatures: Tensor, generator: torch.Generator) -> Tensor:
    """A token for each row of scores [B, V] at its own temperature [B], of the best 50: int64 [B].
    0 takes the best one, of equals the lowest, as plain decoding does.
    """
    best = scores.float().topk(min(TOP_K, scores.shape[-1]), dim=-1)
    heated = best.values / temperatures.clamp(min=1e-6)[:, None]
    chosen = torch.multinomial(heated.softmax(-1), 1, generator=generator)
    drawn = best.indices.gather(1, chosen).squeeze(1)
    return torch.where(temperatures == 0, greedy_tokens(scores), drawn)


@torch.inference_mode()
def continue_prompts(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    temperatures: Sequence[float],
    limits: Sequence[int],
    ends: Set[int],
    *,
    seed: int,
    each_step: Callable[[int], bool] = lambda count: True,
) -> list[list[int]]:
    """What the model writes after each prompt: up to ``limits`` tokens, the one of ``ends`` that
    ends it included. Nothing of the model's generation config is applied.

    ``each_step`` is called with the number of tokens each step has written; where it returns False,
    all answers stop there.
    """
    from transformers import DynamicCache

    device = model.device
    generator = torch.Generator(device).manual_seed(seed)
    longest = max(map(len, prompts))
    tokens = torch.zeros(len(prompts), longest, dtype=torch.int64)
    mask = torch.zeros(len(prompts), longest, dtype=torch.int64)
    for row, ids in enumerate(prompts):  # padded on the left: all rows write at the same place
        tokens[row, longest - len(ids) :] = torch.tensor(ids)
        mask[row, longest - len(ids) :] = 1
    tokens, mask = tokens.to(device), mask.to(device)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    heats = torch.tensor(temperatures, device=device)
    cache = DynamicCache(config=model.config)
    written: list[list[int]] = [[] for _ in prompts]
    rows = list(range(len(prompts)))  # the prompt of every row of the batch
    going = [limit > 0 for limit in limits]
    while any(going[row] for row in rows):
        scores = model(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=positions,
            cache=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]
        drawn = draw(scores, heats, generator)
        count = 0
        for row, token in zip(rows, drawn.tolist(), strict=True):
            if going[row]:
                written[row].append(token)
                going[row] = token not in ends and len(written[row]) < limits[row]
                count += 1
        if not each_step(count):
            break
        keep = [place for place, row in enumerate(rows) if going[row]]
        tokens, positions = drawn[:, None], positions[:, -1:] + 1
        mask = torch.cat((mask, torch.ones_like(tokens)), dim=1)
        if keep and len(keep) <= SHRINK * len(rows):
            chosen = torch.tensor(keep, device=device)
            cache.batch_select_indices(chosen)
            tokens, positions, mask = tokens[chosen], positions[chosen], mask[chosen]
            heats, rows = heats[chosen], [rows[place] for place in keep]
    return written
