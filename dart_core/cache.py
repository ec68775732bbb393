"""Key/value cache of one run: allocated once, written in place, rewound or compacted after every
verify pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin


def free_memory(device: torch.device) -> int | None:
    """Bytes that ``device`` can still give; None where the system does not tell.

    On a GPU what torch holds in reserve counts as free, on a CPU what the system can give back.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        reserve = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return free + reserve
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvail"))
    except (OSError, StopIteration):  # other systems have no such file
        return None


class _Layer(CacheLayerMixin):
    """One layer's view of the cache's storage; new rows go behind the committed ones."""

    def __init__(self, cache: KVCache, keys: torch.Tensor, values: torch.Tensor) -> None:
        super().__init__()
        self._cache = cache
        self.keys, self.values = keys, values
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing to do: the storage exists before the first forward."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self._cache.place is not None:
            rows, window = self._cache.place
            self.keys.index_copy_(2, rows, key_states)
            self.values.index_copy_(2, rows, value_states)
            return self.keys[:, :, :window], self.values[:, :, :window]
        start = self._cache.length
        end = start + key_states.shape[2]
        if end > self._cache.capacity:
            raise RuntimeError(
                f"the cache holds {self._cache.capacity} rows and row {end} was written: "
                "a run must size its cache before its first forward"
            )
        self.keys[:, :, start:end] = key_states
        self.values[:, :, start:end] = value_states
        return self.keys[:, :, :end], self.values[:, :, :end]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._cache.length + query_length, 0

    def get_seq_length(self) -> int:
        return self._cache.length

    def get_max_length(self) -> int:
        return self._cache.capacity


class KVCache(Cache):
    """Keys and values of every layer in one block per device.

    ``length`` rows are committed. A forward writes its rows behind them; ``keep(rows)`` then
    commits some of those rows and forgets the others, so a verify pass costs no copy of the past.

    layer_devices: the device of each layer, in layer order. heads: key/value heads. capacity: rows,
    scratch included. ``place``, where set, says where the next forward writes instead and how much
    it reads: (rows int64 [q], window), see static_shapes.py.
    """

    def __init__(
        self,
        layer_devices: Sequence[torch.device],
        *,
        heads: int,
        head_dim: int,
        capacity: int,
        dtype: torch.dtype,
    ) -> None:
        self.capacity = capacity
        self.length = 0
        self.place: tuple[torch.Tensor, int] | None = None
        layers: list[_Layer | None] = [None] * len(layer_devices)
        self._blocks: list[torch.Tensor] = []
        for device in dict.fromkeys(layer_devices):
            indices = [i for i, other in enumerate(layer_devices) if other == device]
            shape = (len(indices), 2, 1, heads, capacity, head_dim)
            block = torch.zeros(shape, dtype=dtype, device=device)
            self._blocks.append(block)
            for slot, index in enumerate(indices):
                layers[index] = _Layer(self, block[slot, 0], block[slot, 1])
        super().__init__(layers=layers)

    def keep(self, rows: Sequence[int], index: torch.Tensor | None = None) -> None:
        """Commit these rows of the last forward, counted from ``length`` on, strictly increasing;
        drop the others. index: the same as int64 [n] on the device, where the caller has it there.
        """
        start, count = self.length, len(rows)
        if list(rows) != list(range(count)):
            index = torch.as_tensor(rows) if index is None else index
            for block in self._blocks:
                moved = index.to(block.device, non_blocking=True) + start
                block[..., start : start + count, :] = block.index_select(4, moved)
        self.length = start + count

    def rewind(self, length: int) -> None:
        """Forget every row from ``length`` on."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot rewind a cache of {self.length} rows to {length}")
        self.length = length

    def close(self) -> None:
        """Free the storage now rather than when the last reference goes."""
        self._blocks = []
        self.layers: list[_Layer] = []
