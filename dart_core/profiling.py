"""Where a run's time goes: its stages step by step, and how near it comes to the ideal.

The ideal is τ: as many times as fast as plain decoding, if drafting cost nothing and a verify pass
no more than a plain one. Plain decoding is measured on the same prompt in the same call. Each stage
ends with its result on the CPU, so the seconds of a GPU's stages are its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dart_core.engine import Engine, Generation
from dart_core.metrics import chosen_sizes, sizes_in_words, speedup
from dart_core.report import STAGES, number, table

BASELINE = "ar of this call"
FEW_TOKENS = 20  # a shorter answer says nothing about speed


def profile_record(run: Mapping, plain: Mapping) -> dict[str, Any]:
    """The sums as JSON data, of metrics of one or several runs and of plain decoding's on the same
    prompts. Fields are None where there is no verify step.

    share_of_ideal: speedup ÷ τ. share_of_step: what an average verify step's time is made of: a
    plain step, what the verify pass takes beyond it (below 0 where it takes less), and the rest.
    """
    faster = speedup(run, plain, BASELINE)
    own, other = _step_seconds(run), _step_seconds(plain)
    stages = share = None
    if own:
        stages = {stage: run["stage_seconds"][stage] / run["verify_steps"] for stage in STAGES}
        if other:
            share = {
                "plain_step": other / own,
                "wider_verify": (stages["verify"] - other) / own,
                **{stage: stages[stage] / own for stage in STAGES if stage != "verify"},
            }
    return {
        "step_seconds": own,
        "stage_seconds_per_step": stages,
        "plain": {
            "step_seconds": other,
            "tokens_per_second": plain["tokens_per_second"],
            "new_tokens": plain["new_tokens"],
        },
        "speedup": faster,
        "ideal_speedup": run["tau"],
        "share_of_ideal": faster and faster["value"] / run["tau"],
        "share_of_step": share,
    }


def profile_text(engine: Engine, run: Generation, plain: Generation) -> str:
    """The same for people, a row per step first."""
    lines = [_table(run)]
    record = profile_record(run.metrics, plain.metrics)
    if record["share_of_ideal"] is not None and run.engine != "ar":
        share = record["share_of_step"]
        parts = {
            "a plain step": share["plain_step"],
            "verifying more than one token": share["wider_verify"],
            **{stage: share[stage] for stage in STAGES if stage in share},
        }
        lines += [
            f"plain decoding of this prompt, in this call: "
            f"{number(plain.metrics['tokens_per_second'])} tok/s, "
            f"{number(1000 * record['plain']['step_seconds'])} ms a step",
            f"speedup {record['speedup']['value']:.2f} × of an ideal "
            f"{record['ideal_speedup']:.2f} × (τ: drafting free, a verify pass as quick as a plain "
            f"step): {_percent(record['share_of_ideal'])} of the ideal",
            "a step's time: "
            + ", ".join(f"{name} {_percent(value)}" for name, value in parts.items()),
        ]
        if record["share_of_ideal"] > 1:
            lines.append(
                "more than the ideal cannot be: the machine was busier while plain decoding ran; "
                "measure once more with nothing beside it"
            )
    if sizes := chosen_sizes(run.steps):
        lines.append(f"tree budget {sizes_in_words(sizes)}")
    return "\n".join([*lines, *hints(engine, run)])


def hints(engine: Engine, run: Generation) -> list[str]:
    """Known reasons for a low τ or speedup that apply to this run, each with its remedy."""
    found = []
    if run.metrics["new_tokens"] < FEW_TOKENS:
        found.append(
            f"{run.metrics['new_tokens']} new tokens say little about speed: try 128 or more"
        )
    if run.engine == "dart" and not engine.ngrams:
        found.append("no n-gram was searched: τ is lower; give --ngram-model-name-or-path")
    elif run.engine == "dart" and engine.ngrams[0] == "small":
        found.append("the small n-gram was searched: τ is lower; use --ngram full for real work")
    if any(step.backend == "twin" for step in run.steps):
        found.append(
            "the tree was searched by the slow Python twin: the C++ extension is not built; is "
            "there a C++20 compiler? pip install -e . builds it"
        )
    return found


def _table(run: Generation) -> str:
    header = ["step", "tokens", "accepted", "drafted", *(f"{stage} ms" for stage in STAGES)]
    header += ["all ms", ""]
    rows = [
        [
            "prefill" if step.kind == "prefill" else str(step.index),
            str(len(step.tokens)),
            str(step.accepted),
            str(step.drafted),
            *(_ms(getattr(step.seconds, stage)) for stage in STAGES),
            _ms(step.seconds.total),
            "",
        ]
        for step in run.steps
    ]
    verify = [step for step in run.steps if step.kind == "verify"]
    if verify:
        counts = [
            sum(len(step.tokens) for step in verify),
            sum(step.accepted for step in verify),
            sum(step.drafted for step in verify),
        ]
        seconds = [run.metrics["stage_seconds"][stage] for stage in STAGES]
        seconds.append(sum(seconds))
        steps = len(verify)
        rows += [
            ["sum", *map(str, counts), *map(_ms, seconds), "without the prefill"],
            [
                "a step",
                *(number(count / steps) for count in counts),
                *(_ms(value / steps) for value in seconds),
                "",
            ],
            ["share", "", "", "", *(_percent(value / seconds[-1]) for value in seconds), ""],
        ]
    return table(header, rows)


def profile_table(record: Mapping[str, Any]) -> str:
    """A bench's record: the average step of every timed engine, and its share of the ideal."""
    engines = {name: each["runs"] for name, each in record["engines"].items() if each["runs"]}
    if not engines:
        return "No profile: no engine was timed."
    rows = []
    for name, run in engines.items():
        found = profile_record(run, engines["ar"])
        stages = found["stage_seconds_per_step"] or dict.fromkeys(STAGES)
        ideal = name != "ar" and found["share_of_ideal"] is not None
        rows.append(
            [
                name,
                *(_ms(stages[stage]) for stage in STAGES),
                _ms(found["step_seconds"]),
                number(found["speedup"]["value"]) if ideal else "–",
                number(found["ideal_speedup"]) if ideal else "–",
                _percent(found["share_of_ideal"]) if ideal else "–",
            ]
        )
    stages = [f"{stage} ms" for stage in STAGES]
    return table(["a step", *stages, "all ms", "speedup", "ideal (τ)", "reached"], rows)


def _step_seconds(run: Mapping) -> float | None:
    return run["decode_seconds"] / run["verify_steps"] if run["verify_steps"] else None


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{1000 * seconds:.2f}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
