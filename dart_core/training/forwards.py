"""The heads' training-time forwards: many anchors of a sequence at once, over one shared prefix.

An anchor t is a place where inference could stand: the head has read the pairs (target state p,
embedding of token p + 1) for p = 0 .. t, the last of them tells it token t + 1, and it drafts
tokens t + 2, t + 3, … Row (or step) j of an anchor is about token t + 2 + j. Both forwards give the
same states as the inference heads on the same prefix; what they save is the prefix, which all
anchors of a sequence share: they see its keys up to their own place.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from dart_core.heads import DartHead, Eagle3Head
from dart_core.heads.layers import rope_table, rotate


def _take(states: Tensor, places: Tensor) -> Tensor:
    """states [B, S, W] at places [B, R] -> [B, R, W]."""
    return states.gather(1, places.unsqueeze(-1).expand(-1, -1, states.shape[-1]))


def _turn(states: Tensor, positions: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    """RoPE: states [..., heads, R, head_dim] at positions [..., R]."""
    cosines, sines = (part[positions].unsqueeze(-3).to(states.dtype) for part in table)
    return rotate(states, cosines, sines)


def dart_forward(
    head: DartHead, hidden: Tensor, embeddings: Tensor, anchors: list[Tensor]
) -> Tensor:
    """Normed-once states of chosen rows, as ``DartHead.forward`` returns them: [B, sum of R_j, H],
    row 0 first.

    hidden [B, S, 3 * target hidden], embeddings [B, S, H]: pair p is target state p and the
    embedding of token p + 1. anchors: for each row j = 0 .. D an int64 [B, R_j] of the anchors
    whose row j is wanted (R_j may be 0, R_0 not).

    With one layer, a mask slot's query, key and value are the same vector for every anchor but for
    their rotation, and a score depends on the distance only. So the scores among slots are one
    small table. It enters the attention as D extra keys: a query names its row in D extra
    dimensions, and the keys hold the table's columns there.
    """
    layer, attention, slots = head.midlayer, head.midlayer.self_attn, head.draft_length
    heads, kv_heads = head.config.num_attention_heads, head.config.num_key_value_heads
    batch, length, _ = hidden.shape
    device = hidden.device
    table = rope_table(head.config, length + slots, dtype=torch.float32, device=device)

    fused = head.fc(hidden)
    doubled = layer.doubled(embeddings, fused)
    places = torch.arange(length, device=device)
    keys = _turn(attention.split(attention.k_proj(doubled)), places, table)
    values = attention.split(attention.v_proj(doubled))

    mask = layer.mask_rep[None]
    mask_query = attention.split(attention.q_proj(mask))  # [heads, 1, head_dim]
    mask_key, mask_value = (
        attention.split(attention.k_proj(mask)),
        attention.split(attention.v_proj(mask)),
    )
    offsets = torch.arange(slots + 1, device=device)
    turned = _turn(mask_query.expand(-1, slots + 1, -1), offsets, table)[:, 1:]
    slot_keys = _turn(mask_key.expand(-1, slots + 1, -1), offsets, table)[:, 1:]
    slot_keys = slot_keys.repeat_interleave(heads // kv_heads, dim=0)
    slot_scores = torch.matmul(slot_keys, turned.transpose(1, 2))  # [heads, slot i, row j]

    first = anchors[0]
    queries = [_turn(attention.split(attention.q_proj(_take(doubled, first))), first, table)]
    queries += [
        _turn(mask_query.expand(batch, -1, at.shape[1], -1), at + row, table)
        for row, at in enumerate(anchors[1:], 1)
    ]
    at = torch.cat(anchors, dim=1)
    rows = torch.repeat_interleave(
        offsets[: len(anchors)], torch.tensor([a.shape[1] for a in anchors], device=device)
    )

    extra = -(-slots // 8) * 8  # attention kernels want widths that are multiples of 8
    names = F.one_hot(rows, slots + 1)[:, 1:]
    dtype = keys.dtype
    query = torch.cat(queries, dim=2)
    query = torch.cat(
        (query, F.pad(names, (0, extra - slots)).to(dtype).expand(batch, heads, -1, -1)), dim=-1
    )

    def joined(prefix: Tensor, tail: Tensor) -> Tensor:
        prefix = F.pad(prefix.repeat_interleave(heads // kv_heads, dim=1), (0, extra))
        return torch.cat((prefix, tail.to(dtype).expand(batch, -1, -1, -1)), dim=2)

    keys = joined(keys, F.pad(slot_scores, (head.config.head_dim, extra - slots)))
    mask_value = mask_value.repeat_interleave(heads // kv_heads, dim=0)
    values = joined(values, F.pad(mask_value.expand(-1, slots, -1), (0, extra)))
    earlier = (offsets[1:] <= rows[:, None]).expand(batch, -1, -1)
    seen = torch.cat((places <= at[:, :, None], earlier), dim=-1).unsqueeze(1)
    mixed = F.scaled_dot_product_attention(
        query, keys, values, attn_mask=seen, scale=head.config.head_dim**-0.5
    )
    mixed = mixed[..., : head.config.head_dim].transpose(1, 2).flatten(2)

    residual_mask = layer.mask_rep[: head.config.hidden_size]
    count = at.shape[1] - first.shape[1]
    residual = torch.cat(
        (_take(fused, first), residual_mask.to(fused.dtype).expand(batch, count, -1)), dim=1
    )
    return head.norm(layer.finish(residual, attention.o_proj(mixed)))


def eagle3_forward(
    head: Eagle3Head, hidden: Tensor, embeddings: Tensor, anchors: Tensor, steps: int
) -> list[Tensor]:
    """Pre-norm states of ``steps`` unrolled steps at each anchor, each [B, A, H]; shapes as in
    ``dart_forward``.

    Step 0 reads the target's states. Step k > 0 stands at position t + k, reads the embedding of
    token t + 1 + k and the head's own state of step k - 1; it sees the prefix up to t and its own
    earlier steps, as in the draft tree, where a node sees the committed tokens and its ancestors.
    """
    layer, attention = head.midlayer, head.midlayer.self_attn
    kv_heads, groups = (
        head.config.num_key_value_heads,
        (head.config.num_attention_heads // head.config.num_key_value_heads),
    )
    length, device = hidden.shape[1], hidden.device
    table = rope_table(head.config, length + steps, dtype=torch.float32, device=device)
    fused = head.fuse(hidden)
    doubled = layer.doubled(embeddings, fused)
    places = torch.arange(length, device=device)
    keys = _turn(attention.split(attention.k_proj(doubled)), places, table)
    values = attention.split(attention.v_proj(doubled))
    unseen = (places > anchors[:, :, None])[:, None, None]  # [B, 1, 1, A, S]

    state = _take(fused, anchors)
    own_keys: list[Tensor] = []
    own_values: list[Tensor] = []
    outputs = []
    for step in range(steps):
        # Past the end of the sequence there is nothing to learn: any embedding will do.
        following = (anchors + step).clamp(max=length - 1)
        inputs = layer.doubled(_take(embeddings, following), state)
        query = _turn(attention.split(attention.q_proj(inputs)), anchors + step, table)
        query = query.unflatten(1, (kv_heads, groups)) * head.config.head_dim**-0.5
        if step:  # at step 0 an anchor's own key is the prefix's last
            own_keys.append(_turn(attention.split(attention.k_proj(inputs)), anchors + step, table))
            own_values.append(attention.split(attention.v_proj(inputs)))
        folded = query.flatten(2, 3)
        scores = torch.matmul(folded, keys.transpose(-1, -2)).unflatten(2, (groups, -1))
        scores = [scores.masked_fill(unseen, -torch.inf)]
        scores += [(query * key.unsqueeze(2)).sum(-1, keepdim=True) for key in own_keys]
        weights = torch.cat(scores, dim=-1).float().softmax(-1).to(values.dtype)
        mixed = torch.matmul(weights[..., :length].flatten(2, 3), values).unflatten(2, (groups, -1))
        for place, value in enumerate(own_values):
            mixed = mixed + weights[..., length + place, None] * value.unsqueeze(2)
        mixed = mixed.flatten(1, 2).transpose(1, 2).flatten(2)
        state = layer.finish(state, attention.o_proj(mixed))
        outputs.append(state)
    return outputs
