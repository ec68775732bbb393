"""Cross-entropy to the target's distribution, fused with ``lm_head``.

The logits of a batch would be the largest tensor of a training step. Here they live one block of
rows at a time, and the gradients are made in the same visit.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_BLOCK = 256  # rows whose fp32 logits exist at one time


class _SoftCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, ids: Tensor, mass: Tensor
    ) -> tuple[Tensor, Tensor]:
        losses = torch.empty(len(states), device=states.device)
        # d loss / d logits = mass.sum() * softmax(logits) - mass
        slopes = torch.empty(len(states), len(weight), dtype=weight.dtype, device=states.device)
        for start in range(0, len(states), _BLOCK):
            block = slice(start, start + _BLOCK)
            logits = (states[block] @ weight.T).float()
            normaliser = logits.logsumexp(-1, keepdim=True)
            total = mass[block].sum(-1, keepdim=True)
            losses[block] = (mass[block] * (normaliser - logits.gather(1, ids[block]))).sum(-1)
            slope = (
                logits.sub_(normaliser).exp_().mul_(total).scatter_add_(1, ids[block], -mass[block])
            )
            slopes[block] = slope.to(weight.dtype)
        ctx.save_for_backward(slopes @ weight, slopes.T @ states)
        ctx.mark_non_differentiable(losses)
        return losses.sum(), losses

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        state_grad, weight_grad = ctx.saved_tensors
        return state_grad * upstream, weight_grad * upstream, None, None


def soft_cross_entropy(
    states: Tensor, weight: Tensor, ids: Tensor, mass: Tensor
) -> tuple[Tensor, Tensor]:
    """Cross-entropy of soft labels: the sum over rows, to be differentiated, and each row's part,
    float32 [M].

    A row's part is the sum over k of -mass[:, k] * log softmax(states @ weight.T)[ids[:, k]].
    states [M, H]; weight [V, H]; ids int64 [M, K]; mass float32 [M, K], zero where an entry does
    not count. A row's mass need not sum to one: row weights are folded in, and what the target
    gives to tokens outside the draft vocabulary is left out.
    """
    return _SoftCrossEntropy.apply(states, weight, ids, mass)
