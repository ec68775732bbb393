"""Strict loading and saving of draft heads in the published formats.

A head folder holds ``config.json`` and one weight file. Sizes come from the tensors; a config that
disagrees is warned about. What must hold stands in ``checks``.
"""

from __future__ import annotations

import json
import logging
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dart_core.disk import disk_told, written_whole
from dart_core.errors import ArenaError
from dart_core.heads.checks import (
    kind_of,
    refuse_unsupported,
    require_exact,
    require_fit,
    require_head_config,
    require_kind,
    require_rope,
    settle_vocabulary_map,
    sizes_from_tensors,
)
from dart_core.heads.config import HeadConfig, read_config_json
from dart_core.heads.dart import DartHead
from dart_core.heads.eagle3 import Eagle3Head
from dart_core.heads.layers import DraftHead
from dart_core.lfs import refuse_pointer
from dart_core.packing import PackedLinear
from dart_core.weights import HEAD_FILES

logger = logging.getLogger(__name__)


def load_dart_head(
    folder: str | Path,
    *,
    dtype: torch.dtype,
    device: str | torch.device,
    target_config: Any,
    rope_theta: float | None = None,
) -> DartHead:
    """Load a DART head for the target that ``target_config`` describes. See ``load_head``."""
    return load_head(
        folder,
        "dart",
        dtype=dtype,
        device=device,
        target_config=target_config,
        rope_theta=rope_theta,
    )


def load_eagle3_head(
    folder: str | Path,
    *,
    dtype: torch.dtype,
    device: str | torch.device,
    target_config: Any,
    rope_theta: float | None = None,
) -> Eagle3Head:
    """Load an EAGLE3 head for the target that ``target_config`` describes. See ``load_head``."""
    return load_head(
        folder,
        "eagle3",
        dtype=dtype,
        device=device,
        target_config=target_config,
        rope_theta=rope_theta,
    )


def head_kind(folder: str | Path) -> str:
    """What the tensors in ``folder`` are: "dart", "eagle3", or a name of what is no head here."""
    folder = Path(folder)
    return kind_of(read_config_json(folder), _normalise(_read_tensors(folder)))


def load_head(
    folder: str | Path,
    kind: str,
    *,
    dtype: torch.dtype,
    device: str | torch.device,
    target_config: Any,
    rope_theta: float | None = None,
) -> Any:
    """Load a head of ``kind`` ("dart" | "eagle3"), cast to the target's ``dtype``, for inference.

    target_config: the target's transformers config, or anything with vocab_size, hidden_size and
    num_hidden_layers.
    rope_theta: overrides the head's RoPE base. ``head.notes`` lists what was decided on the way.
    Raises FileNotFoundError without a config or weight file, ArenaError for everything that does
    not fit.
    """
    folder = Path(folder)
    notes: list[str] = []

    def note(message: str) -> None:
        notes.append(message)
        logger.info("%s: %s", folder, message)

    def warn(message: str) -> None:
        notes.append(message)
        logger.warning("%s: %s", folder, message)

    try:
        raw = read_config_json(folder)
        require_head_config(raw, kind)
        tensors = _normalise(_read_tensors(folder))
        require_kind(raw, tensors, kind)
        refuse_unsupported(raw, tensors)
        if kind == "dart" and tensors.pop("embed_tokens.weight", None) is not None:
            note("its own embedding is ignored: a DART head uses the target's")
        config = HeadConfig.from_dict(sizes_from_tensors(raw, tensors, kind, warn), note)
        config = replace(
            config,
            own_embedding="embed_tokens.weight" in tensors,
            target_layers=int(_target(target_config).num_hidden_layers),
            rope_theta=float(rope_theta) if rope_theta is not None else config.rope_theta,
        )
        note(
            f"RoPE base {config.rope_theta:g}" + (" (overridden)" if rope_theta is not None else "")
        )
        require_fit(config, _target(target_config))
        positions = getattr(_target(target_config), "max_position_embeddings", None)
        if positions and config.max_position_embeddings < positions:
            note(
                f"declares {config.max_position_embeddings} positions of the target's {positions}; "
                "RoPE is extended beyond them"
            )
        with torch.device("meta"):
            head = DartHead(config) if kind == "dart" else Eagle3Head(config)
        settle_vocabulary_map(config, tensors, warn)
        require_exact(head, tensors)
        require_rope(config)
    except ArenaError as error:
        raise ArenaError(f"{folder}: {error}") from error
    if stored := sorted(
        {str(t.dtype) for t in tensors.values() if t.is_floating_point() and t.dtype != dtype}
    ):
        note(f"stored as {', '.join(stored)}, cast to {dtype}")
    cast = {
        name: tensor.to(device, dtype if tensor.is_floating_point() else tensor.dtype)
        for name, tensor in tensors.items()
    }
    head.load_state_dict(cast, assign=True)
    head.notes = notes
    return head.requires_grad_(False).eval()


def save_head(head: DraftHead, folder: str | Path) -> Path:
    """Write ``config.json`` and ``model.safetensors`` in the published format, each whole or not at
    all. Raises ArenaError where the disk takes no more.
    """
    from safetensors.torch import save_file

    if any(isinstance(module, PackedLinear) for module in head.modules()):
        raise ValueError("a packed head cannot be saved: save it before packing")
    folder = Path(folder)
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in head.state_dict().items()}
    raw = head.config.to_dict() | {"torch_dtype": str(head.dtype).removeprefix("torch.")}
    with disk_told("the head", folder):
        folder.mkdir(parents=True, exist_ok=True)
        with written_whole(folder / "model.safetensors") as partial:
            save_file(state, partial, metadata={"format": "pt"})
        with written_whole(folder / "config.json") as partial:
            partial.write_text(json.dumps(raw, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return folder


def _target(target_config: Any) -> Any:
    """The text part of a target's config (multi-modal targets nest it)."""
    return getattr(target_config, "text_config", None) or target_config


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    path = next((folder / name for name in HEAD_FILES if (folder / name).is_file()), None)
    if path is None:
        sharded = next(folder.glob("*.index.json"), None)
        if sharded is not None:
            raise ArenaError(
                f"weights are sharded ({sharded.name}); merge them into one model.safetensors"
            )
        raise FileNotFoundError(f"{folder}: no head weights; looked for {' and '.join(HEAD_FILES)}")
    refuse_pointer(path)
    if path.suffix == ".bin" and torch.__version__ < "2.10":
        # Before 2.10 weights-only loading could be led astray (CVE-2026-24747).
        raise ArenaError(
            f"torch {torch.__version__} does not read {path.name} safely: update it to 2.10 or "
            "newer, or use a head with model.safetensors"
        )
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            loaded = load_file(path)
        else:
            _require_plain_archive(path)
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except (
        Exception
    ) as error:  # each reader has its own exception types; the file is what matters to the user
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ArenaError(f"{path.name} is damaged or not a weight file ({reason})") from error
    if not isinstance(loaded, dict) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in loaded.items()
    ):
        raise ArenaError(f"{path.name} is not a plain dictionary of tensors")
    size = path.stat().st_size
    for name, tensor in loaded.items():
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type != "cpu":
            raise ArenaError(f"{path.name}: {name!r:.80} is no plain tensor")
        if not 0 < tensor.numel() * tensor.element_size() <= size:  # a view may repeat its values
            raise ArenaError(f"{path.name}: {name!r:.80} is empty or larger than the file")
    return loaded


def _require_plain_archive(path: Path) -> None:
    """Raises ArenaError for an archive that would unpack to more than the file; torch's own are not
    packed. The formats before torch 1.6 are refused, for they say themselves how much to reserve.
    """
    with path.open("rb") as file:
        if file.read(4) != b"PK\3\4":
            raise ArenaError("not written by torch 1.6 or newer")
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
    packed = any(entry.compress_type != zipfile.ZIP_STORED for entry in entries)
    if packed or sum(entry.file_size for entry in entries) > path.stat().st_size:
        raise ArenaError("it unpacks to more than it is")


def _normalise(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """One spelling for the names: no ``model.`` prefix, ``midlayer.`` for ``layers.0.``; no derived
    buffers.
    """
    renamed = {}
    for name, tensor in tensors.items():
        name = name.removeprefix("model.")
        if name.startswith("layers.0."):
            name = "midlayer." + name.removeprefix("layers.0.")
        if name.endswith("rotary_emb.inv_freq"):
            continue  # recomputed from the config; old .bin files carry it
        if name in renamed:
            raise ArenaError(f"two tensors both mean {name!r:.80}")
        renamed[name] = tensor
    return renamed
