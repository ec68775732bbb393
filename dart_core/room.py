"""Is there room for what is asked for: on disk before a download, in memory before loading.

Sizes come from a hub's file list and from local files; nothing is read or fetched for them but
``config.json``.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dart_core import demo_target, weights
from dart_core.cache import free_memory
from dart_core.errors import ArenaError
from dart_core.memory import SMALLER, OutOfMemory, gib
from dart_core.ngram import converted_path
from dart_core.ngram_convert import disk_needed, parts_folder
from dart_core.presets import DEMO_TARGET, Preset, smaller_preset
from dart_core.references import local_path
from dart_core.target import default_device, default_dtype, parse_device
from dart_core.trio import WORDS

KINDS: dict[str, weights.Kind] = {"target": "target", "ngram": "ngram"}  # the others are heads
NODE_BYTES = 36  # of a published .trie, a node
ASSUMED_ORDER, MAX_ORDER = 3, 8  # before a file is here, nobody tells its order
RUN_TOKENS = 2048  # the keys and values that a first run takes
STORED_BYTES = {"float32": 4, "float": 4, "float64": 8}  # a weight; other dtypes have 2


@dataclass(frozen=True, slots=True)
class Part:
    """One thing to load. size: bytes of its files, None where nobody tells; download: how many of
    those are yet to come; made: bytes made from them, once; memory: bytes that it takes when
    loaded. disk: folder for the download; made_in: for what is made.
    """

    name: str
    size: int | None
    download: int = 0
    disk: Path | None = None
    made: int = 0
    made_in: Path | None = None
    memory: int = 0


def part_of(
    role: str,
    reference: str,
    *,
    itemsize: int,
    config: Mapping[str, Any] | None = None,
    filename: str | None = None,
) -> Part:
    """What the target, a head ("dart", "eagle3") or the "ngram" named ``filename`` takes.

    itemsize: bytes of a weight in memory. config: its ``config.json``, which has the stored dtype;
    for an n-gram the target's.
    """
    if reference == DEMO_TARGET:
        download, folder = demo_target.demo_disk()
        size = demo_target.WEIGHT_BYTES
        return Part(f"target {demo_target.FOLDER}", size, download, folder, memory=size)
    kind = KINDS.get(role, "head")
    name = f"{WORDS[role]} {reference}" + (f" {filename}" if role == "ngram" else "")
    local = local_path(reference)
    if local is not None:
        sizes, download, disk = _local_sizes(local, kind, filename), 0, None
    else:
        remote = weights.remote_of(reference, kind)
        listing = weights.client(remote).look(remote, kind, weights.wanted_files(kind, filename))
        if listing is None:
            return Part(name, None)
        sizes, download, disk = listing.sizes, listing.missing, listing.folder
    size = sum(sizes.values())
    if kind == "ngram":
        made = _conversion(reference, filename, size, (config or {}).get("vocab_size"))
        return Part(name, size, download, disk, made, weights.cache_dir())
    stored = sum(count for file, count in sizes.items() if _is_weights(file, sizes))
    each = STORED_BYTES.get(str(_dtype(config or {})).removeprefix("torch."), 2)
    quantised = (config or {}).get("quantization_config") is not None
    memory = stored if quantised else stored * itemsize // each
    return Part(name, size, download, disk, memory=memory)


def caches_of(config: Mapping[str, Any], itemsize: int, runs: int) -> Part | None:
    """The keys and values of ``runs`` runs at once; None where the config does not tell."""
    try:
        heads = config.get("num_key_value_heads") or config["num_attention_heads"]
        width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        row = 2 * config["num_hidden_layers"] * heads * width * itemsize
    except (KeyError, TypeError):
        return None
    name = f"keys and values of {runs} run{'s' if runs > 1 else ''} of {RUN_TOKENS} tokens"
    return Part(name, 0, memory=runs * row * RUN_TOKENS)


def itemsize_on(dtype: torch.dtype | None, device: torch.device) -> int:
    return (dtype or default_dtype(device)).itemsize


def devices_for(device: str | torch.device | None, device_map: Any) -> list[torch.device]:
    """Where weights may lie: one device, or all GPUs (the CPU where there are none)."""
    if isinstance(device_map, dict):
        places = dict.fromkeys(str(place) for place in device_map.values() if place != "disk")
        return [
            torch.device("cuda", int(place)) if place.isdigit() else torch.device(place)
            for place in places
        ]
    if device_map is None:
        return [parse_device(device) if device is not None else default_device()]
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [torch.device("cuda", index) for index in range(count)] or [torch.device("cpu")]


def needs_spreading(parts: Iterable[Part]) -> bool:
    """Whether several GPUs hold what the first one cannot."""
    if not torch.cuda.is_available() or torch.cuda.device_count() < 2:
        return False
    free = _free(torch.device("cuda", 0))
    return free is not None and sum(part.memory for part in parts) > free


def needs_streaming(target: Part, device: torch.device) -> bool:
    """Whether a target must go to its GPU piece by piece: the host cannot hold it on the way."""
    if device.type != "cuda":
        return False
    free = _free(torch.device("cpu"))
    return free is not None and target.memory > free


def check_room(
    parts: Sequence[Part],
    devices: Sequence[torch.device],
    *,
    preset: Preset | None = None,
    progress: weights.Progress,
) -> None:
    """State what is needed and what there is, where anything is to be fetched.

    Raises ArenaError with both, and the remedies, where the disk is too small, and OutOfMemory
    where the devices' memory is.
    """
    disks = _disks(parts)
    free = [_free(device) for device in devices]
    known = None if None in free else sum(bytes_ for bytes_ in free if bytes_ is not None)
    if any(part.download for part in parts):
        for line in _table(parts, disks, devices, known):
            progress(line)
    smaller = smaller_preset(preset.name if preset else None)
    for folder, (need, there, names) in disks.items():
        if need > there:
            raise ArenaError(
                f"too little disk at {folder}: {gib(need)} needed ({', '.join(names)}), "
                f"{gib(there)} free; {_disk_remedies(parts, smaller)}"
            )
    need = sum(part.memory for part in parts)
    if known is not None and need > known:
        where = _named(devices)
        remedies = SMALLER.replace(
            "a smaller --preset", f"--preset {smaller}" if smaller else "a smaller --preset"
        )
        raise OutOfMemory(
            f"too little memory on {where}: {gib(need)} needed ({_figures(parts)}), "
            f"{gib(known)} free; {remedies}"
        )


def _free(device: torch.device) -> int | None:
    try:
        return free_memory(device)
    except (RuntimeError, AssertionError):  # a GPU that is rented only later, say
        return None


def _disks(parts: Sequence[Part]) -> dict[Path, tuple[int, int, list[str]]]:
    """Folder -> bytes needed, bytes free, what for; folders of one disk are one."""
    wanted: dict[int, tuple[Path, int, list[str]]] = {}
    for part in parts:
        for folder, count, what in (
            (part.disk, part.download, part.name),
            (part.made_in, part.made, f"{part.name} converted"),
        ):
            if not count or folder is None:
                continue
            there = next(path for path in (folder, *folder.parents) if path.exists())
            device = there.stat().st_dev
            first, before, names = wanted.get(device, (folder, 0, []))
            wanted[device] = (first, before + count, [*names, f"{what} {gib(count)}"])
    disks = {}
    for folder, need, names in wanted.values():
        there = next(path for path in (folder, *folder.parents) if path.exists())
        disks[folder] = (need, shutil.disk_usage(there).free, names)
    return disks


def _table(
    parts: Sequence[Part],
    disks: Mapping[Path, tuple[int, int, list[str]]],
    devices: Sequence[torch.device],
    free: int | None,
) -> list[str]:
    total = [0, 0, 0]
    lines = []
    for part in parts:
        row = (part.download, (part.size or 0) + part.made, part.memory)
        total = [before + count for before, count in zip(total, row, strict=True)]
        shown = [gib(count) if count else "–" for count in row]
        if part.size is None:
            shown[0] = shown[1] = "unknown"
        lines.append(_row(*shown, part.name))
    sums = _row(*(gib(count) for count in total), "in all")
    there = [f"{gib(free)} on {_named(devices)}" if free is not None else "memory unknown"]
    there += [f"{gib(left)} of disk at {folder}" for folder, (_, left, _) in disks.items()]
    return [
        _row("download", "on disk", "memory", "needed"),
        *lines,
        sums,
        "free: " + ", ".join(there),
    ]


def _row(*cells: str) -> str:
    download, disk, memory, name = cells
    return f"{download:>10}  {disk:>10}  {memory:>10}  {name}"


def _disk_remedies(parts: Sequence[Part], smaller: str | None) -> str:
    remedies = ["make room"]
    downloads = [part for part in parts if part.download]
    if any(part.disk and part.disk != weights.cache_dir() for part in downloads):
        remedies.append("move the download's cache (HF_HOME, or MODELSCOPE_CACHE)")
    if any(part.made or part.disk == weights.cache_dir() for part in parts):
        remedies.append("move what is made from it (DART_ARENA_CACHE)")
    remedies.append(
        f"take a smaller target (--preset {smaller})" if smaller else "take a smaller target"
    )
    if any(part.made or "n-gram" in part.name for part in parts):
        remedies.append("take the small n-gram (--ngram small) or none (--ngram off)")
    return ", ".join(remedies[:-1]) + " or " + remedies[-1]


def _figures(parts: Sequence[Part]) -> str:
    return ", ".join(f"{part.name} {gib(part.memory)}" for part in parts if part.memory)


def _named(devices: Sequence[torch.device]) -> str:
    return " + ".join("the CPU" if device.type == "cpu" else str(device) for device in devices)


def _local_sizes(path: Path, kind: weights.Kind, filename: str | None) -> dict[str, int]:
    if path.is_file():
        return {path.name: path.stat().st_size}
    patterns = weights.wanted_files(kind, filename)
    return {
        file.name: file.stat().st_size
        for pattern in patterns
        for file in path.glob(pattern)
        if file.is_file()
    }


def _is_weights(file: str, sizes: Mapping[str, int]) -> bool:
    """safetensors where there are any, as the loaders prefer them."""
    if any(name.endswith(".safetensors") for name in sizes):
        return file.endswith(".safetensors")
    return file.endswith(".bin")


def _dtype(config: Mapping[str, Any]) -> Any:
    return config.get("dtype") or config.get("torch_dtype")


def _conversion(reference: str, filename: str | None, size: int, vocabulary: int | None) -> int:
    """Bytes that converting a .trie will take; 0 where it is done or begun, or not needed."""
    path = local_path(reference)
    if path is None or not path.is_file():
        path = weights.already_here(reference, filename) if filename else None
    if not (path.name if path is not None else filename or reference).endswith(".trie"):
        return 0
    order, nodes = ASSUMED_ORDER, size // NODE_BYTES
    if path is not None:
        converted = converted_path(path, cache=weights.cache_dir(), vocab_size=vocabulary)
        if converted.exists() or parts_folder(converted).exists():
            return 0  # what a conversion that was begun still needs, it says itself
        with path.open("rb") as file:
            header = file.read(16)
        if len(header) == 16 and 0 < struct.unpack("<Q", header[:8])[0] <= MAX_ORDER:
            order = struct.unpack("<Q", header[:8])[0]
    return disk_needed(order, nodes, vocabulary)[0]
