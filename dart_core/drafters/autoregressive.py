"""Plain autoregressive decoding as a drafter: its tree is only the root."""

from __future__ import annotations

from collections.abc import Callable

import torch

from dart_core.drafters import DraftSettings, Proposal, nothing
from dart_core.tree import DraftTree


class AutoregressiveDrafter:
    """Drafts nothing, so every verify step is one forward of one token."""

    name = "ar"
    taps: tuple[int, ...] = ()

    def begin(
        self, prompt: torch.Tensor, capacity: int, settings: DraftSettings, eos: frozenset[int]
    ) -> _Run:
        return _Run()


class _Run:
    def observe(self, hidden: torch.Tensor | None, tokens: torch.Tensor) -> None:
        self._last = int(tokens[-1])

    def propose(
        self, limit: int | None = None, meanwhile: Callable[[], None] = nothing
    ) -> Proposal:
        return Proposal(DraftTree.root_only(self._last), 0.0, 0.0, "none")

    def close(self) -> None:
        pass
