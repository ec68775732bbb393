"""The target's law, as transformers computes it: what sampled text is judged by."""

from __future__ import annotations

import torch
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from dart_core.sampling import SamplingParams

SIGNIFICANCE = 1e-4


def warped(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """The filtered distribution [..., V] by transformers' own warpers: the oracle."""
    scores = logits.reshape(-1, logits.shape[-1]).float()
    scores = TemperatureLogitsWarper(params.temperature)(None, scores)
    if params.top_k:
        scores = TopKLogitsWarper(params.top_k)(None, scores)
    if 0 < params.top_p < 1:
        scores = TopPLogitsWarper(params.top_p)(None, scores)
    return scores.view(logits.shape).softmax(-1)
