"""``bench --suite acceptance``: τ by replay, and the engines' speed, over prompt sets."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dart_core.bench import Bench
from dart_core.bench_provenance import bench_provenance
from dart_core.bench_report import bench_record
from dart_core.bench_tables import tables
from dart_core.bench_texts import TextCache
from dart_core.bench_variants import HeadDrafter, variants
from dart_core.cli import at_least
from dart_core.cli_bench import BUDGETS, first_turns, prompt_files
from dart_core.cli_checks import check_models, note
from dart_core.cli_run import check_tree_budgets, load, prepare
from dart_core.drafters.dart import DartDrafter
from dart_core.engine import Engine
from dart_core.errors import ArenaError
from dart_core.heads import load_dart_head
from dart_core.packing import pack_layers
from dart_core.profiling import profile_table
from dart_core.report import check_destination, write_json
from dart_core.weights import resolve


def run_bench(args: Namespace) -> int:
    files = prompt_files(args.prompt_file)
    args.tree_budgets = args.tree_budgets or BUDGETS
    check_tree_budgets("--tree-budgets", args.tree_budgets)
    args.max_new_tokens = 128 if args.max_new_tokens is None else args.max_new_tokens
    at_least(args, {"max_new_tokens": 1, "max_length": 2, "limit": 1, "turns": 1})
    at_least(args, {"speed_prompts": 0, "cache_gib": 0})
    check_destination(args.json, apart_from={"the file of --prompt-file": args.prompt_file})
    check_models(args)
    if args.tree_budget is None:
        args.tree_budget = max(args.tree_budgets)
    headline = args.tree_budget
    settings = prepare(args)
    budgets = sorted({*args.tree_budgets, headline})
    sets = {name: first_turns(path, args) for name, path in files.items()}

    names = args.engines and ["ar", *(name for name in args.engines if name != "ar")]
    engine = load(args, names)
    names = names or list(engine.drafters)
    own = {name: engine.drafters[name] for name in names}
    drafters = {name: each for name, each in own.items() if isinstance(each, HeadDrafter)}
    drafters |= _other_heads(args.other_dart_head, engine)
    chosen = variants(drafters, settings.draft, ablate=args.ablate)
    bench = Bench(engine, names, drafters, chosen, budgets, settings, note)
    if args.cache:
        limit = int(args.cache_gib * 2**30)
        bench.cache = TextCache(
            args.cache, engine, settings, bench.taps, limit_bytes=limit, log=note
        )

    def finish(failure: Mapping[str, Any]) -> None:
        if not bench.results:
            return
        record = {
            "interrupted": False,
            **failure,
            **bench_provenance(bench, sys.argv[1:], files),
            **bench_record(bench, headline),
        }
        if args.json:
            write_json(record, args.json)
        text = tables(record, headline)
        if args.profile:
            text += f"\n\n{profile_table(record)}"
        print(text, file=sys.stderr if args.json == "-" else sys.stdout)
        sys.stdout.flush()

    try:
        bench.replay(
            sets,
            raw=args.raw,
            system_prompt=args.system_prompt,
            enable_thinking=args.enable_thinking,
        )
        bench.time(args.speed_prompts)
    except KeyboardInterrupt:
        finish({"interrupted": True})
        raise
    except Exception as error:  # what is done by then is kept
        finish({"error": str(error) or type(error).__name__})
        raise
    finish({})
    return 1 if any(t.equality["DIFFERENT"] for r in bench.results for t in r.timed.values()) else 0


def _other_heads(references: list[str], engine: Engine) -> dict[str, HeadDrafter]:
    """More DART heads for the engine's target, with its n-grams, by "dart" and their folder."""
    target, own = engine.target, engine.drafters.get("dart")
    drafters: dict[str, HeadDrafter] = {}
    for reference in references:
        head = load_dart_head(
            resolve(reference, kind="head", progress=note),
            dtype=target.dtype,
            device=target.head_device,
            target_config=target.config,
        )
        pack_layers(head)
        name = f"dart {Path(reference).name}"
        if name in drafters:
            raise ArenaError(f"--other-dart-head {reference}: two of these are called {name!r}")
        drafters[name] = DartDrafter(
            head, own.ngrams if isinstance(own, DartDrafter) else {}, target.embed
        )
    return drafters
