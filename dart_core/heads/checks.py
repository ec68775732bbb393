"""What a head file must satisfy before it is loaded, each check with its own words.

A head that half loads still drafts, only badly, and nobody notices; so everything that does not fit
is an error that names it. Tensors are keyed by the names of the published format, already
normalised.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dart_core.errors import ArenaError
from dart_core.heads.config import HeadConfig, check_values, flatten
from dart_core.heads.layers import DraftHead, rope_table
from dart_core.presets import Sizes
from dart_core.trio import partner_hint

PUBLISHED_DRAFT_LENGTH = 7
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
KIND_NAMES = {
    "dart": "a DART head",
    "eagle3": "an EAGLE3 head",
    "eagle": "an EAGLE-1/EAGLE-2 head",
    "model": "a whole language model, not a draft head",
    "unknown": "no draft head known here",
}


def require_head_config(raw: dict[str, Any], kind: str) -> None:
    """Refuse a whole model by its config, before gigabytes of it are read; and damaged values."""
    check_values(raw)
    layers = flatten(raw).get("num_hidden_layers")
    if raw.get("draft_vocab_size") is None and isinstance(layers, int) and layers > 1:
        raise _wrong_kind("model", kind)


def _wrong_kind(found: str, expected: str) -> ArenaError:
    return ArenaError(
        f"this folder looks like {KIND_NAMES[found]}; {KIND_NAMES[expected]} was expected"
    )


def kind_of(raw: dict[str, Any], tensors: dict[str, Tensor]) -> str:
    """A name of KIND_NAMES, by the tensors."""
    if "midlayer.mask_rep" in tensors:
        return "dart"
    if any(name.startswith("layers.") for name in tensors) and "fc.weight" not in tensors:
        return "model"
    if "midlayer.hidden_norm.weight" in tensors or "d2t" in tensors:
        return "dart" if raw.get("draft_length") is not None else "eagle3"
    fc = tensors.get("fc.weight")
    if fc is not None and fc.ndim == 2 and fc.shape[1] == 2 * fc.shape[0]:
        return "eagle"
    if fc is not None:
        return "eagle3"
    return "unknown"


def require_kind(raw: dict[str, Any], tensors: dict[str, Tensor], kind: str) -> None:
    """Recognise heads of another kind by their tensors and refuse them by name."""
    found = kind_of(raw, tensors)
    if found != kind:
        raise _wrong_kind(found, kind)


def refuse_unsupported(raw: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Variants that would load and then draft nonsense are refused by name."""
    raw = flatten(raw)
    nested = raw.get("eagle_config")
    eagle = nested if isinstance(nested, dict) else {}

    def setting(key: str) -> Any:
        return raw.get(key, eagle.get(key))

    def has(*names: str) -> bool:
        return any(part in tensor for tensor in tensors for part in names)

    activation = raw.get("hidden_act", "silu")
    refused = [
        words
        for present, words in (
            (
                setting("norm_before_residual"),
                "norm_before_residual (the residual is the normed hidden state)",
            ),
            (
                setting("fc_norm") or has("fc_norm."),
                "fc_norm (one norm per tapped state before fc)",
            ),
            (
                setting("norm_before_fc") or has("input_norm."),
                "norm_before_fc (a norm over the concatenated states before fc)",
            ),
            (setting("norm_output"), "norm_output (the recurrent state is normed)"),
            (has("q_norm.", "k_norm."), "q_norm and k_norm in its attention"),
            (has("layers."), "more than one layer"),
            (setting("use_aux_hidden_state") is False, "use_aux_hidden_state false"),
            (activation != "silu", f"hidden_act {activation!r:.60} instead of 'silu'"),
        )
        if present
    ]
    if refused:
        raise ArenaError(f"this head uses {'; '.join(refused)}, which is not supported")


def sizes_from_tensors(
    raw: dict[str, Any], tensors: dict[str, Tensor], kind: str, warn: Callable[[str], None]
) -> dict[str, Any]:
    """The config with every size that the tensors show; where they disagree, a warning."""
    sized = dict(flatten(raw))

    def size(name: str, dim: int) -> int | None:
        tensor = tensors.get(name)
        return int(tensor.shape[dim]) if tensor is not None and tensor.ndim > dim else None

    def settle(key: str, shown: int | None, default: int | None = None) -> None:
        stated = sized.get(key)
        if shown is None:
            return
        if stated is not None and int(stated) != shown:
            warn(f"config says {key} {stated}, the tensors say {shown}; using {shown}")
        elif stated is None and default is not None and default != shown:
            warn(f"config lacks {key}, the tensors say {shown}; using {shown}")
        sized[key] = shown

    settle("hidden_size", size("norm.weight", 0))
    settle("intermediate_size", size("midlayer.mlp.gate_proj.weight", 0))
    settle("draft_vocab_size", size("lm_head.weight", 0))
    settle("vocab_size", size("embed_tokens.weight", 0) or size("t2d", 0))
    fused = size("fc.weight", 1)
    if fused is not None:
        target_hidden = int(sized.get("target_hidden_size") or sized.get("hidden_size") or 0)
        if target_hidden and fused % target_hidden == 0 and fused // target_hidden != 3:
            raise ArenaError(
                f"fc.weight reads {fused} values = {fused // target_hidden} target states of "
                f"{target_hidden}; heads that fuse exactly 3 are supported"
            )
        if fused % 3:
            raise ArenaError(f"fc.weight reads {fused} values, which is not three target states")
        settle("target_hidden_size", fused // 3, default=sized.get("hidden_size"))
    _settle_attention(
        sized,
        size("midlayer.self_attn.q_proj.weight", 0),
        size("midlayer.self_attn.k_proj.weight", 0),
        settle,
    )
    if kind == "dart" and sized.get("draft_length") is None:
        warn(f"config lacks draft_length; using the published {PUBLISHED_DRAFT_LENGTH}")
        sized["draft_length"] = PUBLISHED_DRAFT_LENGTH
    if kind == "eagle3":
        sized.pop("draft_length", None)
    return sized


def _settle_attention(
    sized: dict[str, Any],
    query_width: int | None,
    key_width: int | None,
    settle: Callable[..., None],
) -> None:
    """head_dim from the weights: published configs have said 80 where the weights have 128."""
    heads = sized.get("num_attention_heads")
    if query_width is None or key_width is None or not heads:
        return
    heads, kv_heads = int(heads), int(sized.get("num_key_value_heads") or heads)
    stated = sized.get("head_dim")
    if key_width % kv_heads == 0 and query_width == heads * (key_width // kv_heads):
        head_dim = key_width // kv_heads
    elif stated and query_width % int(stated) == 0 and key_width % int(stated) == 0:
        head_dim = int(stated)
    else:
        raise ArenaError(
            f"attention sizes do not fit: q_proj has {query_width} rows, k_proj {key_width}, "
            f"the config {heads} heads, {kv_heads} key/value heads, head_dim {stated}"
        )
    settle(
        "head_dim",
        head_dim,
        default=int(sized["hidden_size"]) // heads if sized.get("hidden_size") else None,
    )
    settle("num_attention_heads", query_width // head_dim)
    settle("num_key_value_heads", key_width // head_dim)


def require_fit(config: HeadConfig, target: Any) -> None:
    """The head must have been made for this target, whose config it is."""
    mismatches = [
        f"{what}: the head expects {head_size}, the target has {target_size}"
        for what, head_size, target_size in (
            ("vocabulary", config.vocab_size, int(target.vocab_size)),
            ("hidden size", config.target_hidden_size, int(target.hidden_size)),
        )
        if head_size != target_size
    ]
    if mismatches:
        sizes = {name: getattr(target, name, None) for name in Sizes._fields}
        raise ArenaError(
            f"this head belongs to another target ({'; '.join(mismatches)}): "
            f"{partner_hint(config.kind, sizes)}"
        )
    if config.draft_vocab_size > config.vocab_size:
        raise ArenaError(
            f"lm_head.weight has {config.draft_vocab_size} rows, more than the vocabulary of "
            f"{config.vocab_size}"
        )
    if config.hidden_size != config.target_hidden_size and not config.own_embedding:
        raise ArenaError(
            f"hidden size {config.hidden_size} differs from the target's "
            f"{config.target_hidden_size}, so the head needs its own embed_tokens.weight, which is "
            "missing"
        )
    deepest = int(target.num_hidden_layers) - 1
    if not all(0 <= layer <= deepest for layer in config.taps):
        raise ArenaError(
            f"tapped layers {list(config.taps)} lie outside the target's layer inputs 0 to "
            f"{deepest}"
        )


def require_rope(config: HeadConfig) -> None:
    """Scaled RoPE must be of a kind that transformers knows, and give numbers."""
    if config.rope_scaling is None:
        return
    try:
        tables = rope_table(config, 2, dtype=torch.float32, device="cpu")
        reason = "" if all(table.isfinite().all() for table in tables) else "infinite angles"
    except Exception as error:  # each kind has its own
        reason = f"{type(error).__name__} {error}"
    if reason:
        raise ArenaError(
            f"rope_scaling {config.rope_scaling!r:.80} is of no use ({reason!r:.80}); expected one "
            "of transformers' kinds with its factors"
        )


def settle_vocabulary_map(
    config: HeadConfig, tensors: dict[str, Tensor], warn: Callable[[str], None]
) -> None:
    """Make ``d2t`` int64 and see that it lands in the vocabulary.

    A head that drafts the whole vocabulary needs no map. ``t2d`` is only read by training, so it
    is derived where a file lacks it.
    """
    if config.draft_vocab_size == config.vocab_size:
        d2t = tensors.pop("d2t", None)
        tensors.pop("t2d", None)
        if d2t is not None and d2t.any():
            warn("d2t is ignored: the head drafts the whole vocabulary")
        return
    d2t = tensors.get("d2t")
    if d2t is None:
        missing = " and ".join(name for name in ("d2t", "t2d") if name not in tensors)
        raise ArenaError(
            f"{missing} missing: the head drafts {config.draft_vocab_size} of "
            f"{config.vocab_size} tokens, and without d2t it is unknown which"
        )
    if d2t.dtype not in INTEGERS or d2t.shape != (config.draft_vocab_size,):
        raise ArenaError(
            f"d2t is {d2t.dtype} {list(d2t.shape)}; integers [{config.draft_vocab_size}] were "
            "expected, one offset per row of lm_head"
        )
    tensors["d2t"] = d2t.to(torch.int64)
    targets = torch.arange(len(d2t)) + tensors["d2t"]
    low, high = int(targets.min()), int(targets.max())
    if low < 0 or high >= config.vocab_size:
        raise ArenaError(
            f"d2t maps draft ids to tokens {low} .. {high}, outside the vocabulary of "
            f"{config.vocab_size}; it must hold offsets (token id - draft id)"
        )
    if "t2d" in tensors:
        if tensors["t2d"].dtype not in INTEGERS:
            raise ArenaError(f"t2d is {tensors['t2d'].dtype}; booleans were expected")
        tensors["t2d"] = tensors["t2d"].bool()
    else:
        seen = torch.zeros(config.vocab_size, dtype=torch.bool)
        tensors["t2d"] = seen.index_fill_(0, targets, True)


def listed(names: list[str], most: int = 8) -> str:
    """Names that a file gave, in words of one line."""
    shown = [name if name.isprintable() and len(name) <= 80 else f"{name!r:.80}" for name in names]
    more = len(names) - most
    return ", ".join(shown[:most]) + (f" and {more} more" if more > 0 else "")


def require_exact(head: DraftHead, tensors: dict[str, Tensor]) -> None:
    """Same names, same shapes, finite values: everything wrong is listed in one error."""
    expected = {name: tuple(tensor.shape) for name, tensor in head.state_dict().items()}
    problems = []
    if missing := sorted(expected.keys() - tensors.keys()):
        problems.append(f"missing tensors: {', '.join(missing)}")
    if unexpected := sorted(tensors.keys() - expected.keys()):
        problems.append(f"unexpected tensors: {listed(unexpected)}")
    shared = [name for name in expected if name in tensors]
    if misshaped := [
        f"{name} is {list(tensors[name].shape)} instead of {list(expected[name])}"
        for name in shared
        if tuple(tensors[name].shape) != expected[name]
    ]:
        problems.append("wrong shapes: " + ", ".join(misshaped))
    if mistyped := [
        f"{name} is {tensors[name].dtype}"
        for name in shared
        if name not in ("d2t", "t2d") and tensors[name].dtype not in FLOATS
    ]:
        problems.append(f"numbers of another kind than a head's: {', '.join(mistyped)}")
    if problems:
        raise ArenaError("; ".join(problems))
    if broken := [name for name in shared if not torch.isfinite(tensors[name]).all()]:
        problems.append(f"NaN or infinite values in: {', '.join(broken)}")
    if problems:
        raise ArenaError("; ".join(problems))
