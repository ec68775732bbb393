"""The target's hidden states and next-token distributions along given texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from dart_core.training.data import Sequence

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TOP_K = 32  # next tokens whose probability is kept


@dataclass(frozen=True, slots=True)
class Features:
    """One sequence: tokens int64 [S], supervised bool [S], hidden [S, taps*H], top_ids int64 /
    top_logprobs f32 [S, K].
    """

    tokens: torch.Tensor
    supervised: torch.Tensor
    hidden: torch.Tensor
    top_ids: torch.Tensor
    top_logprobs: torch.Tensor


@torch.inference_mode()
def target_features(
    model: PreTrainedModel,
    tokens: torch.Tensor,
    taps: tuple[int, ...],
    wanted: torch.Tensor,
    top_k: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One target pass over right-padded rows.

    tokens int64 [B, S]; wanted bool [B, S]: positions whose next-token distribution is needed (M of
    them, row-major). Returns hidden [B, S, len(taps) * H], top_ids int64 [M, K] and top_logprobs
    float32 [M, K].
    """
    states: dict[int, torch.Tensor] = {}
    layers = model.model.layers
    hooks = [
        layers[tap].register_forward_pre_hook(
            lambda _, args, kwargs, tap=tap: states.__setitem__(
                tap, args[0] if args else kwargs["hidden_states"]
            ),
            with_kwargs=True,
        )
        for tap in taps
    ]
    try:
        # Causal attention: padding on the right is never seen by a real token.
        last = model.model(input_ids=tokens, use_cache=False).last_hidden_state
    finally:
        for hook in hooks:
            hook.remove()
    rows = last[wanted]
    top_ids = torch.empty(len(rows), top_k, dtype=torch.int64, device=tokens.device)
    top_logprobs = torch.empty(len(rows), top_k, device=tokens.device)
    for start in range(0, len(rows), 256):
        logits = model.lm_head(rows[start : start + 256]).float()
        values, top_ids[start : start + 256] = logits.topk(top_k, dim=-1)
        top_logprobs[start : start + 256] = values - logits.logsumexp(-1, keepdim=True)
    return torch.cat([states[tap] for tap in taps], dim=-1), top_ids, top_logprobs


def compute_features(
    model: PreTrainedModel,
    sequences: list[Sequence],
    taps: tuple[int, ...],
    top_k: int = TOP_K,
) -> list[Features]:
    """The features of some sequences in one pass of the target, on the CPU."""
    longest = max(len(s.tokens) for s in sequences)
    rows = torch.zeros(len(sequences), longest, dtype=torch.int64)
    wanted = torch.zeros(len(sequences), longest, dtype=torch.bool)
    for row, sequence in enumerate(sequences):
        length = len(sequence.tokens)
        rows[row, :length] = torch.from_numpy(sequence.tokens)
        wanted[row, : length - 1] = torch.from_numpy(sequence.supervised[1:])
    states, ids, logprobs = target_features(
        model, rows.to(model.device), taps, wanted.to(model.device), top_k
    )
    states, ids, logprobs = states.cpu(), ids.cpu(), logprobs.cpu()
    items, taken = [], 0
    for row, sequence in enumerate(sequences):
        length, places = len(sequence.tokens), wanted[row].nonzero().squeeze(1)
        top_ids = torch.zeros(length, top_k, dtype=torch.int64)
        top_logprobs = torch.zeros(length, top_k)
        top_ids[places] = ids[taken : taken + len(places)]
        # Rounded as on disk: computed again or read, a sequence is the same.
        top_logprobs[places] = logprobs[taken : taken + len(places)].half().float()
        taken += len(places)
        items.append(
            Features(
                rows[row, :length],
                torch.from_numpy(sequence.supervised),
                states[row, :length],
                top_ids,
                top_logprobs,
            )
        )
    return items
