"""The EAGLE3 head: drafts one level per call, fed with its own output for the target's states."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dart_core.heads.config import HeadConfig
from dart_core.heads.layers import DraftHead, HeadCache, visible_before


class Eagle3Head(DraftHead):
    """Keys: fc, midlayer.*, norm, lm_head, d2t, t2d; embed_tokens where it has its own."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__(config)
        if config.own_embedding:
            self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)

    def fuse(self, hidden: Tensor) -> Tensor:
        """Target states low | mid | high, [..., 3 * target hidden] -> [..., H]."""
        return self.fc(hidden)

    def forward(
        self, states: Tensor, embeddings: Tensor, cache: HeadCache, *, rows: int = 1
    ) -> Tensor:
        """Append S committed positions, causally; pre-norm output of the last ``rows``: [rows, H].

        states [S, H]: fused target states of positions p .. p + S - 1. embeddings [S, H]:
        embeddings of the tokens that *follow* those positions. The output is the recurrent state;
        ``logits`` of it predict the next token.
        """
        count = states.shape[0]
        tail = None
        if rows > 1:
            tail = torch.full((count, count), -torch.inf, device=states.device).triu(1)[-rows:]
        start = cache.length
        attended = self.midlayer.self_attn(
            self.midlayer.doubled(embeddings, states),
            cache,
            start=start,
            position=slice(start, start + count),
            rows=rows,
            tail=tail,
        )
        cache.length = start + count
        return self.midlayer.finish(states[-rows:], attended)

    def grow(
        self,
        states: Tensor,
        embeddings: Tensor,
        cache: HeadCache,
        *,
        level: int,
        used: int,
        tail: Tensor,
    ) -> Tensor:
        """One tree level: K nodes at one shared position, pre-norm output [K, H]. Commits nothing.

        states [K, H]: the head's output at each node's parent. ``used`` = scratch rows written by
        earlier levels of this tree; the K keys go behind them. tail: fp32 [K, used + K], 0 at own
        ancestors and self, -inf elsewhere. Level 1 stands at position cache.length, each further
        level one later.
        """
        position = cache.length + level - 1
        attended = self.midlayer.self_attn(
            self.midlayer.doubled(embeddings, states),
            cache,
            start=cache.length + used,
            position=slice(position, position + 1),
            rows=states.shape[0],
            tail=tail,
        )
        return self.midlayer.finish(states, attended)

    def forward_in_place(
        self,
        states: Tensor,
        embeddings: Tensor,
        cache: HeadCache,
        *,
        places: Tensor,
        positions: Tensor,
        last: Tensor,
        end: Tensor,
        window: int,
    ) -> Tensor:
        """``forward`` in static shapes, for one row: the S rows may be padded, and every row number
        is a tensor.

        places, positions: int64 [S], cache rows and RoPE positions of the rows. last: int64 [1],
        the last real row. end: int64 [1], the committed length after them. window: cache rows read.
        """
        attended = self.midlayer.self_attn.in_place(
            self.midlayer.doubled(embeddings, states),
            cache,
            places=places,
            positions=positions,
            queries=last,
            tail=visible_before(end, window),
        )
        return self.midlayer.finish(states[last], attended)

    def grow_in_place(
        self,
        states: Tensor,
        embeddings: Tensor,
        cache: HeadCache,
        *,
        end: Tensor,
        window: int,
        level: int,
        used: int,
        tail: Tensor,
    ) -> Tensor:
        """``grow`` in static shapes, behind a committed length of ``end``, int64 [1]."""
        scratch = end + torch.arange(used + len(states), device=end.device)
        whole = visible_before(end.expand(len(states)), window).index_copy_(1, scratch, tail)
        attended = self.midlayer.self_attn.in_place(
            self.midlayer.doubled(embeddings, states),
            cache,
            places=scratch[used:],
            positions=end + (level - 1),
            queries=None,
            tail=whole,
        )
        return self.midlayer.finish(states, attended)
