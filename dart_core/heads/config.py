"""Sizes of a draft head, and the published ``config.json`` they are read from and written to.

Both head families publish a Llama-style ``config.json`` with a few extra keys. What differs between
trainers is
gathered here: where the RoPE base stands, and how the tapped target layers are numbered.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dart_core.errors import ArenaError
from dart_core.json_file import read_object

logger = logging.getLogger(__name__)

DEFAULT_ROPE_THETA = 10000.0
AUX_LAYER_KEYS = (
    "eagle_aux_hidden_state_layer_ids",
    "aux_hidden_state_layer_ids",
    "target_layer_ids",
)
AUX_CONVENTION_KEY = (
    "aux_hidden_state_convention"  # "input" | "output": says outright what the list means
)
_MAX_SIZE = 2**24  # of a dimension: what a damaged number asks for stays small
_MAX_LAYERS = 2**16
_MAX_REAL = 1e15
_WHOLE = (
    *((key, 1, _MAX_SIZE) for key in (
        "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads",
        "head_dim", "vocab_size", "draft_vocab_size", "target_hidden_size",
    )),
    ("max_position_embeddings", 1, 2**40),
    ("num_hidden_layers", 0, _MAX_LAYERS),
    ("draft_length", 0, 256),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """One draft head: a single Llama-style layer between a fusing ``fc`` and a reduced ``lm_head``.

    draft_length: number of mask slots D of a DART head (it drafts D + 1 levels); None makes it an
    EAGLE3 head.
    target_hidden_size: width of one tapped target state; ``fc`` reads three of them.
    aux_layers: the three tapped layers as *inputs* of those layers (index 0 = embeddings), None =
    the default.
    target_layers: the target's number of layers, which the default taps need; the loaders fill it
    in.
    own_embedding: the head file carries its own ``embed_tokens.weight`` (EAGLE3 only).
    """

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    draft_vocab_size: int
    target_hidden_size: int
    draft_length: int | None = None
    rms_norm_eps: float = 1e-6
    rope_theta: float = DEFAULT_ROPE_THETA
    rope_scaling: dict[str, Any] | None = None
    max_position_embeddings: int = 2048
    aux_layers: tuple[int, int, int] | None = None
    target_layers: int | None = None
    own_embedding: bool = False

    @property
    def kind(self) -> str:
        return "eagle3" if self.draft_length is None else "dart"

    @property
    def taps(self) -> tuple[int, int, int]:
        """The target layers whose inputs the head reads, low to high: configured, else (2, L // 2,
        L - 3).
        """
        if self.aux_layers is not None:
            return self.aux_layers
        if self.target_layers is None:
            raise ArenaError(
                "this head has neither aux_layers nor target_layers, so its tapped layers are "
                "unknown; set target_layers to the target's number of layers"
            )
        return default_taps(self.target_layers)

    @classmethod
    def from_dict(
        cls, raw: dict[str, Any], note: Callable[[str], None] = logger.info
    ) -> HeadConfig:
        """Read the published keys. Raises ArenaError naming every required key that is absent."""
        flat = flatten(raw)
        required = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
        absent = [key for key in required if flat.get(key) is None]
        if absent:
            raise ArenaError(f"head config lacks {', '.join(absent)}")
        check_values(raw)
        heads = flat["num_attention_heads"]
        theta, scaling = read_rope(flat)
        config = cls(
            hidden_size=flat["hidden_size"],
            intermediate_size=flat["intermediate_size"],
            num_attention_heads=heads,
            num_key_value_heads=flat.get("num_key_value_heads") or heads,
            head_dim=flat.get("head_dim") or flat["hidden_size"] // heads,
            vocab_size=flat["vocab_size"],
            draft_vocab_size=flat.get("draft_vocab_size") or flat["vocab_size"],
            target_hidden_size=flat.get("target_hidden_size") or flat["hidden_size"],
            draft_length=flat.get("draft_length"),
            rms_norm_eps=1e-6 if flat.get("rms_norm_eps") is None else float(flat["rms_norm_eps"]),
            rope_theta=theta,
            rope_scaling=scaling,
            max_position_embeddings=flat.get("max_position_embeddings") or 2048,
            aux_layers=read_aux_layers(raw, note),
        )
        if heads % config.num_key_value_heads or config.head_dim % 2:
            raise ArenaError(
                f"head config: {heads} heads over {config.num_key_value_heads} key/value heads of "
                f"{config.head_dim}; expected a multiple, and an even size"
            )
        return config

    def to_dict(self) -> dict[str, Any]:
        """The published ``config.json`` of this head, readable by the projects that defined the
        formats.
        """
        raw: dict[str, Any] = {
            "architectures": [
                "LlamaForCausalLMDart" if self.kind == "dart" else "LlamaForCausalLMEagle3"
            ],
            "model_type": "llama",
            "attention_bias": False,
            "draft_vocab_size": self.draft_vocab_size,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "max_position_embeddings": self.max_position_embeddings,
            "num_attention_heads": self.num_attention_heads,
            "num_hidden_layers": 1,
            "num_key_value_heads": self.num_key_value_heads,
            "pretraining_tp": 1,
            "rms_norm_eps": self.rms_norm_eps,
            "rope_scaling": self.rope_scaling,
            "rope_theta": self.rope_theta,
            "tie_word_embeddings": False,
            "vocab_size": self.vocab_size,
        }
        if self.draft_length is not None:
            raw["draft_length"] = self.draft_length
        if self.target_hidden_size != self.hidden_size:
            raw["target_hidden_size"] = self.target_hidden_size
        if self.aux_layers is not None:
            raw["eagle_config"] = {
                "eagle_aux_hidden_state_layer_ids": [layer - 1 for layer in self.aux_layers],
                AUX_CONVENTION_KEY: "output",
            }
        return raw


def default_taps(num_layers: int) -> tuple[int, int, int]:
    """The tapped layers of published heads, as inputs of decoder layers 2, L // 2 and L - 3."""
    taps = (2, num_layers // 2, num_layers - 3)
    if min(taps) < 0 or max(taps) >= num_layers:
        raise ArenaError(
            f"a target of {num_layers} layers is too shallow for a draft head; it needs at least 3"
        )
    return taps


def read_config_json(folder: Path) -> dict[str, Any]:
    """Parse ``folder/config.json``. Raises FileNotFoundError or ArenaError naming the file."""
    path = Path(folder) / "config.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"{path}: no config.json; a draft head folder holds config.json and one weight file"
        )
    try:
        return read_object(path)
    except ValueError as error:
        raise ArenaError(f"{path}: not valid JSON ({error})") from error


def _is_whole(value: object, low: int, high: int) -> bool:
    return type(value) is int and low <= value <= high


def check_values(raw: dict[str, Any]) -> None:
    """Raises ArenaError for a value of a ``config.json`` that no head can have, by its name.

    Keys that are missing or null are let pass: what is required is for ``from_dict`` to say.
    """
    flat = flatten(raw)

    def require(section: dict[str, Any], key: str, fits: Callable[[Any], bool], words: str) -> None:
        value = section.get(key)
        if value is not None and not fits(value):
            raise ArenaError(
                f"head config holds a value that makes no sense: {key} is {value!r:.60}; "
                f"expected {words}"
            )

    for key, low, high in _WHOLE:
        require(
            flat,
            key,
            partial(_is_whole, low=low, high=high),
            f"a whole number from {low} to {high}",
        )
    require(flat, "rms_norm_eps", lambda value: _is_real(value) and value <= 1, "0 to 1")
    for key in ("rope_parameters", "rope_scaling"):
        require(flat, key, lambda value: isinstance(value, dict), "an object")
    for section in (flat, flat.get("rope_parameters") or {}, flat.get("rope_scaling") or {}):
        require(section, "rope_theta", lambda value: _is_real(value) and value > 0, "above 0")


def _is_real(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= _MAX_REAL and math.isfinite(value)


def flatten(raw: dict[str, Any]) -> dict[str, Any]:
    """Sizes may be nested in ``transformer_layer_config`` (vLLM speculators); outer keys win."""
    nested = raw.get("transformer_layer_config")
    return {**nested, **raw} if isinstance(nested, dict) else raw


def read_rope(raw: dict[str, Any]) -> tuple[float, dict[str, Any] | None]:
    """RoPE base and scaling: ``rope_theta``, else ``rope_parameters``, else ``rope_scaling``."""
    parameters = raw.get("rope_parameters") or {}
    scaling = raw.get("rope_scaling") or {}
    bases = (raw.get("rope_theta"), parameters.get("rope_theta"), scaling.get("rope_theta"))
    theta = next((float(base) for base in bases if base is not None), DEFAULT_ROPE_THETA)
    merged = {key: value for key, value in {**parameters, **scaling}.items() if key != "rope_theta"}
    rope_type = merged.pop("rope_type", None) or merged.pop("type", None) or "default"
    merged.pop("type", None)
    return theta, None if rope_type == "default" else {"rope_type": rope_type, **merged}


def read_aux_layers(
    raw: dict[str, Any], note: Callable[[str], None]
) -> tuple[int, int, int] | None:
    """The configured tapped layers as layer *inputs*, or None for the default.

    The same list means different layers to different trainers: "output of layer i" (SpecForge,
    SGLang) or "input of layer i" (vLLM). An explicit convention key decides; else the first entry,
    because every published head taps the input of layer 2 first (1 is an output id, 2 an input id);
    else the place of the list (``eagle_config``: outputs).
    """
    nested = raw.get("eagle_config")
    eagle = nested if isinstance(nested, dict) else {}
    for place, section in (("eagle_config", eagle), ("config", raw)):
        for key in AUX_LAYER_KEYS:
            layers = section.get(key)
            if layers is None:
                continue
            if not isinstance(layers, list) or not all(
                type(layer) is int and -1 <= layer < _MAX_LAYERS for layer in layers
            ):
                raise ArenaError(f"{key} is {layers!r:.60}; a list of layer numbers was expected")
            if len(layers) != 3:
                raise ArenaError(
                    f"{key} lists {len(layers)} target layers {layers!r:.60}; heads "
                    "that fuse exactly 3 are supported"
                )
            convention = section.get(AUX_CONVENTION_KEY) or raw.get(AUX_CONVENTION_KEY)
            if convention not in ("input", "output"):
                by_place = "output" if place == "eagle_config" else "input"
                convention = {1: "output", 2: "input"}.get(layers[0], by_place)
            inputs = tuple(layer + (convention == "output") for layer in layers)
            note(
                f"{key} {layers} read as layer {convention}s: "
                f"tapping the inputs of layers {list(inputs)}"
            )
            return inputs
    return None
