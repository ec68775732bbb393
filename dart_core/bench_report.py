"""A bench's figures as JSON data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from dart_core.bench import Bench, Result
from dart_core.bench_figures import (
    CONFIDENCE,
    DEFINITIONS,
    RESAMPLES,
    Counts,
    Estimate,
    geometric,
    ratio,
    total,
)
from dart_core.bench_variants import Variant

RATIOS = (("dart", "ar"), ("dart", "eagle3"), ("eagle3", "ar"))


def bench_record(bench: Bench, headline: int) -> dict[str, Any]:
    """All figures. ``headline``: the tree budget of the engines' τ and of the real runs."""
    sets = list(dict.fromkeys(result.set for result in bench.results))
    variants = [_variant_record(bench, variant, sets) for variant in bench.variants]
    own = {record["engine"]: record for record in reversed(variants)}  # the first of each engine
    engines = {
        name: _engine_record(bench, name, own.get(name), str(headline), sets)
        for name in bench.names
    }
    speeds = {f"{a}_vs_{b}": _speed_ratio(bench.results, a, b, sets) for a, b in RATIOS}
    return {
        "sets": {name: _set_record(bench.results, name) for name in sets},
        "engines": engines,
        "ratios": {name: found["value"] for name, found in speeds.items()},
        "ratio_details": speeds,
        "variants": variants,
        "prompts": [_prompt_record(result) for result in bench.results],
        "statistics": {"confidence": CONFIDENCE, "resamples": RESAMPLES, "seed": 0},
        "definitions": DEFINITIONS,
    }


def _by_set(results: Sequence[Result], sets: Iterable[str], value: Callable) -> list[list]:
    return [[value(result) for result in results if result.set == name] for name in sets]


def _figure(estimate: Estimate | None, name: str = "value") -> dict[str, Any]:
    if estimate is None:
        return {name: None, "interval": None}
    return {name: estimate.value, "interval": estimate.interval}


def _tau(results: Sequence[Result], key: tuple[str, int], sets: Iterable[str]) -> Estimate | None:
    def pair(result: Result) -> tuple[int, int]:
        return result.replays[key].tokens, result.replays[key].steps

    return ratio(_by_set(results, sets, pair))


def _variant_record(bench: Bench, variant: Variant, sets: list[str]) -> dict[str, Any]:
    others = [other.name for other in bench.variants if other.engine == variant.engine]
    if others[0] == variant.name:  # the first of an engine is held against DART's
        others = [other.name for other in bench.variants if other.engine == "dart"]
    against = others[0] if others and others[0] != variant.name else None
    budgets = {}
    for budget in bench.budgets:
        tau = _tau(bench.results, (variant.name, budget), sets)
        base = against and _tau(bench.results, (against, budget), sets)
        counts = {
            name: total(r.replays[variant.name, budget] for r in bench.results if r.set == name)
            for name in sets
        }
        budgets[str(budget)] = {
            **_figure(tau, "tau"),
            "difference": _figure(tau.minus(base)) if tau and base else None,
            "acceptance_by_position": _mean_positions(counts.values()),
            "sets": {
                name: {
                    **_figure(_tau(bench.results, (variant.name, budget), [name]), "tau"),
                    "tokens": each.tokens,
                    "steps": each.steps,
                    "acceptance_by_position": each.by_position(),
                }
                for name, each in counts.items()
            },
        }
    settings = asdict(variant.settings)
    del settings["tree_budget"], settings["candidates"]
    return {
        "name": variant.name,
        "engine": variant.engine,
        "ablation": variant.ablation,
        "settings": settings,
        "mask_slots": variant.slots,
        "plain_scores": variant.plain,
        "difference_to": against,
        "budgets": budgets,
    }


def _mean_positions(counts: Iterable[Counts]) -> list[float]:
    rows = [each.by_position() for each in counts if each.steps]
    deepest = max(map(len, rows), default=0)
    padded = [row + [0.0] * (deepest - len(row)) for row in rows]
    return [sum(column) / len(column) for column in zip(*padded, strict=True)]


def _engine_record(
    bench: Bench, name: str, variant: Mapping | None, headline: str, sets: list[str]
) -> dict[str, Any]:
    at = variant["budgets"][headline] if variant else None

    def rate(result: Result) -> float | None:
        return result.timed[name].rate if name in result.timed else None

    def speed(names: Iterable[str]) -> dict[str, Any]:
        return _figure(geometric(_by_set(bench.results, names, rate)), "tokens_per_second")

    overall, summary = speed(sets), None
    if name in bench.tallies:
        summary = bench.tallies[name].summary()
    equality: dict[str, int] = {}
    for result in bench.results:
        for status, count in (result.timed[name].equality if name in result.timed else {}).items():
            equality[status] = equality.get(status, 0) + count
    return {
        "tau": at["tau"] if at else 1.0,  # plain decoding drafts nothing
        "tau_interval": at["interval"] if at else None,
        "tokens_per_second": overall["tokens_per_second"],
        "tokens_per_second_interval": overall["interval"],
        "acceptance_by_position": at["acceptance_by_position"] if at else [],
        "equality": equality,
        "variant": variant["name"] if variant else None,
        "sets": {
            set_: {
                "tau": at["sets"][set_]["tau"] if at else 1.0,
                "tau_interval": at["sets"][set_]["interval"] if at else None,
                "tokens_per_second": speed([set_])["tokens_per_second"],
                "tokens_per_second_interval": speed([set_])["interval"],
            }
            for set_ in sets
        },
        "runs": summary,
    }


def _speed_ratio(results: Sequence[Result], one: str, other: str, sets: list[str]) -> dict:
    def paired(result: Result) -> float | None:
        if not {one, other} <= result.timed.keys():
            return None
        own, others = result.timed[one].rate, result.timed[other].rate
        return own / others if own and others else None

    return {
        **_figure(geometric(_by_set(results, sets, paired))),
        "sets": {name: _figure(geometric(_by_set(results, [name], paired))) for name in sets},
    }


def _set_record(results: Sequence[Result], name: str) -> dict[str, int]:
    own = [result for result in results if result.set == name]
    return {
        "prompts": len(own),
        "turns": sum(len(result.texts) for result in own),
        "new_tokens": sum(len(answer) for result in own for _, answer in result.texts),
        "timed_prompts": sum(bool(result.timed) for result in own),
    }


def _prompt_record(result: Result) -> dict[str, Any]:
    replays: dict[str, dict[str, list[int]]] = {}
    for (name, budget), counts in result.replays.items():
        replays.setdefault(name, {})[str(budget)] = [counts.tokens, counts.steps]
    return {
        "set": result.set,
        "id": result.name,
        "prompt_tokens": sum(len(prompt) for prompt, _ in result.texts),
        "new_tokens": sum(len(answer) for _, answer in result.texts),
        "replays": replays,
        "timed": {
            name: {
                "tokens": timed.tokens,
                "seconds": timed.seconds,
                "tokens_per_second": timed.rate,
                "equality": dict(timed.equality),
            }
            for name, timed in result.timed.items()
        },
    }
