"""The draft vocabulary: the target tokens that a head can propose, chosen by how often the target
writes them.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from dart_core.errors import ArenaError
from dart_core.training.data import Sequence


def count_tokens(sequences: Iterable[Sequence], vocab_size: int) -> np.ndarray:
    """How often each token is supervised: int64 [vocab_size]."""
    counts = np.zeros(vocab_size, dtype=np.int64)
    for sequence in sequences:
        counts += np.bincount(sequence.tokens[sequence.supervised], minlength=vocab_size)
    return counts


def choose_draft_vocabulary(counts: np.ndarray, size: int) -> torch.Tensor:
    """The ``size`` most frequent token ids, ascending, int64 [size].

    Ties, and so all unseen tokens, go to the lowest id: BPE numbers tokens roughly by frequency.
    """
    if not 0 < size <= len(counts):
        raise ArenaError(
            f"draft vocabulary of {size} tokens: expected 1 to {len(counts)}, the target's"
        )
    order = np.lexsort((np.arange(len(counts)), -counts))
    return torch.from_numpy(np.sort(order[:size]).astype(np.int64))


def draft_ids(target_ids: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """The inverse of a draft vocabulary: int64 [vocab_size], -1 for tokens without a draft id."""
    inverse = torch.full((vocab_size,), -1, dtype=torch.int64)
    inverse[target_ids] = torch.arange(len(target_ids))
    return inverse
