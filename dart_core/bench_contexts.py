"""How steps grow with the context, beside the target's own attention, and the memory of a token.

All contexts are held ready at once, so that each round times every one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from transformers import Cache

from dart_core.bench_floors import Log, in_rounds, some_tokens, some_tree
from dart_core.bench_stock import StockTarget
from dart_core.bench_variants import HeadDrafter
from dart_core.drafters import Drafter, DraftRun, DraftSettings
from dart_core.engine import Engine

CONTEXTS = (128, 512, 1024, 2048, 4096, 8192, 16384, 32768)
TREE_NODES = 16  # of the verify pass
PREFILL_ROWS = 1024  # at once, of the stock model


def context_lengths(longest: int) -> list[int]:
    """The usual lengths up to ``longest``, and that one."""
    return sorted({*(length for length in CONTEXTS if length < longest), longest})


def measure_contexts(
    engine: Engine,
    stock: StockTarget | None,
    draft: DraftSettings,
    *,
    longest: int,
    rounds: int,
    log: Log,
) -> dict[str, Any]:
    """Seconds of a plain step, a verify pass, each head's drafting, and the stock model's forwards
    of one token and of as many as the tree has, behind contexts of random tokens; and the bytes
    that a token's keys and values take.

    A head's run grows by a token in each round, which is nothing beside its context.
    """
    lengths = context_lengths(longest)
    probes = []
    try:
        for length in lengths:
            log(f"contexts: reading {length} tokens")
            probes.append(_Probe(engine, stock, draft, length, rounds))
        log(f"contexts: steps behind {', '.join(map(str, lengths))} tokens")
        works = {
            (probe.length, name): work for probe in probes for name, work in probe.works.items()
        }
        found = in_rounds(works, engine.target.device, rounds, log)
        names = list(probes[0].works)
        kv_bytes = probes[-1].bytes_per_token() | _head_bytes_per_token(engine)
    finally:
        for probe in probes:
            probe.close()
    rows = [
        {"context": length, "seconds": {name: found[length, name] for name in names}}
        for length in lengths
    ]
    return {
        "tree_nodes": TREE_NODES,
        "max_position_embeddings": getattr(engine.target.config, "max_position_embeddings", None),
        "kv_bytes_per_token": kv_bytes,
        "rows": rows,
        "growth": {name: _growth(rows, name) for name in names},
    }


def _growth(rows: Sequence[Mapping[str, Any]], name: str) -> dict[str, float | None]:
    """seconds_per_1000: more for a thousand more tokens, over all lengths. times: longest ÷
    shortest.
    """
    lengths = [row["context"] for row in rows]
    medians = [row["seconds"][name]["median"] for row in rows]
    slope = None if len(rows) < 2 else float(1000 * np.polyfit(lengths, medians, 1)[0])
    return {"seconds_per_1000": slope, "times": medians[-1] / medians[0]}


class _Probe:
    """All that can be timed behind one context; ``works`` has it by name."""

    def __init__(
        self,
        engine: Engine,
        stock: StockTarget | None,
        draft: DraftSettings,
        length: int,
        rounds: int,
    ) -> None:
        target = engine.target
        self.length = length
        self.works: dict[str, Callable[[], Any]] = {}
        self.runs: list[DraftRun] = []
        self.stock_cache: Any = None
        tokens = some_tokens(target, length + 1)
        drafters = {name: each for name, each in engine.drafters.items() if name != "ar"}
        taps = tuple(sorted({tap for each in drafters.values() for tap in each.taps}))
        self.cache = target.new_cache(length + TREE_NODES)
        hidden = target.prefill(tokens[:length], self.cache, taps=taps).hidden
        one, tree = some_tree(target, 1), some_tree(target, TREE_NODES)
        self.works["ar step"] = lambda: target.verify(one, self.cache)
        self.works[f"verify {TREE_NODES}"] = lambda: target.verify(tree, self.cache)
        parts = () if hidden is None else hidden.chunk(len(taps), dim=1)
        for name, drafter in drafters.items():
            own = torch.cat([parts[taps.index(tap)] for tap in drafter.taps], dim=1)
            self.works[f"{name} draft"] = self._drafting(drafter, own, tokens, draft, rounds)
        if stock is not None:
            self.stock_cache = stock.new_cache()
            for start in range(0, length, PREFILL_ROWS):
                stock.forward(tokens[start : min(length, start + PREFILL_ROWS)], self.stock_cache)
            some = some_tokens(target, TREE_NODES)
            self.works["stock step"] = lambda: self._stock_step(stock, some[:1])
            self.works[f"stock {TREE_NODES}"] = lambda: self._stock_step(stock, some)

    def _drafting(
        self,
        drafter: Drafter,
        hidden: torch.Tensor,
        tokens: torch.Tensor,
        draft: DraftSettings,
        rounds: int,
    ) -> Callable[[], None]:
        with torch.inference_mode():
            capacity = self.length + rounds + 2
            run = drafter.begin(tokens[: self.length], capacity, draft, frozenset())
            self.runs.append(run)
            run.observe(hidden, tokens[1:])
            run.propose()

        @torch.inference_mode()
        def work() -> None:
            run.observe(hidden[-1:], tokens[-1:])
            run.propose()

        return work

    def _stock_step(self, stock: StockTarget, tokens: torch.Tensor) -> None:
        stock.forward(tokens, self.stock_cache)
        self.stock_cache.crop(-len(tokens))

    def bytes_per_token(self) -> dict[str, float]:
        """Of our cache's room and of transformers' filled cache."""
        found = {"target": _cache_bytes(self.cache) / self.cache.capacity}
        if self.stock_cache is not None:
            found["stock"] = _cache_bytes(self.stock_cache) / self.length
        return found

    def close(self) -> None:
        self.cache.close()
        for run in self.runs:
            run.close()
        self.works = {}


def _head_bytes_per_token(engine: Engine) -> dict[str, float]:
    found = {}
    for name, drafter in engine.drafters.items():
        if isinstance(drafter, HeadDrafter):
            cache = drafter.head.new_cache(1)
            found[name] = float(cache.keys.nbytes + cache.values.nbytes)
    return found


def _cache_bytes(cache: Cache) -> int:
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
