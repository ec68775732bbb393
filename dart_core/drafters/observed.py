"""What a head-based drafter has been shown but has not read yet."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from dart_core.heads.layers import DraftHead


class Observed:
    """Committed tokens and the target states before them, kept until the head's next forward."""

    def __init__(self, head: DraftHead, embed: Callable[[Tensor], Tensor]) -> None:
        self._head, self._embed = head, embed
        weight = getattr(embed, "weight", None)
        self._embed_device = weight.device if weight is not None else head.device
        self._hidden: list[Tensor] = []
        self._tokens: list[Tensor] = []

    def add(self, hidden: Tensor | None, tokens: Tensor) -> None:
        """hidden [S, 3 * target hidden]; tokens int64 [S], ``tokens[i]`` follows ``hidden[i]``."""
        assert hidden is not None, "a drafter with taps is given the target's states"
        self._hidden.append(hidden)
        self._tokens.append(tokens)

    def take(self) -> tuple[Tensor, Tensor]:
        """Everything added since the last call: states and token embeddings, for the head."""
        hidden, tokens = self.take_tokens()
        return hidden, self.embed(tokens)

    def take_tokens(self) -> tuple[Tensor, Tensor]:
        """As ``take``, with the tokens themselves, int64 [S] on the CPU."""
        assert self._tokens, "propose needs an observe before it"
        hidden, tokens = torch.cat(self._hidden), torch.cat(self._tokens)
        self._hidden.clear()
        self._tokens.clear()
        return hidden.to(self._head.device, self._head.dtype), tokens

    def embed(self, tokens: Tensor) -> Tensor:
        """Token ids -> embeddings in the head's dtype, on its device (a sharded target embeds
        elsewhere).
        """
        vectors = self._embed(tokens.to(self._embed_device))
        return vectors.to(self._head.device, self._head.dtype)
