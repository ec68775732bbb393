"""A bench's record as Markdown tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from dart_core.names import model_name
from dart_core.report import STAGES, number


def tables(record: Mapping[str, Any], headline: int) -> str:
    """The figures as Markdown."""
    if not record["prompts"]:
        return "Nothing was measured."
    parts = [_conditions(record)]
    main = [variant for variant in record["variants"] if not variant["ablation"]]
    if main:
        sets = len(record["sets"])
        parts.append(f"τ by tree budget, {f'mean of {sets} sets' if sets > 1 else 'one set'}:")
        parts.append(_budget_table(main))
        parts.append(f"Tree budget {headline}, by set:")
    parts.append(_set_table(record))
    if main:
        parts.append(f"Share of steps that accept the n-th draft token, tree budget {headline}:")
        parts.append(_position_table(main, str(headline)))
    ablations = [variant for variant in record["variants"] if variant["ablation"]]
    if ablations:
        parts.append("Ablations, τ and its difference to the engine's first row above:")
        parts.append(_budget_table(ablations, differences=True))
    return "\n\n".join(parts)


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
    )


def _conditions(record: Mapping[str, Any]) -> str:
    sampling = record["settings"]["sampling"]
    drawn = "greedy"
    if sampling["temperature"]:
        drawn = f"temperature {sampling['temperature']}, seed {sampling['seed']}"
    prompts = len(record["prompts"])
    tokens = sum(each["new_tokens"] for each in record["sets"].values())
    text = (
        f"{model_name(record['target'])}, {record['dtype']}, on {record['device_name']} "
        f"({record['threads']} thread{'s' if record['threads'] > 1 else ''}); {drawn}, at most "
        f"{record['settings']['max_new_tokens']} new tokens; {prompts} prompts, {tokens} tokens "
        f"written; intervals: {record['statistics']['confidence']:.0%}"
    )
    return f"INTERRUPTED, not all was measured. {text}" if record.get("interrupted") else text


def _budget_table(variants: Sequence[Mapping], *, differences: bool = False) -> str:
    budgets = list(variants[0]["budgets"])
    rows = []
    for variant in variants:
        cells = []
        for budget in budgets:
            at = variant["budgets"][budget]
            cell = number(at["tau"]) + (_span(at["interval"]) if not differences else "")
            if differences and at["difference"]:
                cell += f" ({at['difference']['value']:+.2f})"
            cells.append(cell)
        rows.append([variant["name"], *cells])
    return markdown(["", *budgets], rows)


def _span(interval: Sequence[float] | None) -> str:
    return f" ({interval[0]:.2f} to {interval[1]:.2f})" if interval else ""


def _set_table(record: Mapping[str, Any]) -> str:
    drafting = [name for name in record["engines"] if name != "ar"]
    timed = any(each["tokens_per_second"] for each in record["engines"].values())
    header = ["set", "prompts", *(f"{name} τ" for name in drafting)]
    ratios = [name for name, value in record["ratios"].items() if value is not None]
    if timed:
        header += [f"{name} tok/s" for name in record["engines"]]
        header += [name.replace("_vs_", " ÷ ") for name in ratios]

    def row(name: str, prompts: int, engines: Mapping, speeds: Callable) -> list[str]:
        cells = [name, str(prompts), *(number(engines[name]["tau"]) for name in drafting)]
        if timed:
            cells += [number(each["tokens_per_second"], 1) for each in engines.values()]
            cells += [
                number(speeds(name)["value"]) + _span(speeds(name)["interval"]) for name in ratios
            ]
        return cells

    details = record["ratio_details"]
    rows = [
        row(
            name,
            each["prompts"],
            {engine: found["sets"][name] for engine, found in record["engines"].items()},
            lambda ratio, name=name: details[ratio]["sets"][name],
        )
        for name, each in record["sets"].items()
    ]
    if len(rows) > 1:
        rows.append(row("mean", len(record["prompts"]), record["engines"], details.__getitem__))
    text = markdown(header, rows)
    if timed:
        text += "\n\n" + "; ".join(_run_line(name, e) for name, e in record["engines"].items())
    return text


def _run_line(name: str, engine: Mapping) -> str:
    """Milliseconds a step by stage, and whether the texts were plain decoding's."""
    runs = engine["runs"]
    if not runs or not runs["verify_steps"]:
        return f"{name}: not timed"
    stages = ", ".join(
        f"{stage} {1000 * runs['stage_seconds'][stage] / runs['verify_steps']:.1f}"
        for stage in STAGES
    )
    texts = ", ".join(f"{count} {status}" for status, count in engine["equality"].items())
    return f"{name}: ms a step: {stages}; texts: {texts}"


def _position_table(variants: Sequence[Mapping], headline: str) -> str:
    shares = [variant["budgets"][headline]["acceptance_by_position"] for variant in variants]
    deepest = max(map(len, shares), default=0)
    return markdown(
        ["", *map(str, range(1, deepest + 1))],
        (
            [variant["name"], *(f"{s:.2f}" for s in row), *["0.00"] * (deepest - len(row))]
            for variant, row in zip(variants, shares, strict=True)
        ),
    )
