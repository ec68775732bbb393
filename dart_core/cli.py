"""The command line: ``python -m dart_core generate | compare | check | batch | bench | api | …``.

Texts and tables go to stdout, progress and notes to stderr; ``EXIT_CODES`` says how a command ends.
torch is imported only once a command really runs.
"""

from __future__ import annotations

import argparse
import errno
import io
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NoReturn

from dart_core.errors import ArenaError, Terminated, in_words
from dart_core.presets import PRESETS
from dart_core.prompts import BATCH_REMEDY
from dart_core.references import HUB, SOURCES

ENGINES = ("ar", "dart", "eagle3")
DTYPES = {"auto": None, "float32": "float32", "bfloat16": "bfloat16", "float16": "float16"}
DTYPES |= {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
# Where each decoding command's ``run_<command>`` stands.
DECODING = {
    "generate": "dart_core.cli_run",
    "compare": "dart_core.cli_compare",
    "check": "dart_core.cli_compare",
}
# Commands with a module of their own: (module, function that adds the parser, one line of help).
OTHERS = {
    "api": ("dart_core.cli_api", "add_api_parser", "serve an OpenAI-compatible API"),
    "batch": ("dart_core.cli_batch", "add_batch_parser", "answer a JSONL file of prompts"),
    "bench": ("dart_core.cli_bench", "add_bench_parser", "acceptance and speed over prompt sets"),
    "ngram": ("dart_core.cli_ngram", "add_ngram_parser", "build, import and inspect n-gram files"),
    "train": ("dart_core.cli_train", "add_train_parser", "make training data, train draft heads"),
}
EXIT_CODES = (
    "Exit codes: 0 fine; 1 what you can mend (a value out of range, a missing file, no memory) or "
    "an output that is DIFFERENT; 2 a command line that cannot be read; 130 interrupted by Ctrl-C; "
    "143 ended by SIGTERM: what is done is kept."
)
AUTO, MOST_AUTO = "auto", 60  # of --tree-budget, and the largest size it may choose
INTERRUPTED, TERMINATED = 130, 143
# Threads or processes of each logical core that a flag may ask for. More than one is a waste, which
# may be worth measuring; thousands end the process inside the OpenMP runtime, without a word.
MOST_A_CORE = 4
BROKEN_PIPE = 141  # what a shell shows for a program that SIGPIPE ended


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without a page of usage around it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"epilog": EXIT_CODES, **options})

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message} (all flags: {self.prog} --help)\n")


class _Once(argparse.Action):
    """A flag that makes sense once: two prompts are a batch, not a correction."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        if getattr(namespace, self.dest) is not None:
            parser.error(f"{option_string} given twice: batch size is 1; {BATCH_REMEDY}")
        setattr(namespace, self.dest, values)


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Which target, heads and n-gram, where and in what precision. Names as published."""
    group = parser.add_argument_group(
        "models",
        "REF is a path or an id: owner/name, or owner/name@revision for a branch, tag or commit. A "
        "published id brings its partners along.",
    )
    group.add_argument(
        "--preset", help=f"target, heads and n-gram that belong together: {', '.join(PRESETS)}"
    )
    for name, what in (
        ("base", "target model"),
        ("dart", "DART head"),
        ("eagle3", "EAGLE3 head"),
        ("ngram", "n-gram file, or folder or repository of one"),
    ):
        group.add_argument(
            f"--{name}-model-name-or-path",
            metavar="REF",
            help=f"{what}; wins over the preset's",
        )
    group.add_argument(
        "--source",
        choices=SOURCES,
        default=HUB,
        help="where ids come from (default: hub); modelscope needs the package of that name",
    )
    group.add_argument(
        "--ngram",
        choices=("full", "small", "off"),
        help="DART searches with it: small is quick to load, but τ is lower (default: full)",
    )
    group.add_argument(
        "--use-small-ngram",
        dest="ngram",
        action="store_const",
        const="small",
        help="the same as --ngram small; of several the last wins",
    )
    group.add_argument(
        "--no-use-small-ngram",
        dest="ngram",
        action="store_const",
        const="full",
        help="the same as --ngram full",
    )
    group.add_argument(
        "--template-name",
        default="auto",
        metavar="NAME",
        help="accepted for compatibility; the model's own chat template is used (default: auto)",
    )
    group.add_argument(
        "--device",
        default="auto",
        help="auto, cpu, cuda, cuda:1 …; auto: the first GPU, all of them where the target needs "
        "several, or the CPU (default: auto)",
    )
    group.add_argument(
        "--device-map",
        choices=("auto",),
        help="auto: spread the target over all GPUs in any case",
    )
    group.add_argument(
        "--dtype",
        default="auto",
        choices=DTYPES,
        metavar="DTYPE",
        help="float32, bfloat16, float16; auto: bfloat16 where the hardware has it",
    )
    group.add_argument(
        "--cuda-graphs",
        action="store_true",
        help="capture verify and draft passes as CUDA graphs, on one GPU (default: off; not yet "
        "verified on a GPU)",
    )


def model_references(args: argparse.Namespace) -> dict[str, str]:
    """The references that the flags give, by the names that ``trio`` has for them."""
    given = {
        "target": args.base_model_name_or_path,
        "dart": args.dart_model_name_or_path,
        "eagle3": args.eagle3_model_name_or_path,
        "ngram": args.ngram_model_name_or_path,
    }
    return {role: reference for role, reference in given.items() if reference is not None}


def add_prompt_arguments(parser: argparse.ArgumentParser) -> None:
    """What to answer."""
    group = parser.add_argument_group("prompts")
    source = group.add_mutually_exclusive_group()
    source.add_argument(
        "--prompt", action=_Once, metavar="TEXT", help='a user message; "-" reads it from stdin'
    )
    source.add_argument(
        "--prompt-file",
        action="append",
        metavar="FILE",
        help="JSONL, one object a line with turns, prompt or messages; may be given several times",
    )
    source.add_argument(
        "--prompt-ids",
        action=_Once,
        type=_prompt_ids,
        metavar="IDS",
        help="token ids with commas, taken as they are",
    )
    group.add_argument("--limit", type=int, metavar="N", help="the first N prompts of each file")
    group.add_argument("--raw", action="store_true", help="no chat template: the text as it stands")
    group.add_argument(
        "--system-prompt", metavar="TEXT", help="unless the prompt brings its own system message"
    )
    group.add_argument(
        "--enable-thinking", action="store_true", help="let the model think first (default: off)"
    )


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """How to generate and to draft."""
    group = parser.add_argument_group("generation")
    group.add_argument("--max-new-tokens", type=int, default=512, metavar="N", help="default: 512")
    group.add_argument(
        "--max-length", type=int, default=2048, metavar="N", help="prompt included; default: 2048"
    )
    group.add_argument(
        "--temperature", type=float, default=0.0, metavar="T", help="0 is greedy (default)"
    )
    group.add_argument(
        "--top-p", type=float, default=0.0, metavar="P", help="0 or 1 is off (default)"
    )
    group.add_argument("--top-k", type=int, default=0, metavar="K", help="0 is off (default)")
    group.add_argument(
        "--seed", type=int, metavar="N", help="of sampling; unset: one is drawn and reported"
    )
    group.add_argument(
        "--stop",
        action="append",
        default=[],
        metavar="TEXT",
        help="end before this text; may be given several times",
    )
    group.add_argument(
        "--eos-token-id",
        type=_ids,
        action="extend",
        default=[],
        metavar="IDS",
        help="token ids that end the answer, besides the model's own",
    )
    group.add_argument(
        "--ignore-eos", action="store_true", help="the model's own end tokens do not end the answer"
    )
    group = parser.add_argument_group("drafting")
    group.add_argument(
        "--tree-budget",
        type=tree_budget,
        default=60,
        metavar="N|auto",
        help="draft tokens per step, the root not counted, both engines (default: 60); auto: each "
        f"step chooses, from 0 to {MOST_AUTO}, by what a verify pass costs here and what was "
        "accepted",
    )
    group.add_argument("--beam", type=int, default=20, metavar="N", help="DART; default: 20")
    group.add_argument(
        "--ngram-weight", type=float, default=0.5, metavar="W", help="DART; default: 0.5"
    )
    group.add_argument(
        "--eagle3-depth", type=int, default=7, metavar="N", help="EAGLE3 levels; default: 7"
    )
    group.add_argument(
        "--eagle3-top-k", type=int, default=10, metavar="K", help="EAGLE3 children; default: 10"
    )
    group.add_argument(
        "--prompt-lookup",
        type=int,
        default=0,
        metavar="N",
        help="up to N nodes of a tree are copied from the text so far (default: 0, as published)",
    )


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json", metavar="PATH|-", help='write everything as JSON; "-": to stdout, nothing else'
    )


def tree_budget(text: str) -> int | str:
    """The value of ``--tree-budget``: a number or "auto"."""
    if text == AUTO:
        return AUTO
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number or auto") from None


def engine_list(text: str) -> list[str]:
    """The value of ``--engines``."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in ENGINES]
    if unknown or not names:
        raise argparse.ArgumentTypeError(
            f"unknown engine {(unknown or [text])[0]!r}; expected some of {','.join(ENGINES)}"
        )
    return list(dict.fromkeys(names))


def at_least(args: argparse.Namespace, limits: Mapping[str, float]) -> None:
    """Raises ArenaError for the first flag in ``limits`` whose value is below its limit, or no
    number.
    """
    for name, low in limits.items():
        value = getattr(args, name, None)
        if value is not None and not value >= low:
            flag = name.replace("_", "-")
            raise ArenaError(f"--{flag} {value}: expected {low} or more")


def within_cores(args: argparse.Namespace, name: str) -> None:
    """Raises ArenaError where the flag ``name``, of threads or processes, is not given a number
    that this machine can run.
    """
    at_least(args, {name: 1})
    value, cores = getattr(args, name), os.cpu_count() or 1
    if value is not None and value > MOST_A_CORE * cores:
        raise ArenaError(
            f"--{name} {value}: expected 1 to {MOST_A_CORE * cores}, {MOST_A_CORE} for each of "
            f"this machine's logical cores ({cores})"
        )


def _ids(text: str) -> list[int]:
    try:
        ids = [int(part) for part in text.split(",")]
    except ValueError:
        ids = [-1]
    if min(ids) < 0:
        raise argparse.ArgumentTypeError(f"{text!r}: expected token ids like 2 or 2,32000")
    return ids


def _prompt_ids(text: str) -> tuple[int, ...]:
    if any(mark in text for mark in ";[]\n"):
        raise argparse.ArgumentTypeError(f"{text!r}: batch size is 1; {BATCH_REMEDY}")
    return tuple(_ids(text))


def build_parser(command: str | None = None) -> argparse.ArgumentParser:
    """The parser; ``command`` is the one that will run, so that only its module is imported."""
    parser = _Parser(
        prog="python -m dart_core",
        description="Lossless speculative decoding: DART, EAGLE3 and plain decoding of one target.",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    generate = commands.add_parser("generate", help="answer prompts with one engine")
    generate.add_argument(
        "--engine", choices=ENGINES, default="dart", help="default: dart; ar is plain decoding"
    )
    generate.add_argument(
        "--profile",
        action="store_true",
        help="tell where the time goes, step by step and in sum, and the share of the ideal "
        "speedup; decodes plainly too, to know it",
    )
    compare = commands.add_parser(
        "compare", help="the same prompts with every engine: speed, acceptance, equality"
    )
    check = commands.add_parser(
        "check", help="is every engine's output that of plain decoding? exit code 1 if not"
    )
    for sub in (compare, check):
        sub.add_argument(
            "--engines",
            type=engine_list,
            metavar="LIST",
            help="engines with commas, plain decoding always included (default: all with a head)",
        )
    for sub in (generate, compare, check):
        add_prompt_arguments(sub)
        add_model_arguments(sub)
        add_run_arguments(sub)
        _add_json(sub)

    for name, (module, function, line) in OTHERS.items():
        if name == command:
            try:
                getattr(import_module(module), function)(commands)
            except ModuleNotFoundError as error:
                raise ArenaError(
                    f"the command {name} needs the Python package {error.name}: install it, "
                    f"or dart-arena with its extras"
                ) from error
        else:
            commands.add_parser(name, help=line)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if sys.stdout is None:  # closed by the shell: >&-
        sys.stdout = io.StringIO()
    elif hasattr(sys.stdout, "reconfigure"):  # texts hold more than some locales can show
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        parser = build_parser(next((a for a in arguments if not a.startswith("-")), None))
        args = parser.parse_args(arguments)
        logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
        with _terminable():
            if args.command in OTHERS:
                return args.run(args) or 0
            prompts = import_module("dart_core.cli_checks").check_flags(args)
            module = import_module(DECODING[args.command])
            code = getattr(module, f"run_{args.command}")(args, prompts)
            sys.stdout.flush()
            return code
    except SystemExit as exit_:  # argparse has said what is wrong
        return exit_.code if isinstance(exit_.code, int) else 2
    except ArenaError as error:
        return _fail(error, 1)
    except Terminated:
        return _fail("terminated", TERMINATED)
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    except BrokenPipeError:  # the reader, `head` say, has what it wanted
        _silence_stdout()
        return BROKEN_PIPE
    except OSError as error:
        if error.errno == errno.ENOSPC:  # what could not be written is not tried again at exit
            _silence_stdout()
        return _fail(in_words(error), 1)


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM ends a command as Ctrl-C does; a second one ends the process at once."""

    def end(*_: object) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise Terminated

    if threading.current_thread() is not threading.main_thread():  # which alone hears signals
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _silence_stdout() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(error: object, code: int) -> int:
    message = " ".join(str(error).split())
    asked = code in (INTERRUPTED, TERMINATED)
    print(message if asked else f"error: {message}", file=sys.stderr)
    return code
