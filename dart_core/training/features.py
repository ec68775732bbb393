"""What a head learns from: the target's hidden states and its next-token distribution, computed
once and kept on disk.

A cache folder holds ``cache.json`` (what it was made from) and shards ``00000.safetensors`` … of
whole sequences, laid end to end: ``tokens`` int32 [N], ``supervised`` bool [N], ``lengths`` int32
[sequences], ``hidden`` [N, taps * H] in the target's dtype (inputs of the tapped decoder layers),
``top_ids`` int32 and ``top_logprobs`` float16 [N, K]: the K most probable next tokens after each
position and their log-probability under the full softmax. These are computed only where the next
token is supervised (zero elsewhere).
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from dart_core.disk import disk_told
from dart_core.errors import ArenaError, in_words
from dart_core.heads import default_taps
from dart_core.json_file import read_object
from dart_core.progress import ProgressBar, duration, size
from dart_core.training.data import Sequence
from dart_core.training.fingerprints import check_same, text_fingerprint
from dart_core.training.states import TOP_K, Features, compute_features, target_features

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = [
    "FeatureCache",
    "Features",
    "RecomputedFeatures",
    "cache_settings",
    "target_features",
    "write_cache",
]

SHARD_SEQUENCES = 64
GO_ON = "the same command goes on behind the last whole file"
CHOOSE = "choose another folder, or remove this one"


def bytes_per_token(model: PreTrainedModel, taps: tuple[int, ...], top_k: int) -> int:
    """What a token takes in a cache."""
    states = len(taps) * model.config.get_text_config().hidden_size * model.dtype.itemsize
    return states + top_k * 6 + 5


def shards_within(
    sequences: list[Sequence], per_token: int, limit_bytes: int, count: int | None = None
) -> int:
    """How many shards, from the first on, the size limit lets be kept.

    ``count``: the shards that hold the first so many sequences are enough.
    """
    needed = len(sequences) if count is None else min(count, len(sequences))
    room = limit_bytes
    for start in range(0, needed, SHARD_SEQUENCES):
        room -= per_token * sum(len(s.tokens) for s in sequences[start : start + SHARD_SEQUENCES])
        if room < 0:
            return start // SHARD_SEQUENCES
    return -(-needed // SHARD_SEQUENCES)


def cache_settings(
    model: PreTrainedModel,
    sequences: list[Sequence],
    *,
    target: str,
    top_k: int = TOP_K,
    taps: tuple[int, ...] | None = None,
) -> dict[str, Any]:
    """All that decides what a cache holds. target: the fingerprint of ``model``."""
    return {
        "target": target,
        "dtype": str(model.dtype).removeprefix("torch."),
        "text": text_fingerprint(sequences),
        "sequences": len(sequences),
        "taps": list(taps or default_taps(model.config.num_hidden_layers)),
        "top_k": top_k,
    }


def write_cache(
    folder: str | Path,
    model: PreTrainedModel,
    sequences: list[Sequence],
    settings: Mapping[str, Any],
    *,
    batch_tokens: int = 4096,
    limit_bytes: int = 20 << 30,
    count: int | None = None,
    worker: int = 0,
    workers: int = 1,
    log: Callable[[str], None] = print,
) -> None:
    """Compute the features of ``sequences`` into ``folder``; shards that exist are kept, so it
    resumes. settings: their ``cache_settings``.

    ``count``: only the shards that hold the first so many sequences. ``worker`` of ``workers``
    makes every workers-th shard, so that several processes can fill one folder. Shards that would
    pass ``limit_bytes`` in all are left out. What it will take is said before it begins. Raises
    ArenaError where the folder holds other data, or where the disk has no room.
    """
    folder = Path(folder)
    with disk_told("target features", folder):
        folder.mkdir(parents=True, exist_ok=True)
    taps, top_k = tuple(settings["taps"]), settings["top_k"]
    _claim(folder, settings)
    per_token = bytes_per_token(model, taps, top_k)
    within = shards_within(sequences, per_token, limit_bytes, count)
    missing = [shard for shard in range(within) if not shard_path(folder, shard).exists()]
    if worker == 0:
        _announce(folder, sequences, per_token, limit_bytes, within, missing, count, log)
    bar = ProgressBar("target features", log=log)
    own = [shard for shard in range(within) if shard % workers == worker and shard in missing]
    total = sum(len(s.tokens) for shard in own for s in _group(sequences, shard))
    done = 0

    def computed(tokens: int) -> None:
        nonlocal done
        done += tokens
        rate = done / (time.monotonic() - bar.started)
        bar.show(done / total, f"{rate:,.0f} tokens/s, {duration(bar.left(done, total))} left")

    for shard in own:
        path = shard_path(folder, shard)
        group = _group(sequences, shard)
        tensors = _shard(model, group, taps, top_k, batch_tokens, computed)
        partial = path.with_suffix(f".{os.getpid()}.tmp")
        with disk_told("target features", folder, GO_ON):
            try:
                save_file(tensors, partial)
                partial.rename(path)
            finally:
                partial.unlink(missing_ok=True)
    bar.close()


def shard_path(folder: Path, shard: int) -> Path:
    return folder / f"{shard:05d}.safetensors"


def _group(sequences: list[Sequence], shard: int) -> list[Sequence]:
    return sequences[shard * SHARD_SEQUENCES : (shard + 1) * SHARD_SEQUENCES]


def _announce(
    folder: Path,
    sequences: list[Sequence],
    per_token: int,
    limit_bytes: int,
    within: int,
    missing: list[int],
    count: int | None,
    log: Callable[[str], None],
) -> None:
    """Say what is kept and what is not; refuse what the disk cannot hold."""

    def tokens(shards: Iterable[int]) -> int:
        return sum(len(s.tokens) for shard in shards for s in _group(sequences, shard))

    if count is None:
        everything = tokens(range(-(-len(sequences) // SHARD_SEQUENCES)))
        kept = tokens(range(within))
        log(
            f"target features of {len(sequences):,} sequences, {everything:,} tokens: "
            f"{size(everything * per_token)} in {folder}"
        )
        if kept < everything:
            log(
                f"the limit of {size(limit_bytes)} keeps {kept / everything:.0%} of them; the rest "
                "is computed again whenever it is read"
            )
    needed, free = tokens(missing) * per_token, shutil.disk_usage(folder).free
    if needed > free:
        raise ArenaError(
            f"the target features still to be computed take {size(needed)}, the disk of {folder} "
            f"has {size(free)} free: lower --cache-gib (what is not kept is computed again when "
            "it is read), or choose another --cache"
        )


def _claim(folder: Path, settings: Mapping[str, Any]) -> None:
    path = folder / "cache.json"
    if path.exists():
        check_same(f"{folder} holds features of", _present(path), settings, CHOOSE)
        return
    partial = folder / f"cache.{os.getpid()}.tmp"
    with disk_told("target features", folder):
        partial.write_text(json.dumps(dict(settings), indent=1))
        partial.rename(path)


def _present(path: Path) -> dict[str, Any]:
    try:
        return read_object(path)
    except (OSError, ValueError) as error:
        raise ArenaError(f"{path} cannot be read ({in_words(error)}): {CHOOSE}") from error


def _shard(
    model: PreTrainedModel,
    group: list[Sequence],
    taps: tuple[int, ...],
    top_k: int,
    batch_tokens: int,
    computed: Callable[[int], None],
) -> dict[str, torch.Tensor]:
    lengths = np.array([len(s.tokens) for s in group])
    ends = np.cumsum(lengths)
    total = int(ends[-1])
    width = len(taps) * model.config.get_text_config().hidden_size
    hidden = torch.empty(total, width, dtype=model.dtype)
    top_ids = torch.zeros(total, top_k, dtype=torch.int32)
    top_logprobs = torch.zeros(total, top_k, dtype=torch.float16)
    order = np.argsort(-lengths, kind="stable")  # alike lengths together: little padding
    start = 0
    while start < len(order):
        batch = order[start : start + max(1, batch_tokens // int(lengths[order[start]]))]
        start += len(batch)
        items = compute_features(model, [group[index] for index in batch], taps, top_k)
        for index, item in zip(batch, items, strict=True):
            place = slice(int(ends[index] - lengths[index]), int(ends[index]))
            hidden[place] = item.hidden
            top_ids[place] = item.top_ids.int()
            top_logprobs[place] = item.top_logprobs.half()
        computed(int(lengths[batch].sum()))
    return {
        "tokens": torch.from_numpy(np.concatenate([s.tokens for s in group])),
        "supervised": torch.from_numpy(np.concatenate([s.supervised for s in group])),
        "lengths": torch.from_numpy(lengths.astype(np.int32)),
        "hidden": hidden,
        "top_ids": top_ids,
        "top_logprobs": top_logprobs,
    }


class FeatureCache:
    """Random access to the sequences of a cache folder; only the slices that are asked for are
    read.

    Its length is the number of sequences before the first shard that is missing. Shards that appear
    later are seen by ``refresh()``.
    """

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        if not (self.folder / "cache.json").is_file():
            raise ArenaError(f"{self.folder} holds no feature cache (no cache.json)")
        self.settings = _present(self.folder / "cache.json")
        self._shards: dict[int, tuple[Any, list[int]]] = {}  # number: file, ends of sequences
        self._length = 0
        self.refresh()

    def refresh(self) -> None:
        """Take up shards written since; other files are left alone. Raises ArenaError for a
        damaged one.
        """
        for path in sorted(self.folder.glob("*.safetensors")):
            if not path.stem.isdecimal() or int(path.stem) in self._shards:
                continue
            try:
                file = safe_open(str(path), "pt")
                ends = file.get_tensor("lengths").cumsum(0).tolist()
            except SafetensorError as error:
                raise ArenaError(
                    f"{path} is damaged ({error}): remove it, and the same command makes it anew"
                ) from error
            self._shards[int(path.stem)] = file, ends
        shard = self._length // SHARD_SEQUENCES
        while shard in self._shards and self._length == shard * SHARD_SEQUENCES:
            self._length += len(self._shards[shard][1])
            shard += 1

    def __len__(self) -> int:
        return self._length

    def __contains__(self, index: int) -> bool:
        shard, place = divmod(index, SHARD_SEQUENCES)
        return shard in self._shards and place < len(self._shards[shard][1])

    def __getitem__(self, index: int) -> Features:
        shard, place = divmod(index, SHARD_SEQUENCES)
        file, ends = self._shards[shard]
        start, stop = ends[place - 1] if place else 0, ends[place]

        def cut(name: str) -> torch.Tensor:
            return file.get_slice(name)[start:stop]

        return Features(
            cut("tokens").long(),
            cut("supervised"),
            cut("hidden"),
            cut("top_ids").long(),
            cut("top_logprobs").float(),
        )

    def several(self, indices: list[int]) -> list[Features]:
        """The features of some sequences, in this order."""
        return [self[index] for index in indices]


class RecomputedFeatures:
    """As a ``FeatureCache`` of all ``sequences``, but what it does not hold the target computes."""

    def __init__(
        self, cache: FeatureCache, model: PreTrainedModel, sequences: list[Sequence]
    ) -> None:
        self.cache, self.model, self.sequences = cache, model, sequences
        self.taps, self.top_k = tuple(cache.settings["taps"]), cache.settings["top_k"]

    def __len__(self) -> int:
        return len(self.sequences)

    def __getitem__(self, index: int) -> Features:
        return self.several([index])[0]

    def several(self, indices: list[int]) -> list[Features]:
        """The features of some sequences, in this order."""
        missing = [index for index in indices if index not in self.cache]
        computed = {}
        if missing:
            chosen = [self.sequences[index] for index in missing]
            items = compute_features(self.model, chosen, self.taps, self.top_k)
            computed = dict(zip(missing, items, strict=True))
        return [computed[i] if i in computed else self.cache[i] for i in indices]
