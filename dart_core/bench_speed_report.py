"""The record of a speed run: what was measured, as JSON data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from dart_core.bench_figures import CONFIDENCE, RESAMPLES, Estimate, geometric, ratio
from dart_core.bench_speed import Contestant, Measured, StepLog
from dart_core.metrics import chosen_sizes
from dart_core.report import STAGES
from dart_core.step import Step

SPEED_DEFINITIONS = {
    "tokens_per_second": "Decoding speed, the prefill left out. Ours: tokens of verify steps ÷ "
    "their seconds on the engine's own clock. transformers': tokens after its first step ÷ seconds "
    "from the first step's tokens to the last, as a streamer sees them arrive. Of a prompt: the "
    "median of its repeats. Of a set: the geometric mean over its prompts. Overall: that of the "
    "sets.",
    "times_base": "Speed ÷ that of the contestant called base, as the ratios are.",
    "tau": "Tokens after the first step ÷ steps after it, in these runs. Of a set: over all its "
    "prompts. Overall: the mean of the sets.",
    "ratios": "Decoding speeds held against each other prompt by prompt, in one run, in turns. "
    "Means as of tokens_per_second.",
    "speedup_per_tau": "Speed ÷ plain decoding's ÷ τ, prompt by prompt: 1 would be drafting for "
    "free and verifying at the price of one token. For transformers' prompt lookup: its speed ÷ "
    "that of its own plain generate ÷ τ. Means as of tokens_per_second.",
    "interval": "95 % of the bootstrap: prompts are drawn again within each set, the same ones for "
    "every contestant. Null where a set has a single prompt.",
    "median_step_seconds": "Own seconds of a verify step by stage, and of all of it: medians over "
    "all steps of all repeats.",
    "repeat_spread": "How far repeats of one prompt lie apart: (most − least) ÷ median speed, the "
    "median over prompts.",
    "seconds": "Of floors, contexts and start-up: medians and quartiles over rounds, in turns.",
    "floor_seconds": "The larger of the bytes of weights ÷ memory bandwidth and the floating point "
    "operations ÷ the rate of a large matrix product, both measured in the same run.",
}

# Held against each other where both ran; the tree budget "auto" and others come beside these.
RATIOS = (
    ("ar", "generate"),
    ("dart", "ar"),
    ("dart", "generate"),
    ("dart", "eagle3"),
    ("dart", "generate-lookup"),
    ("dart", "dart-no-ngram"),
    ("dart-lookup", "dart"),
    ("dart-lookup", "generate-lookup"),
    ("eagle3", "ar"),
    ("generate-lookup", "generate"),
    ("dart-auto", "ar"),
    ("dart-auto", "generate"),
    ("dart-auto", "eagle3-auto"),
    ("dart-auto", "generate-lookup"),
    ("dart-auto-lookup", "generate-lookup"),
    ("dart-auto-lookup", "eagle3-auto-lookup"),
    ("dart-lookup", "eagle3-lookup"),
    ("eagle3-auto", "ar"),
)


def speed_record(
    contestants: Mapping[str, Contestant],
    results: Sequence[Measured],
    logs: Mapping[str, StepLog],
) -> dict[str, Any]:
    """All figures of the prompts that were run. logs: of our engines' runs, by contestant."""
    sets = list(dict.fromkeys(result.set for result in results))
    figures = _Figures(results, sets)
    ratios = {f"{a}_vs_{b}": figures.of(_over(a, b)) for a, b in _pairs(contestants)}
    base = "generate" if "generate" in contestants else "ar"
    return {
        "base": base,
        "sets": {
            name: {
                "prompts": sum(result.set == name for result in results),
                "turns": sum(len(result.turns) for result in results if result.set == name),
            }
            for name in sets
        },
        "contestants": {
            name: _contestant_record(each, figures, base, logs.get(name))
            for name, each in contestants.items()
        },
        "ratios": ratios,
        "prompts": [_prompt_record(result) for result in results],
        "statistics": {"confidence": CONFIDENCE, "resamples": RESAMPLES, "seed": 0},
        "definitions": SPEED_DEFINITIONS,
    }


def _pairs(contestants: Mapping[str, Contestant]) -> list[tuple[str, str]]:
    """What is held against what: RATIOS, and "auto" against every fixed tree budget."""
    fixed = [
        (f"{engine}-auto", name)
        for engine in ("dart", "eagle3")
        for name in contestants
        if name == engine or name.removeprefix(f"{engine}-").isdigit()
    ]
    return [pair for pair in (*RATIOS, *fixed) if contestants.keys() >= set(pair)]


def rate(result: Measured, name: str) -> float | None:
    """Tokens a second: the median of the repeats; None where no token came after a first step."""
    rates = [sample.rate for sample in result.samples.get(name, ()) if sample.rate]
    return median(rates) if rates else None


def _over(one: str, other: str, *, per_tau: bool = False) -> Callable[[Measured], float | None]:
    def value(result: Measured) -> float | None:
        own, against = rate(result, one), rate(result, other)
        if not own or not against:
            return None
        tokens, steps = _counts(result, one)
        return own / against / (tokens / steps if per_tau else 1)

    return value


def _counts(result: Measured, name: str) -> tuple[int, int]:
    samples = result.samples.get(name, ())
    return sum(each.tokens for each in samples), sum(each.steps for each in samples)


class _Figures:
    """Means over prompts and sets, overall and of each set, with intervals."""

    def __init__(self, results: Sequence[Measured], sets: Sequence[str]) -> None:
        self.results, self.sets = results, sets

    def grouped(self, sets: Iterable[str], value: Callable) -> list[list]:
        return [[value(each) for each in self.results if each.set == name] for name in sets]

    def of(self, value: Callable, mean: Callable = geometric) -> dict[str, Any]:
        return {
            **_figure(mean(self.grouped(self.sets, value))),
            "sets": {name: _figure(mean(self.grouped([name], value))) for name in self.sets},
        }


def _figure(estimate: Estimate | None) -> dict[str, Any]:
    if estimate is None:
        return {"value": None, "interval": None}
    return {"value": estimate.value, "interval": estimate.interval}


def _contestant_record(
    contestant: Contestant, figures: _Figures, base: str, log: StepLog | None
) -> dict[str, Any]:
    name, results = contestant.name, figures.results
    plain = "generate" if contestant.engine is None else "ar"
    texts: Counter[str] = Counter()
    for result in results:
        texts.update(result.texts.get(name, {}))
    tau = per_tau = None
    if contestant.drafts:
        tau = figures.of(lambda result: _counts(result, name), ratio)
        per_tau = figures.of(_over(name, plain, per_tau=True))
    firsts = [
        seconds
        for result in results
        for sample in result.samples.get(name, ())
        for seconds in sample.first_seconds
    ]
    return {
        "what": contestant.what,
        "engine": contestant.engine,
        "tokens_per_second": figures.of(lambda result: rate(result, name)),
        "times_base": figures.of(_over(name, base)),
        "repeat_spread": _repeat_spread(results, name),
        "tau": tau,
        "speedup_per_tau": per_tau,
        "median_first_seconds": median(firsts) if firsts else None,
        "texts": dict(texts),
        "first_differences": [
            place for result in results for place in result.differences.get(name, ())
        ],
        "runs": log.tally.summary() if log else None,
        "median_step_seconds": _step_seconds(log.steps) if log else None,
        "chosen_sizes": chosen_sizes(log.steps) if log else None,
    }


def _step_seconds(steps: Sequence[Step]) -> dict[str, float] | None:
    """Medians over verify steps, stage by stage and of the whole step."""
    verify = [step.seconds for step in steps if step.kind == "verify"]
    if not verify:
        return None
    return {
        stage: median(getattr(seconds, stage) for seconds in verify) for stage in (*STAGES, "total")
    }


def _repeat_spread(results: Sequence[Measured], name: str) -> float | None:
    found = []
    for result in results:
        rates = [sample.rate for sample in result.samples.get(name, ()) if sample.rate]
        if len(rates) > 1:
            found.append((max(rates) - min(rates)) / median(rates))
    return median(found) if found else None


def _prompt_record(result: Measured) -> dict[str, Any]:
    return {
        "set": result.set,
        "id": result.name,
        "prompt_tokens": [len(turn) for turn in result.turns],
        "samples": {
            name: [
                {
                    "tokens": sample.tokens,
                    "steps": sample.steps,
                    "seconds": sample.seconds,
                    "first_seconds": sample.first_seconds,
                }
                for sample in samples
            ]
            for name, samples in result.samples.items()
        },
        "texts": {name: dict(counts) for name, counts in result.texts.items()},
        "first_differences": {
            n: list(places) for n, places in result.differences.items() if places
        },
    }
