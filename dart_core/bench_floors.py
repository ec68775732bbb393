"""What a step cannot be quicker than on this machine.

A forward of few rows is bound by reading the weights once, one of many rows by its arithmetic. Both
rates are measured here, with the threads and in the dtype of the run. Everything is timed in
rounds, one of each kind after the other, and told as medians over the rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
import torch

from dart_core.bench_variants import HeadDrafter
from dart_core.cache import free_memory
from dart_core.drafters import DraftSettings
from dart_core.engine import Engine
from dart_core.heads.layers import DraftHead
from dart_core.target import Target
from dart_core.tree import DraftTree

BUFFER_BYTES = 1 << 30  # far beyond any cache
MATRIX_SIZE = {"cpu": 2048, "cuda": 8192}  # of the product that tells the rate
ROWS = (1, 2, 4, 8, 16, 32, 64)

Log = Callable[[str], None]


def spread(values: Sequence[float]) -> dict[str, float]:
    """{"median", "low", "high"}: the quartiles of repeated measurements."""
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    return {"median": float(middle), "low": float(low), "high": float(high)}


def timed(work: Callable[[], Any], device: torch.device) -> float:
    """Seconds of one call, until its results are there."""
    wait_for(device)
    started = perf_counter()
    work()
    wait_for(device)
    return perf_counter() - started


def in_rounds(
    works: Mapping[Any, Callable[[], Any]],
    device: torch.device,
    rounds: int,
    log: Callable[[str], None] | None = None,
) -> dict[Any, dict[str, float]]:
    """Seconds of each piece of work, ``rounds`` times one after the other, once unmeasured.

    ``log`` is told after the first round how long the others will take.
    """
    found: dict[Any, list[float]] = {name: [] for name in works}
    names, started = list(works), perf_counter()
    for number in range(rounds + 1):
        if number == 1 and log is not None:
            left = (perf_counter() - started) * rounds
            log(f"{rounds} rounds, {left / 60:.1f} min left of them")
        for name in names[number % len(names) :] + names[: number % len(names)]:
            seconds = timed(works[name], device)
            if number:
                found[name].append(seconds)
    return {name: spread(values) for name, values in found.items()}


def wait_for(device: torch.device) -> None:
    """Until the device has done all it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# The machine --------------------------------------------------------------------------------------


def memory_bandwidth(device: torch.device, rounds: int) -> dict[str, Any]:
    """Bytes a second of reading a buffer of BUFFER_BYTES (less where memory is short), by the
    quicker of two ways: a sum, and a product of matrix and vector.
    """
    size, free = BUFFER_BYTES, free_memory(device)
    if free is not None:
        size = min(size, free // 4)
    width = 4096
    rows = max(1, size // (4 * width))
    buffer = torch.ones(rows, width, device=device)
    vector = torch.ones(width, device=device)
    ways: dict[str, Callable[[], Any]] = {
        "sum": buffer.sum,
        "matrix times vector": lambda: buffer @ vector,
    }
    seconds = in_rounds(ways, device, rounds)
    way = min(seconds, key=lambda name: seconds[name]["median"])
    size = 4 * rows * width
    return {
        "bytes_per_second": size / seconds[way]["median"],
        "buffer_bytes": size,
        "way": way,
        "seconds": seconds[way],
    }


def matmul_rate(device: torch.device, dtype: torch.dtype, rounds: int) -> dict[str, Any]:
    """Floating point operations a second of a product of two square matrices in ``dtype``."""
    size = MATRIX_SIZE[device.type]
    matrix = torch.randn(size, size, device=device).to(dtype)
    seconds = in_rounds({"": lambda: matrix @ matrix}, device, rounds)[""]
    return {"flops_per_second": 2 * size**3 / seconds["median"], "size": size, "seconds": seconds}


# The models ---------------------------------------------------------------------------------------


def step_bytes(target: Target) -> int:
    """Bytes of weights that a forward reads once: all but an embedding that is not the output's
    too, of which it looks up a few rows.
    """
    embedding = target.embed.weight
    looked_up = 0 if target.config.tie_word_embeddings else embedding.nbytes
    return target.weight_bytes - looked_up


def row_flops(target: Target, context: int) -> float:
    """Floating point operations of one row behind ``context`` others: two for each weight, and
    those of the attention.
    """
    config = target.config
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    attention = 4 * config.num_hidden_layers * config.num_attention_heads * dim * context
    return 2 * step_bytes(target) / target.dtype.itemsize + attention


def head_bytes(head: DraftHead) -> dict[str, int]:
    """Bytes of a draft head's weights: all that the first pass reads ("first"), and what every
    further pass of an EAGLE3 head reads ("further"): all but the fusing layer.
    """
    with torch.device("meta"):  # packed weights are no parameters: an empty twin is counted
        twin = type(head)(head.config)
    sizes = {name: each.numel() * head.dtype.itemsize for name, each in twin.named_parameters()}
    read = {name: size for name, size in sizes.items() if not name.startswith("embed_tokens")}
    first = sum(read.values())
    return {"first": first, "further": first - sum(s for n, s in read.items() if n[:3] == "fc.")}


def measure_floors(
    engine: Engine,
    draft: DraftSettings,
    *,
    rounds: int,
    context: int = 128,
    rows: Sequence[int] = ROWS,
    log: Log,
) -> dict[str, Any]:
    """Rates of the machine, and verify passes of trees of ``rows`` nodes, measured and at best."""
    target = engine.target
    log("floors: memory bandwidth and matrix products")
    bandwidth = memory_bandwidth(target.device, rounds)
    rate = matmul_rate(target.device, target.dtype, rounds)
    log(f"floors: verify passes of {', '.join(map(str, rows))} nodes")
    cache = target.new_cache(context + max(rows))
    tokens = some_tokens(target, context + 1)
    try:
        target.prefill(tokens[:context], cache)
        trees = {count: some_tree(target, count) for count in rows}
        measured = in_rounds(
            {count: partial(target.verify, tree, cache) for count, tree in trees.items()},
            target.device,
            rounds,
            log,
        )
    finally:
        cache.close()
    weights = step_bytes(target)
    reading = weights / bandwidth["bytes_per_second"]

    def flops(count: int) -> float:
        return count * row_flops(target, context)

    def floor_of(count: int) -> float:
        return max(reading, flops(count) / rate["flops_per_second"])

    def floor(count: int) -> dict[str, Any]:
        return {
            "rows": count,
            "flops": flops(count),
            "reading_seconds": reading,
            "arithmetic_seconds": flops(count) / rate["flops_per_second"],
            "floor_seconds": floor_of(count),
            "seconds": measured[count],
            "of_one_row": measured[count]["median"] / measured[rows[0]]["median"],
        }

    drafts = _draft_floors(engine, draft, bandwidth["bytes_per_second"])
    steps = {"ar": floor_of(1)} | {
        name: floor_of(draft.tree_budget + 1) + each["floor_seconds"]
        for name, each in drafts.items()
    }
    return {
        "context": context,
        "tree_budget": draft.tree_budget,
        "memory": bandwidth,
        "matmul": rate,
        "weight_bytes": weights,
        "verify": [floor(count) for count in rows],
        "draft": drafts,
        "steps": steps,
    }


def _draft_floors(engine: Engine, draft: DraftSettings, bandwidth: float) -> dict[str, Any]:
    """Of each head: passes a step, and the seconds of reading its weights as often."""
    found = {}
    for name, drafter in engine.drafters.items():
        if not isinstance(drafter, HeadDrafter):
            continue
        size, passes = head_bytes(drafter.head), 1
        if name == "eagle3":  # a tree of few nodes has few levels
            passes += min(draft.eagle3_depth, draft.tree_budget - 1)
        total = size["first"] + (passes - 1) * size["further"]
        found[name] = {"passes": passes, "bytes": total, "floor_seconds": total / bandwidth}
    return found


def some_tokens(target: Target, count: int) -> torch.Tensor:
    """Random ids, int64 [count], the same ones in every call."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, target.vocab_size, (count,), generator=generator)


def some_tree(target: Target, nodes: int) -> DraftTree:
    """A tree in which every node has two children."""
    parents = [-1, *((node - 1) // 2 for node in range(1, nodes))]
    return DraftTree.of(some_tokens(target, nodes), parents)
