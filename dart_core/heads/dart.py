"""The DART head: one pass drafts D + 1 levels, from the last real position and D mask slots."""

from __future__ import annotations

import torch
from torch import Tensor

from dart_core.heads.layers import DraftHead, HeadCache


class DartHead(DraftHead):
    """Keys: fc, midlayer.* with mask_rep, norm, lm_head, d2t, t2d; embeds with the target."""

    def forward(self, hidden: Tensor, embeddings: Tensor, cache: HeadCache) -> Tensor:
        """Append S committed positions to the cache and draft: normed states [D + 1, H].

        hidden [S, 3 * target hidden]: tapped states low | mid | high of positions p .. p + S - 1.
        embeddings [S, H]: the target's embeddings of the tokens that *follow* those positions.
        Row 0 is about the token after the last observed one, row j about the token j further on.
        Feed the result to ``logits``, which applies the final norm a second time: published heads
        are trained with both.
        """
        slots, layer = self.config.draft_length, self.midlayer
        fused = self.fc(hidden)
        masks = layer.mask_rep.expand(slots, -1)  # used raw: neither half is normed
        inputs = torch.cat((layer.double(embeddings, fused), masks))
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
