"""The commands that hold engines against each other: compare (how fast) and check (how equal)."""

from __future__ import annotations

import math
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from dart_core.advice import short_answers
from dart_core.check import OWN_ROWS, Verdict, Verdicts, own_flip
from dart_core.cli_checks import note
from dart_core.cli_run import load, prepare, run_one, run_prompts
from dart_core.engine import Engine, GenerationSettings
from dart_core.metrics import Tally, chosen_sizes, sizes_in_words, speedup
from dart_core.names import model_name
from dart_core.prompts import Prompt
from dart_core.report import STAGES, number, provenance, run_record, table, write_json
from dart_core.step import Step

WARM_UP_TOKENS = 8
BASELINE = "ar of this run"


def run_compare(args: Namespace, prompts: list[Prompt]) -> int:
    settings = prepare(args)
    engine, names = _load_several(args)
    say = note if args.json == "-" else print
    tallies = {name: Tally() for name in names}
    verdicts: dict[str, Counter[str]] = {name: Counter() for name in names}
    chosen: dict[str, list[Step]] = {name: [] for name in names}
    sizes: Counter[str] = Counter()
    results: list[dict[str, Any]] = []

    def answer(label: str, prompt_ids: list[int]) -> str:
        if not results:
            _warm_up(engine, names, prompt_ids, settings)
        runs = {name: run_one(engine, name, prompt_ids, settings) for name in names}
        plain = runs["ar"]
        sizes.update(prompts=1, prompt_tokens=len(prompt_ids), new_tokens=len(plain.output_ids))
        record: dict[str, Any] = {"id": label, "engines": {}}
        for name, run in runs.items():
            verdict = engine.judge(prompt_ids, plain.steps, run.steps, settings.sampling)
            verdicts[name][verdict.status] += 1
            for step in run.steps:
                tallies[name].add(step)
                if step.choice is not None:
                    chosen[name].append(replace(step, tree=None, candidates=None))
            record["engines"][name] = {
                **run_record(run),
                "equality": _verdict_record(verdict),
                "speedup": speedup(run.metrics, plain.metrics, BASELINE),
            }
            if verdict.status != "equal":
                note(f"{label}: {name} {verdict.describe(engine.tokenizer)}")
        note(f"{label}: " + "; ".join(_short(name, run.metrics) for name, run in runs.items()))
        results.append(record)
        return plain.text

    def finish(failure: dict[str, str]) -> None:
        if not results:
            return
        summary = {name: tally.summary() for name, tally in tallies.items()}
        choices = {name: chosen_sizes(steps) for name, steps in chosen.items()}
        if args.json:
            summary_record = {
                name: {
                    **metrics,
                    "speedup": speedup(metrics, summary["ar"], BASELINE),
                    "equality": dict(verdicts[name]),
                    "chosen_sizes": choices[name],
                }
                for name, metrics in summary.items()
            }
            facts = {**failure, **provenance(engine, settings)}
            write_json({"results": results, "summary": summary_record, **facts}, args.json)
        say(_conditions(engine, settings, sizes))
        say(_comparison_table(summary, verdicts, settings))
        for name, choice in choices.items():
            if choice:
                say(f"{name}, tree budget {sizes_in_words(choice)}")

    run_prompts(args, engine, prompts, answer, finish)
    plain_figures = [record["engines"]["ar"]["metrics"] for record in results]
    if notice := short_answers(plain_figures):
        note(notice)
    return 1 if any(counts["DIFFERENT"] for counts in verdicts.values()) else 0


def run_check(args: Namespace, prompts: list[Prompt]) -> int:
    settings = prepare(args)
    engine, names = _load_several(args)
    say = note if args.json == "-" else print
    judged = {name: Verdicts() for name in names[1:]}
    results: list[dict[str, Any]] = []

    def answer(label: str, prompt_ids: list[int]) -> str:
        plain = run_one(engine, "ar", prompt_ids, settings)
        described, records = [], {}
        for name, verdicts in judged.items():
            run = run_one(engine, name, prompt_ids, settings)
            verdict = engine.judge(prompt_ids, plain.steps, run.steps, settings.sampling)
            verdicts.add(verdict)
            described.append(f"{name} {verdict.describe(engine.tokenizer)}")
            records[name] = _verdict_record(verdict)
        say(f"{label}: {', '.join(described)} ({len(plain.output_ids)} tokens)")
        sys.stdout.flush()
        flip = own_flip(engine.target, prompt_ids, plain.steps, settings.sampling)
        results.append(
            {
                "id": label,
                "new_tokens": len(plain.output_ids),
                "own_flip": flip,
                "engines": records,
            }
        )
        return plain.text

    def finish(failure: dict[str, str]) -> None:
        if not results:
            return
        flipped = sum(result["own_flip"] is not None for result in results)
        if args.json:
            summary: dict[str, Any] = {name: each.summary() for name, each in judged.items()}
            summary["ar"] = {"rows": OWN_ROWS, "flipped": flipped, "rate": flipped / len(results)}
            facts = {**failure, **provenance(engine, settings)}
            write_json({"results": results, "summary": summary, **facts}, args.json)
        totals = "; ".join(f"{name} {each.describe()}" for name, each in judged.items())
        say(f"{len(results)} prompts, {engine.facts['dtype']}, {_sampling(settings)}: {totals}")
        say(
            f"plain decoding against itself, {OWN_ROWS} tokens a pass instead of one: "
            f"another token in {flipped} of {len(results)}"
        )

    run_prompts(args, engine, prompts, answer, finish)
    return 1 if any(each.counts["DIFFERENT"] for each in judged.values()) else 0


def _load_several(args: Namespace) -> tuple[Engine, list[str]]:
    """The engine and the names to run, plain decoding first."""
    names = args.engines and ["ar", *(name for name in args.engines if name != "ar")]
    engine = load(args, names)
    return engine, names or list(engine.drafters)


def _warm_up(
    engine: Engine, names: list[str], prompt_ids: list[int], settings: GenerationSettings
) -> None:
    """First forwards allocate and tune; no figure is to hold them."""
    short = replace(settings, max_new_tokens=WARM_UP_TOKENS, stop=())
    for name in names:
        run_one(engine, name, prompt_ids, short)


def _sampling(settings: GenerationSettings) -> str:
    sampling = settings.sampling
    if sampling.greedy:
        return "greedy"
    return (
        f"temperature {sampling.temperature}, top-k {sampling.top_k}, top-p {sampling.top_p}, "
        f"seed {sampling.seed}"
    )


def _conditions(engine: Engine, settings: GenerationSettings, sizes: Counter[str]) -> str:
    facts, draft = engine.facts, settings.draft
    ngram = engine.ngrams[0] if engine.ngrams else "off"
    return (
        f"{model_name(facts['target'])} on {facts['device_name']} ({facts['device']}, "
        f"{facts['threads']} threads), {facts['dtype']}, {_sampling(settings)}; "
        f"tree budget {draft.budget_name}, n-gram {ngram}, EAGLE3 depth {draft.eagle3_depth}; "
        f"{sizes['prompts']} prompts of {sizes['prompt_tokens']} tokens, "
        f"{sizes['new_tokens']} new; warm-up excluded"
    )


def _short(name: str, metrics: dict[str, Any]) -> str:
    speed, tau = number(metrics["tokens_per_second"], 1), number(metrics["tau"])
    return f"{name} {speed} tok/s, τ {tau}"


def _comparison_table(
    summary: Mapping[str, dict[str, Any]],
    verdicts: Mapping[str, Counter[str]],
    settings: GenerationSettings,
) -> str:
    """Pooled over all prompts. Milliseconds by stage are per verify step."""
    header = ["engine", "tok/s", "τ", "speedup", "tokens", "first s", "decode s"]
    header += [f"{stage} ms" for stage in STAGES] + ["text"]
    rows = []
    for name, metrics in summary.items():
        faster = speedup(metrics, summary["ar"], BASELINE)
        steps = metrics["verify_steps"]
        stages = [
            number(1000 * metrics["stage_seconds"][stage] / steps if steps else None, 1)
            for stage in STAGES
        ]
        counts = verdicts[name]
        rows.append(
            [
                name,
                number(metrics["tokens_per_second"], 1),
                number(metrics["tau"]),
                f"{faster['value']:.2f} ×" if faster else "-",
                str(metrics["new_tokens"]),
                number(metrics["time_to_first_token"]),
                number(metrics["decode_seconds"]),
                *stages,
                ", ".join(f"{count} {status}" for status, count in counts.items()),
            ]
        )
    return table(header, rows) + f"\nspeedup: decoding speed ÷ that of {BASELINE}"


def _verdict_record(verdict: Verdict) -> dict[str, Any]:
    record = asdict(verdict)
    for name in ("gap", "difference", "bound"):
        if record[name] is not None and not math.isfinite(record[name]):
            record[name] = None  # JSON knows no NaN
    return record
