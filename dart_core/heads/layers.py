"""What both heads are made of: RoPE, grouped attention over a preallocated cache, one layer.

Attribute names are the on-disk keys, so a head's ``state_dict()`` is the published format.
Functions take any number of leading batch dimensions; the cache serves one sequence and has none.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dart_core.heads.config import HeadConfig


def rope_table(
    config: HeadConfig, rows: int, *, dtype: torch.dtype, device: str | torch.device
) -> tuple[Tensor, Tensor]:
    """Cosines and sines of positions 0 .. rows - 1, each [rows, head_dim / 2], computed in fp32.

    Positions beyond ``max_position_embeddings`` simply extend the rotation.
    """
    attention_scaling = 1.0
    if config.rope_scaling is None:
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
        frequencies = 1.0 / (config.rope_theta**exponents)
    else:
        frequencies, attention_scaling = _scaled_frequencies(config)
    angles = torch.outer(torch.arange(rows, dtype=torch.float32), frequencies).to(device)
    tables = (angles.cos() * attention_scaling, angles.sin() * attention_scaling)
    return tables[0].to(dtype), tables[1].to(dtype)


def _scaled_frequencies(config: HeadConfig) -> tuple[Tensor, float]:
    """Scaled RoPE variants come from transformers, which owns their definitions."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    rotary = LlamaRotaryEmbedding(
        LlamaConfig(
            hidden_size=config.hidden_size,
            num_attention_heads=config.num_attention_heads,
            head_dim=config.head_dim,
            max_position_embeddings=config.max_position_embeddings,
            rope_parameters={"rope_theta": config.rope_theta, **(config.rope_scaling or {})},
        )
    )
    return rotary.inv_freq, rotary.attention_scaling


def rotate(states: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotate the halves of ``states`` [..., rows, head_dim] by tables [rows or 1, head_dim / 2]."""
    low, high = states.chunk(2, dim=-1)
    return torch.cat((low * cosines - high * sines, high * cosines + low * sines), dim=-1)


def attend(query: Tensor, keys: Tensor, values: Tensor, tail: Tensor | None = None) -> Tensor:
    """Grouped-query attention with the softmax in fp32.

    query: [..., heads, Q, head_dim]; keys, values: [..., kv_heads, L, head_dim].
    tail: fp32 [..., Q, T] added to the scores of the *last* T keys (0 or -inf); all earlier keys
    are visible to all rows. Returns [..., Q, heads * head_dim].
    """
    kv_heads, length, head_dim = keys.shape[-3:]
    rows = query.shape[-2]
    groups = query.shape[-3] // kv_heads
    # Query heads of one group share their keys: fold them into rows instead of repeating the keys.
    folded = query.reshape(*query.shape[:-3], kv_heads, groups * rows, head_dim) * head_dim**-0.5
    scores = torch.matmul(folded, keys.transpose(-1, -2)).float()
    if tail is not None:
        grouped = scores.unflatten(-2, (groups, rows))
        grouped[..., length - tail.shape[-1] :] += tail.unsqueeze(-3).unsqueeze(-3)
    weights = torch.softmax(scores, dim=-1).to(values.dtype)
    mixed = torch.matmul(weights, values).unflatten(-2, (groups, rows)).flatten(-4, -3)
    return mixed.transpose(-2, -3).flatten(-2)


def visible_before(ends: Tensor, window: int) -> Tensor:
    """A ``tail`` over a whole window, fp32 [Q, window]: row i sees the keys before ``ends[i]``
    (int64 [Q]).
    """
    hidden = torch.arange(window, device=ends.device) >= ends[:, None]
    return torch.zeros(hidden.shape, dtype=torch.float32, device=ends.device).masked_fill_(
        hidden, -torch.inf
    )


class HeadCache:
    """Rotated keys, and values, of a head's one layer for one run: [kv_heads, rows, head_dim].

    Rows below ``length`` belong to committed tokens. A forward may write beyond them (mask slots,
    tree nodes): that is scratch which the next forward overwrites, so nothing is ever rewound by
    copying.
    """

    def __init__(
        self, config: HeadConfig, rows: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        shape = (config.num_key_value_heads, rows, config.head_dim)
        self.keys = torch.empty(shape, dtype=dtype, device=device)
        self.values = torch.empty(shape, dtype=dtype, device=device)
        self.cosines, self.sines = rope_table(config, rows, dtype=dtype, device=device)
        self.length = 0

    def close(self) -> None:
        """End the run: its rows are freed."""
        self.keys = self.values = self.cosines = self.sines = self.keys.new_empty(0)


class Attention(nn.Module):
    """Attention whose q, k, v read the doubled input [embedding part | hidden part] of width 2H."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        doubled = 2 * config.hidden_size
        query_width = config.num_attention_heads * config.head_dim
        key_width = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(doubled, query_width, bias=False)
        self.k_proj = nn.Linear(doubled, key_width, bias=False)
        self.v_proj = nn.Linear(doubled, key_width, bias=False)
        self.o_proj = nn.Linear(query_width, config.hidden_size, bias=False)

    def split(self, projected: Tensor) -> Tensor:
        """[..., S, heads * head_dim] -> [..., heads, S, head_dim]."""
        return projected.unflatten(-1, (-1, self.head_dim)).transpose(-2, -3)

    def forward(
        self,
        inputs: Tensor,
        cache: HeadCache,
        *,
        start: int,
        position: slice,
        rows: int,
        tail: Tensor | None,
    ) -> Tensor:
        """Append S inputs [S, 2H] at cache row ``start`` and attend for the last ``rows`` of them:
        [rows, H].

        position: rows of the RoPE table, S of them or one shared by all. tail: see ``attend``.
        """
        end = start + inputs.shape[0]
        assert end <= cache.keys.shape[1], (
            f"head cache of {cache.keys.shape[1]} rows cannot take row {end}"
        )
        cosines, sines = cache.cosines[position], cache.sines[position]
        cache.keys[:, start:end] = rotate(self.split(self.k_proj(inputs)), cosines, sines)
        cache.values[:, start:end] = self.split(self.v_proj(inputs))
        query = rotate(self.split(self.q_proj(inputs[-rows:])), cosines[-rows:], sines[-rows:])
        return self.o_proj(attend(query, cache.keys[:, :end], cache.values[:, :end], tail))

    def in_place(
        self,
        inputs: Tensor,
        cache: HeadCache,
        *,
        places: Tensor,
        positions: Tensor,
        queries: Tensor | None,
        tail: Tensor,
    ) -> Tensor:
        """``forward`` with every row number in a tensor, for static shapes: [Q, H].

        places int64 [S]: cache rows to write. positions int64 [S or 1]: rows of the RoPE table.
        queries int64 [Q]: the inputs that attend, None for all. tail fp32 [Q, window]: added to the
        scores of the cache's first ``window`` rows.
        """
        window = tail.shape[-1]
        cosines, sines = cache.cosines[positions], cache.sines[positions]
        cache.keys.index_copy_(1, places, rotate(self.split(self.k_proj(inputs)), cosines, sines))
        cache.values.index_copy_(1, places, self.split(self.v_proj(inputs)))
        if queries is not None:
            inputs, cosines, sines = inputs[queries], cosines[queries], sines[queries]
        query = rotate(self.split(self.q_proj(inputs)), cosines, sines)
        return self.o_proj(attend(query, cache.keys[:, :window], cache.values[:, :window], tail))


class SwiGLU(nn.Module):
    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(states)) * self.up_proj(states))


class MidLayer(nn.Module):
    """The head's one decoder layer. Its residual is the un-normed hidden state."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.hidden_norm = nn.RMSNorm(size, eps)
        self.input_layernorm = nn.RMSNorm(size, eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(size, eps)
        self.mlp = SwiGLU(config)
        if config.kind == "dart":
            self.mask_rep = nn.Parameter(torch.zeros(2 * size))

    def doubled(self, embeddings: Tensor, states: Tensor) -> Tensor:
        """The attention input [..., 2H]: normed embedding first, normed hidden state second."""
        return torch.cat((self.input_layernorm(embeddings), self.hidden_norm(states)), dim=-1)

    def finish(self, residual: Tensor, attended: Tensor) -> Tensor:
        states = residual + attended
        return states + self.mlp(self.post_attention_layernorm(states))


class DraftHead(nn.Module):
    """What the heads have in common: fusing layer, mid layer, final norm, reduced vocabulary."""

    d2t: Tensor | None
    t2d: Tensor | None

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        self.notes: list[str] = []  # what its loader decided
        self.fc = nn.Linear(3 * config.target_hidden_size, config.hidden_size, bias=False)
        self.midlayer = MidLayer(config)
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)
        reduced = config.draft_vocab_size < config.vocab_size
        # d2t holds offsets: target id = draft id + d2t[draft id]. t2d marks the target ids that
        # have a draft id.
        self.register_buffer(
            "d2t", torch.zeros(config.draft_vocab_size, dtype=torch.int64) if reduced else None
        )
        self.register_buffer(
            "t2d", torch.zeros(config.vocab_size, dtype=torch.bool) if reduced else None
        )

    @property
    def dtype(self) -> torch.dtype:
        return self.norm.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.norm.weight.device

    def logits(self, states: Tensor) -> Tensor:
        """Final norm, then the draft vocabulary: [..., H] -> [..., draft_vocab]."""
        return self.lm_head(self.norm(states))

    def target_ids(self, draft_ids: Tensor) -> Tensor:
        """Draft vocabulary ids -> target vocabulary ids."""
        return draft_ids if self.d2t is None else draft_ids + self.d2t[draft_ids]

    def set_draft_vocabulary(self, target_ids: Tensor) -> None:
        """Make draft id i stand for ``target_ids[i]`` (ascending, distinct, one per row of
        ``lm_head``).
        """
        if self.d2t is None or self.t2d is None:
            raise ValueError("this head drafts the whole vocabulary")
        target_ids = target_ids.to(self.d2t.device, torch.int64)
        self.d2t.copy_(target_ids - torch.arange(len(target_ids), device=target_ids.device))
        self.t2d.zero_()[target_ids] = True

    def new_cache(self, rows: int) -> HeadCache:
        """A cache of this head's dtype and device; ``rows`` = committed tokens at most, plus
        scratch.
        """
        return HeadCache(self.config, rows, dtype=self.dtype, device=self.device)
