"""A head's first weights, taken from the target: last layer, final norm, output rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dart_core.errors import ArenaError
from dart_core.heads import DartHead, Eagle3Head, HeadConfig

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel


def head_config(
    target_config: PreTrainedConfig,
    *,
    draft_vocab_size: int,
    draft_length: int | None,
    key_value_heads: int | None = None,
) -> HeadConfig:
    """A head as wide as one target layer. draft_length None = EAGLE3; key_value_heads None = the
    target's. Raises ArenaError for a number of these that its attention cannot have.
    """
    heads, theirs = target_config.num_attention_heads, target_config.num_key_value_heads
    if key_value_heads and (heads % key_value_heads or key_value_heads % theirs):
        raise ArenaError(
            f"--key-value-heads {key_value_heads}: expected a multiple of the target's {theirs} "
            f"that divides its {heads} heads"
        )
    return HeadConfig(
        hidden_size=target_config.hidden_size,
        intermediate_size=target_config.intermediate_size,
        num_attention_heads=heads,
        num_key_value_heads=key_value_heads or theirs,
        head_dim=getattr(target_config, "head_dim", None) or target_config.hidden_size // heads,
        vocab_size=target_config.vocab_size,
        draft_vocab_size=draft_vocab_size,
        target_hidden_size=target_config.hidden_size,
        draft_length=draft_length,
        rms_norm_eps=target_config.rms_norm_eps,
        rope_theta=target_config.rope_parameters["rope_theta"],
        max_position_embeddings=target_config.max_position_embeddings,
        target_layers=target_config.num_hidden_layers,
    )


@torch.no_grad()
def initialise(
    head: DartHead | Eagle3Head, model: PreTrainedModel, target_ids: Tensor, seed: int
) -> None:
    """Fill ``head`` (fp32) from the target ``model``; draft id i stands for ``target_ids[i]``.

    ``fc`` passes the deepest tap on. The attention reads the hidden half as the target's last layer
    does, and a little of the embedding half. Weights that the target has no counterpart for start
    as small noise.
    """
    generator = torch.Generator().manual_seed(seed)

    def noise(shape: int | torch.Size, std: float) -> Tensor:
        return torch.randn(shape, generator=generator) * std

    config, layer = head.config, head.midlayer
    source = model.model.layers[-1]
    size = config.hidden_size
    if config.draft_vocab_size < config.vocab_size:
        head.set_draft_vocabulary(target_ids)
    head.lm_head.weight.copy_(model.lm_head.weight[target_ids.to(model.lm_head.weight.device)])
    head.fc.weight.copy_(noise(head.fc.weight.shape, 0.2 * size**-0.5 / 3))
    head.fc.weight[:, -size:] += torch.eye(size)
    layer.input_layernorm.weight.fill_(1.0)
    layer.hidden_norm.weight.copy_(source.input_layernorm.weight)
    layer.post_attention_layernorm.weight.copy_(source.post_attention_layernorm.weight)
    layer.mlp.load_state_dict(
        {name: value.float() for name, value in source.mlp.state_dict().items()}
    )
    final = model.model.norm.weight.float().cpu()

    attention, theirs = layer.self_attn, source.self_attn
    repeats = config.num_key_value_heads // theirs.config.num_key_value_heads
    for name in ("q_proj", "k_proj", "v_proj"):
        ours, weight = getattr(attention, name).weight, getattr(theirs, name).weight
        weight = weight.float().cpu()
        if name != "q_proj" and repeats > 1:
            weight = (
                weight.unflatten(0, (-1, config.head_dim))
                .repeat_interleave(repeats, 0)
                .flatten(0, 1)
            )
        ours.copy_(noise(ours.shape, 0.2 * size**-0.5))
        ours[:, size:] += weight
    attention.o_proj.weight.copy_(theirs.o_proj.weight)

    if config.draft_length is None:
        head.norm.weight.copy_(final)
        return
    _norm_twice(head, final)
    # Small, or the mask slots stay on a plateau of unigram guesses.
    layer.mask_rep.copy_(noise(2 * size, 0.02))
    if attention.v_proj.weight.shape[0] == attention.o_proj.weight.shape[0] == size:
        # A mask slot knows only what attention brings: let that be the whole state.
        attention.v_proj.weight[:, size:] = torch.eye(size)
        attention.v_proj.weight[:, :size] += torch.eye(size) * 0.3
        attention.o_proj.weight.copy_(torch.eye(size) * 0.3)


def _norm_twice(head: DartHead | Eagle3Head, weight: Tensor) -> None:
    """Set the norm so that applying it twice turns a state the way ``weight`` does once.

    Twice the root of the weight is the weight. A sign would be lost on the way: lm_head takes it.
    """
    root = weight.abs().sqrt()
    head.norm.weight.copy_(root * root.square().mean().sqrt())
    head.lm_head.weight.mul_(torch.where(weight < 0, -1.0, 1.0))


def untrained(head: DartHead | Eagle3Head, model: PreTrainedModel) -> DartHead | Eagle3Head | None:
    """A head as ``head`` was before it was trained, on the CPU in fp32: initialised from the
    target. None where ``head`` has other sizes than the target's layers.
    """
    config = head.config
    sizes = head_config(
        model.config.get_text_config(),
        draft_vocab_size=config.draft_vocab_size,
        draft_length=config.draft_length,
        key_value_heads=config.num_key_value_heads,
    )
    same = ("hidden_size", "intermediate_size", "num_attention_heads", "head_dim", "vocab_size")
    if any(getattr(sizes, name) != getattr(config, name) for name in same):
        return None
    first = type(head)(sizes)
    vocabulary = head.target_ids(
        torch.arange(config.draft_vocab_size, device=head.fc.weight.device)
    )
    initialise(first, model, vocabulary.cpu(), seed=0)
    return first


@torch.no_grad()
def continue_from(head: DartHead, trained: Eagle3Head, seed: int) -> None:
    """Start a DART head as a trained EAGLE3 head of the same sizes and draft vocabulary.

    Row 0 then drafts as the EAGLE3 head's first step does, but for the scale of its logits. Key and
    value heads are repeated where the DART head has more. The mask slots start as small noise.
    """
    config, source = head.config, trained.config
    repeats = config.num_key_value_heads // source.num_key_value_heads
    state = trained.state_dict()
    for name in ("midlayer.self_attn.k_proj.weight", "midlayer.self_attn.v_proj.weight"):
        split = state[name].unflatten(0, (-1, config.head_dim))
        state[name] = split.repeat_interleave(repeats, 0).flatten(0, 1)
    generator = torch.Generator().manual_seed(seed)
    mask_rep = torch.randn(2 * config.hidden_size, generator=generator) * 0.05
    head.load_state_dict({**state, "midlayer.mask_rep": mask_rep})
    _norm_twice(head, state["norm.weight"])
