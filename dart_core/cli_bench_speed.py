"""``bench --suite speed``: flags to a plan, the parts one after the other, what is done is kept."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from dart_core.bench_contexts import measure_contexts
from dart_core.bench_floors import measure_floors
from dart_core.bench_layers import measure_layers
from dart_core.bench_micro import measure_pruner, measure_startup
from dart_core.bench_provenance import bench_provenance
from dart_core.bench_speed import Contestant, SpeedBench, choose, contestants
from dart_core.bench_speed_figure import speed_figure
from dart_core.bench_speed_report import speed_record
from dart_core.bench_speed_tables import speed_tables
from dart_core.bench_stock import StockTarget
from dart_core.cli import at_least, within_cores
from dart_core.cli_bench import PARTS, SPEED_TREE_BUDGET, first_turns, prompt_files
from dart_core.cli_checks import check_models, note
from dart_core.cli_run import check_tree_budgets, load, prepare, run_settings
from dart_core.engine import GenerationSettings
from dart_core.errors import ArenaError
from dart_core.prompts import Prompt
from dart_core.report import check_destination, write_json

FULL = {"max_new_tokens": 128, "repeats": 3, "max_context": 4096, "limit": None}
QUICK = {"max_new_tokens": 48, "repeats": 2, "max_context": 1024, "limit": 2}
WORDS = {
    "max_new_tokens": "{} instead of {} new tokens",
    "repeats": "{} instead of {} repeats",
    "max_context": "contexts up to {} instead of {}",
    "limit": "all but {} prompts of each set",
}
LONGEST_CONTEXT = 1 << 17  # tokens
ROUNDS, QUICK_ROUNDS = 9, 5  # of floors, contexts and start-up
CALLS, QUICK_CALLS = 400, 100  # of the tree search


def run_speed_bench(args: Namespace) -> int:
    parts, left_out = _fill(args)
    settings, sets, files = _checked(args, parts)
    chosen = _chosen(args, args.engines or ("dart", "eagle3"))  # errors before anything is loaded
    engines = args.engines and ["ar", *(name for name in args.engines if name != "ar")]
    if args.contestants:
        engines = list(dict.fromkeys(["ar", *(each.engine for each in chosen if each.engine)]))
    with _threads(args.threads):
        started = perf_counter()
        engine = load(args, engines)
        load_seconds = perf_counter() - started
        chosen = _chosen(args, list(engine.drafters))
        stock = None
        if any(each.engine is None for each in chosen):
            stock = StockTarget.of(engine, note)
        bench = SpeedBench(engine, stock, chosen, settings, note)
        run = _Run(args, bench, files, left_out)
        return run.all(parts, sets, load_seconds)


def _fill(args: Namespace) -> tuple[list[str], list[str]]:
    """Sets what no flag says; the parts to run, in order, and what --quick leaves out."""
    left_out = []
    for name, usual in FULL.items():
        if getattr(args, name) is None:
            value = QUICK[name] if args.quick else usual
            setattr(args, name, value)
            if value != usual:
                left_out.append(WORDS[name].format(value, usual))
    if args.quick:
        left_out.append(f"{QUICK_ROUNDS} instead of {ROUNDS} rounds of floors, contexts, start-up")
    args.tree_budget = SPEED_TREE_BUDGET if args.tree_budget is None else args.tree_budget
    unknown = [name for name in args.parts or () if name not in PARTS]
    if unknown:
        raise ArenaError(f"--parts {unknown[0]}: expected some of {','.join(PARTS)}")
    return [name for name in PARTS if not args.parts or name in args.parts], left_out


def _checked(
    args: Namespace, parts: list[str]
) -> tuple[GenerationSettings, dict[str, list[Prompt]], dict[str, Path]]:
    """Everything that can be wrong in the flags, found before the models are loaded."""
    at_least(args, {"max_new_tokens": 2, "max_length": 2, "limit": 1, "turns": 1})
    at_least(args, {"repeats": 1, "max_context": 16})
    within_cores(args, "threads")
    if args.max_context > LONGEST_CONTEXT:
        raise ArenaError(
            f"--max-context {args.max_context}: expected {LONGEST_CONTEXT} or less, for "
            "all contexts are held in memory at once"
        )
    if args.temperature:
        raise ArenaError(
            f"--temperature {args.temperature}: the speed suite is greedy, for transformers draws "
            "with other noise than we do: leave it out"
        )
    if args.stop:
        raise ArenaError(
            f"--stop {args.stop[0]}: the speed suite ends texts by tokens alone, for all alike; "
            "give --eos-token-id"
        )
    read = {"the file of --prompt-file": args.prompt_file}
    figure = {"the file of --figure": [args.figure] if args.figure else None}
    check_destination(args.json, apart_from=read | figure)
    check_destination(args.figure, "--figure", read)
    if args.figure == "-":
        raise ArenaError("--figure -: a picture goes to a file; name one, speed.svg say")
    if args.figure and "prompts" not in parts:
        raise ArenaError(f"--figure {args.figure}: it shows the part prompts; add it to --parts")
    check_models(args)
    settings = prepare(args)
    check_tree_budgets("--tree-budgets", args.tree_budgets or ())
    files = prompt_files(args.prompt_file) if "prompts" in parts else {}
    return settings, {name: first_turns(path, args) for name, path in files.items()}, files


def _chosen(args: Namespace, engines: Sequence[str]) -> list[Contestant]:
    draft = run_settings(args).draft
    return choose(contestants(engines, draft, args.tree_budgets or ()), args.contestants)


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    try:
        if count is not None:
            torch.set_num_threads(count)
        yield
    finally:
        torch.set_num_threads(before)


class _Run:
    """One run of the suite, and the record that it leaves."""

    def __init__(
        self, args: Namespace, bench: SpeedBench, files: Mapping[str, Path], left_out: list[str]
    ) -> None:
        self.args, self.bench, self.started = args, bench, perf_counter()
        self.provenance = bench_provenance(bench, sys.argv[1:], files)
        self.record: dict[str, Any] = {"left_out": left_out}
        self.load = _load_average()

    def all(self, parts: list[str], sets: Mapping[str, list[Prompt]], load_seconds: float) -> int:
        try:
            for name in parts:
                self._part(name, sets, load_seconds)
                if name != parts[-1]:
                    self.save()
        except KeyboardInterrupt:
            self.finish({"interrupted": True})
            raise
        except Exception as error:  # what is done by then is kept
            self.finish({"error": str(error) or type(error).__name__})
            raise
        return self.finish({})

    def _part(self, name: str, sets: Mapping[str, list[Prompt]], load_seconds: float) -> None:
        args, bench = self.args, self.bench
        engine, stock, draft = bench.engine, bench.stock, bench.settings.draft
        rounds = QUICK_ROUNDS if args.quick else ROUNDS
        if name == "startup":
            self.record[name] = measure_startup(
                engine, stock, bench.settings, load_seconds=load_seconds, rounds=rounds, log=note
            )
        elif name == "floors":
            self.record[name] = measure_floors(engine, draft, rounds=rounds, log=note)
        elif name == "layers":
            self.record[name] = measure_layers(engine.target, rounds=rounds, log=note)
        elif name == "contexts":
            self.record[name] = measure_contexts(
                engine, stock, draft, longest=args.max_context, rounds=rounds, log=note
            )
        elif name == "pruner":
            calls = QUICK_CALLS if args.quick else CALLS
            self.record[name] = measure_pruner(engine, calls=calls, log=note)
        else:
            bench.run(
                sets,
                args.repeats,
                raw=args.raw,
                system_prompt=args.system_prompt,
                enable_thinking=args.enable_thinking,
                done=self.save,
            )

    def save(self) -> None:
        """Write what there is by now: a process may end without a word."""
        if self.args.json and self.args.json != "-":
            write_json(self.all_figures({"interrupted": True}), self.args.json)

    def all_figures(self, failure: Mapping[str, Any]) -> dict[str, Any]:
        """The record. seconds: of the whole run, loading left out."""
        bench, args = self.bench, self.args
        record = {
            "suite": "speed",
            "interrupted": False,
            **failure,
            **self.provenance,
            "seconds": perf_counter() - self.started,
            "load_average": [*self.load, *_load_average()],
            "repeats": args.repeats,
            **self.record,
        }
        if bench.results:
            record |= speed_record(bench.contestants, bench.results, bench.logs)
        return record

    def finish(self, failure: Mapping[str, Any]) -> int:
        """Write and show what there is; 1 where a text or a tree was not as it must be."""
        bench, args = self.bench, self.args
        if not bench.results and len(self.record) == 1:  # nothing was finished
            return 0
        record = self.all_figures(failure)
        if args.json:
            write_json(record, args.json)
        if args.figure and bench.results:
            Path(args.figure).write_text(speed_figure(record), encoding="utf-8")
        print(speed_tables(record), file=sys.stderr if args.json == "-" else sys.stdout)
        sys.stdout.flush()
        texts = any(each["texts"].get("DIFFERENT") for each in _ours(record))
        searches = record.get("pruner", {}).get("searches", ())
        return 1 if texts or not all(each["equal_trees"] for each in searches) else 0


def _ours(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [each for each in record.get("contestants", {}).values() if each["engine"]]


def _load_average() -> list[float]:
    """Of the last minute; empty where the system does not tell."""
    return [os.getloadavg()[0]] if hasattr(os, "getloadavg") else []
