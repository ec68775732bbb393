"""The command bench: prompt sets × engines × settings, as tables and as JSON. The suites run in
cli_bench_acceptance.py and cli_bench_speed.py.
"""

from __future__ import annotations

import argparse
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

from dart_core.cli import AUTO, add_model_arguments, add_run_arguments, engine_list
from dart_core.errors import ArenaError
from dart_core.prompts import Prompt, read_prompt_file

DEFAULT_SETS = ("chat", "code", "maths", "translation", "extraction")
PROMPTS = Path(__file__).resolve().parent.parent / "assets" / "prompts"
BUDGETS = (8, 16, 32, 60)
SPEED_TREE_BUDGET = 16
# Of the suite speed, as they run:
PARTS = ("startup", "floors", "layers", "contexts", "pruner", "prompts")
ACCEPTANCE_ONLY = ("speed_prompts", "profile", "ablate", "other_dart_head", "cache")
SPEED_ONLY = ("contestants", "parts", "repeats", "threads", "max_context", "figure", "quick")


def add_bench_parser(commands: Any) -> None:
    """Add ``bench`` to the command line's sub-parsers."""
    parser = commands.add_parser(
        "bench",
        help="acceptance and speed of engines and settings over prompt sets",
        conflict_handler="resolve",  # two flags have other defaults here than elsewhere
    )
    parser.set_defaults(run=_run)
    parser.add_argument(
        "--suite",
        choices=("acceptance", "speed"),
        default="acceptance",
        help="acceptance: τ by replay, and the engines' speed; speed: the engines, their settings "
        "and transformers' own decoding in one run, with floors, contexts, start-up and search "
        "(default: acceptance)",
    )
    parser.add_argument(
        "--engines",
        type=engine_list,
        metavar="LIST",
        help="engines with commas, plain decoding always included (default: all with a head)",
    )
    group = parser.add_argument_group("prompts")
    group.add_argument(
        "--prompt-file",
        action="append",
        metavar="FILE",
        help="a prompt set: JSONL, one object a line with turns, prompt or messages; may be given "
        f"several times (default: the project's own, {', '.join(DEFAULT_SETS)})",
    )
    group.add_argument("--limit", type=int, metavar="N", help="the first N prompts of each file")
    group.add_argument(
        "--turns", type=int, metavar="N", help="the first N turns of each prompt (default: all)"
    )
    group.add_argument("--raw", action="store_true", help="no chat template: the text as it stands")
    group.add_argument(
        "--system-prompt", metavar="TEXT", help="unless the prompt brings its own system message"
    )
    group.add_argument(
        "--enable-thinking", action="store_true", help="let the model think first (default: off)"
    )
    add_model_arguments(parser)
    add_run_arguments(parser)
    group = parser.add_argument_group("measuring")
    group.add_argument("--max-new-tokens", type=int, metavar="N", help="default: 128")
    group.add_argument(
        "--tree-budgets",
        type=_budgets,
        metavar="LIST",
        help=f"acceptance: τ is measured at each (default: {','.join(map(str, BUDGETS))}); speed: "
        "the engines also run with each (default: none)",
    )
    group.add_argument(
        "--tree-budget",
        type=_budget,
        metavar="N",
        help="of the timed runs and of the engines' τ (default: the largest of --tree-budgets; "
        f"speed: {SPEED_TREE_BUDGET})",
    )
    parser.add_argument(
        "--json", metavar="PATH|-", help='write everything as JSON; "-": to stdout, nothing else'
    )
    group = parser.add_argument_group("measuring, suite acceptance")
    group.add_argument(
        "--speed-prompts",
        type=int,
        metavar="N",
        help="prompts of each set to time (default: all); 0: τ only",
    )
    group.add_argument(
        "--profile",
        action="store_true",
        help="tell where the time of every timed engine's steps goes, and the share of the ideal "
        "speedup",
    )
    group.add_argument(
        "--ablate",
        action="store_true",
        help="also without parts: n-gram weights, plain scores, fewer mask slots; EAGLE3's depth "
        "and top-k",
    )
    group.add_argument(
        "--other-dart-head",
        action="append",
        default=[],
        metavar="REF",
        help="τ of another DART head on the same texts; may be given several times",
    )
    group.add_argument(
        "--cache",
        metavar="FOLDER",
        help="keep the target's answers and states there, for another bench of the same target "
        "and prompts",
    )
    group.add_argument(
        "--cache-gib", type=float, default=4.0, metavar="N", help="size of --cache (default: 4)"
    )
    _add_speed_arguments(parser)


def _add_speed_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "measuring, suite speed", "All contestants run with the same threads, greedily."
    )
    group.add_argument(
        "--contestants",
        type=_names,
        metavar="LIST",
        help="with commas, ar always included: generate, generate-lookup, ar, dart, eagle3, "
        "dart-auto, eagle3-auto, dart-no-ngram, dart-lookup, and dart-N, eagle3-N for each N of "
        "--tree-budgets (default: all of these that the loaded heads allow); also eagle3-lookup, "
        "dart-auto-lookup, eagle3-auto-lookup",
    )
    group.add_argument(
        "--parts",
        type=_names,
        metavar="LIST",
        help=f"of the suite, with commas: {', '.join(PARTS)} (default: all)",
    )
    group.add_argument(
        "--repeats", type=int, metavar="N", help="runs of each prompt and contestant (default: 3)"
    )
    group.add_argument("--threads", type=int, metavar="N", help="default: as torch chooses")
    group.add_argument(
        "--max-context",
        type=int,
        metavar="N",
        help="the longest context that steps are timed behind (default: 4096)",
    )
    group.add_argument(
        "--figure", metavar="PATH", help="write the speeds as a picture there, an SVG file"
    )
    group.add_argument(
        "--quick",
        action="store_true",
        default=None,
        help="under 15 minutes on two cores: few prompts, tokens, repeats, short contexts; flags "
        "win over it",
    )


def _names(text: str) -> list[str]:
    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names:
        raise argparse.ArgumentTypeError(f"{text!r}: expected names with commas between them")
    return list(dict.fromkeys(names))


def _budget(text: str) -> int:
    if text.strip() == AUTO:
        raise argparse.ArgumentTypeError(
            "auto: a budget that is chosen is a contestant of its own: --suite speed --contestants "
            "dart-auto,eagle3-auto"
        )
    return int(text)


def _budgets(text: str) -> tuple[int, ...]:
    try:
        return tuple(sorted({_budget(part) for part in text.split(",")}))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected numbers like 16,60") from None


def _run(args: Namespace) -> int:
    others = {"speed": ACCEPTANCE_ONLY, "acceptance": SPEED_ONLY}[args.suite]
    for name in others:
        value = getattr(args, name)
        if value not in (None, []) and value is not False:  # 0 was given
            suite = "acceptance" if args.suite == "speed" else "speed"
            raise ArenaError(
                f"--{name.replace('_', '-')} is of --suite {suite}: leave it out, or ask for that "
                "suite"
            )
    if args.suite == "speed":
        from dart_core.cli_bench_speed import run_speed_bench

        return run_speed_bench(args)
    from dart_core.cli_bench_acceptance import run_bench

    return run_bench(args)


def prompt_files(given: list[str] | None) -> dict[str, Path]:
    """The prompt files by the name of their set. Raises ArenaError where the project's own are
    wanted and not there.
    """
    paths = [Path(path) for path in given or []]
    if not paths:
        paths = [PROMPTS / f"{name}.jsonl" for name in DEFAULT_SETS]
        if not all(path.is_file() for path in paths):
            raise ArenaError(
                "the project's own prompts lie in the repository, not in the package: give "
                "--prompt-file, or install a clone with pip install -e ."
            )
    files: dict[str, Path] = {}
    for path in paths:
        name, number = path.stem, 2
        while name in files:
            name, number = f"{path.stem}-{number}", number + 1
        files[name] = path
    return files


def first_turns(path: Path, args: Namespace) -> list[Prompt]:
    prompts = read_prompt_file(path, args.limit)
    return [replace(prompt, turns=prompt.turns[: args.turns]) for prompt in prompts]
