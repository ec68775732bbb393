"""Where a forward's time goes, by kind of layer: what to make quicker next."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from time import perf_counter
from typing import Any

import torch

from dart_core.bench_floors import Log, some_tokens, some_tree, wait_for
from dart_core.target import Target

ROWS = (1, 17)


def measure_layers(
    target: Target,
    *,
    rounds: int,
    context: int = 128,
    rows: Sequence[int] = ROWS,
    log: Log,
) -> dict[str, Any]:
    """Own seconds of each kind of module in a verify pass of a tree of so many nodes.

    A kind is what modules of one name share in all layers (q_proj, input_layernorm). A module's own
    seconds leave out those of the modules in it: of ``self_attn`` remain rotation and attention, of
    ``mlp`` the activation, of the whole mask, positions and Python. Medians over ``rounds`` passes,
    in turns. Watching a module takes some microseconds, which the total shows; on a GPU every
    module is waited for.
    """
    log(f"layers: verify passes of {' and '.join(map(str, rows))} nodes")
    cache = target.new_cache(context + max(rows))
    tokens = some_tokens(target, context + 1)
    passes: dict[int, list[dict[str, float]]] = {count: [] for count in rows}
    try:
        target.prefill(tokens[:context], cache)
        trees = {count: some_tree(target, count) for count in rows}
        with _watched(target) as own:
            for number in range(rounds + 1):
                for count, tree in trees.items():
                    own.clear()
                    target.verify(tree, cache)
                    if number:  # the first is not measured
                        passes[count].append(dict(own))
    finally:
        cache.close()
    return {
        "context": context,
        "passes": [
            {
                "rows": count,
                "seconds": median(sum(each.values()) for each in found),
                "kinds": {name: median(each[name] for each in found) for name in found[0]},
            }
            for count, found in passes.items()
        ],
    }


@contextmanager
def _watched(target: Target) -> Iterator[defaultdict[str, float]]:
    """Own seconds by kind of module, summed up until they are cleared."""
    own: defaultdict[str, float] = defaultdict(float)
    running: list[list[float]] = []  # when each module began, and what those in it took

    def begin(_module: torch.nn.Module, _args: Any) -> None:
        wait_for(target.device)
        running.append([perf_counter(), 0.0])

    def end(kind: str) -> Callable[..., None]:
        def hook(_module: torch.nn.Module, _args: Any, _output: Any) -> None:
            wait_for(target.device)
            started, inside = running.pop()
            seconds = perf_counter() - started
            own[kind] += seconds - inside
            if running:
                running[-1][1] += seconds

        return hook

    handles = []
    for name, module in target.model.named_modules():
        if isinstance(module, torch.nn.ModuleList):
            continue  # never called
        last = name.rpartition(".")[2]
        kind = last if last and not last.isdigit() else type(module).__name__
        handles.append(module.register_forward_pre_hook(begin))
        handles.append(module.register_forward_hook(end(kind)))
    try:
        yield own
    finally:
        for handle in handles:
            handle.remove()
