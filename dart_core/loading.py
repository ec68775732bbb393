"""Loading an engine: what belongs together, is there room, fetch, load; told line by line."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from dart_core import weights
from dart_core.advice import loading_notices, not_applied, not_applied_notice
from dart_core.capture import require_one_gpu
from dart_core.drafters import NGRAM_OFF
from dart_core.drafters.dart import DartDrafter
from dart_core.drafters.eagle3 import Eagle3Drafter
from dart_core.errors import ArenaError
from dart_core.heads import load_dart_head, load_eagle3_head
from dart_core.memory import OutOfMemory, gib, memory_told
from dart_core.ngram_loading import open_ngrams
from dart_core.packing import pack_layers
from dart_core.presets import DEFAULT_PRESET, DEMO_TARGET, Preset, get_preset
from dart_core.references import HUB
from dart_core.room import (
    Part,
    caches_of,
    check_room,
    devices_for,
    itemsize_on,
    needs_spreading,
    needs_streaming,
    part_of,
)
from dart_core.target import Target, default_device, parse_device
from dart_core.trio import FLAGS, WORDS, Trio, choose_trio, preset_by_sizes, require_partner

ENGINES = ("ar", "dart", "eagle3")
LOADERS: dict[str, Callable[..., Any]] = {"dart": load_dart_head, "eagle3": load_eagle3_head}

Progress = Callable[[str], None]
Loaded = tuple[Target, Any, dict[str, DartDrafter | Eagle3Drafter], dict[str, Any]]


def load_models(
    preset: str | Preset | None,
    *,
    target: str | Path | None,
    dart: str | Path | None,
    eagle3: str | Path | None,
    ngram: str | Path | None,
    small_ngram: bool,
    engines: Sequence[str] | None,
    dtype: torch.dtype | None,
    device: str | torch.device | None,
    device_map: str | dict | None,
    rope_theta: float | None,
    cuda_graphs: bool = False,
    source: str = HUB,
    progress: Progress,
) -> Loaded:
    """The target, its tokenizer, its drafters and what they are; see ``Engine.load``."""
    parts_given = {"target": target, "dart": dart, "eagle3": eagle3, "ngram": ngram}
    given = {role: str(value) for role, value in parts_given.items() if value is not None}
    unknown = set(engines or ()) - set(ENGINES)
    if unknown:
        raise ArenaError(f"unknown engine {min(unknown)!r}; known engines: {', '.join(ENGINES)}")
    trio = choose_trio(preset, source=source, **given)
    reference = _target_of(trio)
    if engines is None:
        engines = ["ar", *(["dart"] if trio.dart else [])]
        if trio.eagle3 and (preset is not None or "eagle3" in given):
            engines.append("eagle3")

    config = _config(reference, "target", progress)
    trio = _completed(trio, config, engines, given, source, progress)
    reference = _target_of(trio)
    heads = {name: getattr(trio, name) for name in ("dart", "eagle3") if name in engines}
    configs = {name: _head_config(name, trio, config, progress) for name in heads}
    notes = {
        name: require_partner(name, heads[name], configs[name], reference, config)
        for name in heads
        if config and "hidden_size" in configs[name]
    }
    if "dart" not in engines or trio.ngram == NGRAM_OFF:
        trio = Trio(trio.target, trio.dart, trio.eagle3, None, trio.preset)

    first = parse_device(device) if device is not None else default_device()
    parts = _parts(trio, config, configs, itemsize_on(dtype, first), small_ngram)
    if device is None and device_map is None and needs_spreading(parts):
        progress(f"{first} cannot hold it all: spreading the target over all GPUs")
        device_map = "auto"
    elif device_map is None and needs_streaming(parts[0], first):
        progress(f"the host's memory cannot hold the target: it goes to {first} piece by piece")
        device_map = {"": str(first)}
    devices = devices_for(device, device_map)
    if cuda_graphs:
        require_one_gpu(devices)
    check_room(parts, devices, preset=trio.preset, progress=progress)

    folder = weights.resolve(reference, kind="target", progress=progress)
    folders = {
        name: weights.resolve(reference, kind="head", progress=progress)
        for name, reference in heads.items()
    }
    if trio.ngram is not None:  # fetched while no device is held; opened once there is a drafter
        filename = _ngram_names(trio).ngram_name(small=small_ngram)
        weights.resolve(trio.ngram, kind="ngram", filename=filename, progress=progress)
    with memory_told(f"loading the target {trio.target}", devices[0]):
        tokenizer, loaded = _load_target(
            folder,
            reference,
            progress,
            dtype=dtype,
            device=device,
            device_map=device_map,
            cuda_graphs=cuda_graphs,
        )
    base = get_preset(preset) if isinstance(preset, str) else preset
    # With another target the preset's name would tell a wrong one.
    own = base.name if base is not None and trio.target == base.target else None
    facts: dict[str, Any] = {"target": trio.target, "preset": own}
    drafters: dict[str, DartDrafter | Eagle3Drafter] = {}
    for name in heads:
        options = {"rope_theta": rope_theta} if name == "eagle3" else {}
        with memory_told(f"loading the {WORDS[name]} {heads[name]}", loaded.head_device):
            head = _load_head(name, folders[name], heads[name], loaded, options, progress)
        facts[name], facts[f"{name}_notes"] = heads[name], list(head.notes)
        if doubt := notes.get(name):
            facts[f"{name}_notes"].append(doubt)
            progress(doubt)
        if name == "eagle3":
            drafters[name] = Eagle3Drafter(head, loaded.embed)
            continue
        ngrams = {}
        if trio.ngram is not None:
            ngrams = open_ngrams(
                trio.ngram,
                _ngram_names(trio),
                small=small_ngram,
                vocab_size=loaded.vocab_size,
                progress=progress,
            )
            facts["ngram"] = trio.ngram
        facts["ngrams"] = list(ngrams)
        drafters[name] = DartDrafter(head, ngrams, loaded.embed)
    if cuda_graphs:
        facts["cuda_graphs"] = True
        for drafter in drafters.values():
            drafter.use_static_shapes(loaded.capture)
    facts["notices"] = loading_notices(drafters)
    if fields := not_applied(getattr(loaded.model, "generation_config", None)):
        facts["not_applied"] = fields
        facts["notices"].append(not_applied_notice(fields))
    for line in facts["notices"]:
        progress(line)
    return loaded, tokenizer, drafters, facts


def _target_of(trio: Trio) -> str:
    if trio.target is None:
        raise ArenaError("no target: give --preset or --base-model-name-or-path")
    return trio.target


def _completed(
    trio: Trio,
    config: Mapping[str, Any],
    engines: Sequence[str],
    given: Mapping[str, str],
    source: str,
    progress: Progress,
) -> Trio:
    """The trio with a head for every engine, recognised by the target's sizes if nobody named it.

    Raises ArenaError for an engine whose head is unknown.
    """
    missing = [name for name in ("dart", "eagle3") if name in engines and not getattr(trio, name)]
    alike = preset_by_sizes(config) if missing else None
    if alike is not None:
        progress(
            f"target {trio.target} has the sizes of {alike.target}: taking that one's partners"
        )
        return choose_trio(alike, source=source, **given)
    for name in missing:
        raise ArenaError(f"engine {name} needs its head: give {FLAGS[name]} or a preset")
    return trio


def _head_config(
    name: str, trio: Trio, config: Mapping[str, Any], progress: Progress
) -> dict[str, Any]:
    """As ``_config``; for a head that is not there, the one that would be right is named."""
    reference = getattr(trio, name)
    try:
        return _config(reference, name, progress)
    except ArenaError as error:
        own = preset_by_sizes(config) or trio.preset
        if own is None or reference == getattr(own, name) or ":" in reference:
            raise
        raise ArenaError(
            f"{error}; the {WORDS[name]} of {own.target} is {getattr(own, name)}"
        ) from None


def _config(reference: str, role: str, progress: Progress) -> dict[str, Any]:
    """``config.json`` of a reference, fetched alone; empty where only loading can tell more."""
    if reference == DEMO_TARGET:
        return {}
    kind: weights.Kind = "target" if role == "target" else "head"
    weights.local_path(reference) or weights.remote_of(reference, kind)
    try:
        return weights.read_config(weights.resolve(reference, kind="config", progress=progress))
    except ArenaError:
        # The whole repository or folder says what is wrong, in the words of its kind.
        weights.resolve(reference, kind=kind, progress=progress)
        raise


def _parts(
    trio: Trio,
    config: Mapping[str, Any],
    configs: Mapping[str, Mapping[str, Any]],
    itemsize: int,
    small: bool,
) -> list[Part]:
    parts = [part_of("target", _target_of(trio), itemsize=itemsize, config=config)]
    parts += [
        part_of(name, getattr(trio, name), itemsize=itemsize, config=head)
        for name, head in configs.items()
    ]
    if trio.ngram is not None:
        filename = _ngram_names(trio).ngram_name(small=small)
        parts.append(
            part_of("ngram", trio.ngram, itemsize=itemsize, config=config, filename=filename)
        )
    caches = caches_of(config, itemsize, runs=1)
    return parts + ([caches] if caches else [])


def _ngram_names(trio: Trio) -> Preset:
    return trio.preset or get_preset(DEFAULT_PRESET)  # all published trios have the same names


def _load_target(folder: Path, reference: str, say: Progress, **options: Any) -> tuple[Any, Target]:
    started = time.perf_counter()
    tokenizer = weights.load_tokenizer(folder)
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    if size > 2**30:
        say(f"loading target {reference}: {gib(size)}")
    target = Target.load(folder, **options)
    _require_placed(target, reference)
    where = ", ".join(dict.fromkeys(str(device) for device in target.layer_devices))
    say(
        f"target {reference}: {gib(target.weight_bytes)}, {target.dtype}, on {where} in "
        f"{time.perf_counter() - started:.1f} s".replace("torch.", "")
    )
    return tokenizer, target


def _require_placed(target: Target, reference: str) -> None:
    """Raises OutOfMemory where accelerate left layers on no device, to be brought in and out."""
    away = sum(parameter.is_meta for parameter in target.model.parameters())
    if away:
        count = sum(1 for _ in target.model.parameters())
        raise OutOfMemory(
            f"target {reference} does not fit on the GPUs: {away} of its {count} tensors were left "
            "to the host's memory or disk, where no run is fast; take a smaller target, more GPUs, "
            "or --device cpu"
        )


def _load_head(
    name: str,
    folder: Path,
    reference: str,
    target: Target,
    options: dict[str, Any],
    say: Progress,
) -> Any:
    """A DartHead or an Eagle3Head, as ``name`` says."""
    started = time.perf_counter()
    head = LOADERS[name](
        folder,
        dtype=target.dtype,
        device=target.head_device,
        target_config=target.config,
        **options,
    )
    size = sum(tensor.numel() * tensor.element_size() for tensor in head.parameters())
    pack_layers(head)  # as the target is
    say(f"{name} head {reference}: {gib(size)} in {time.perf_counter() - started:.1f} s")
    return head
