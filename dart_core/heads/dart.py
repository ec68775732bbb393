"""The DART head: one pass drafts D + 1 levels, from the last real position and D mask slots."""

from __future__ import annotations

import torch
from torch import Tensor

from dart_core.heads.layers import DraftHead, HeadCache, visible_before


class DartHead(DraftHead):
    """Keys: fc, midlayer.* with mask_rep, norm, lm_head, d2t, t2d; embeds with the target."""

    @property
    def draft_length(self) -> int:
        """Mask slots D."""
        if self.config.draft_length is None:
            raise ValueError("this config is an EAGLE3 head's: it has no draft_length")
        return self.config.draft_length

    def forward(
        self, hidden: Tensor, embeddings: Tensor, cache: HeadCache, slots: int | None = None
    ) -> Tensor:
        """Append S committed positions to the cache and draft: normed states [D + 1, H].

        hidden [S, 3 * target hidden]: tapped states low | mid | high of positions p .. p + S - 1.
        embeddings [S, H]: the target's embeddings of the tokens that *follow* those positions.
        Row 0 is about the token after the last observed one, row j about the token j further on.
        Feed the result to ``logits``, which applies the final norm a second time: published heads
        are trained with both. slots: mask slots to run instead of all D; none sees a later one, so
        the rows they give are the same.
        """
        layer = self.midlayer
        slots = self.draft_length if slots is None else slots
        fused = self.fc(hidden)
        masks = layer.mask_rep.expand(slots, -1)  # used raw: neither half is normed
        inputs = torch.cat((layer.doubled(embeddings, fused), masks))
        residual = torch.cat((fused[-1:], masks[:, : self.config.hidden_size]))
        # Only the last real position and the masks go on; position i of these may see the i masks
        # before and itself.
        tail = torch.full((slots + 1, slots), -torch.inf, device=inputs.device).triu()
        start, end = cache.length, cache.length + inputs.shape[0]
        attended = layer.self_attn(
            inputs, cache, start=start, position=slice(start, end), rows=slots + 1, tail=tail
        )
        cache.length = end - slots
        return self.norm(layer.finish(residual, attended))

    def draft_in_place(
        self,
        hidden: Tensor,
        embeddings: Tensor,
        cache: HeadCache,
        *,
        places: Tensor,
        positions: Tensor,
        last: Tensor,
        end: Tensor,
        window: int,
    ) -> Tensor:
        """``forward`` in static shapes: the S rows may be padded, and every row number is a tensor.

        places, positions: int64 [S], cache rows and RoPE positions of the rows. last: int64 [1],
        the last real row. end: int64 [1], the committed length after them. window: cache rows read.
        """
        slots, layer = self.draft_length, self.midlayer
        fused = self.fc(hidden)
        masks = layer.mask_rep.expand(slots, -1)
        inputs = torch.cat((layer.doubled(embeddings, fused), masks))
        residual = torch.cat((fused[last], masks[:, : self.config.hidden_size]))
        steps = torch.arange(slots + 1, device=end.device)
        behind = end + steps[:slots]
        attended = layer.self_attn.in_place(
            inputs,
            cache,
            places=torch.cat((places, behind)),
            positions=torch.cat((positions, behind)),
            queries=torch.cat((last, steps[:slots] + len(hidden))),
            tail=visible_before(end + steps, window),
        )
        return self.norm(layer.finish(residual, attended))

    def candidates(self, states: Tensor, count: int) -> Tensor:
        """Of ``forward``'s states the ``count`` best tokens per level, best first, int32
        [2, D + 1, k]: target ids, and the bits of their fp32 softmax over these k alone.
        """
        logits = self.logits(states)
        best = logits.topk(min(count, logits.shape[-1]))
        probabilities = torch.softmax(best.values.float(), dim=-1)
        ids = self.target_ids(best.indices).to(torch.int32)
        return torch.stack((ids, probabilities.view(torch.int32)))
