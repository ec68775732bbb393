"""The command batch: a JSONL file of prompts into one of answers."""

from __future__ import annotations

import logging
import secrets
import time
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dart_core.batch import Batch, Share, require_input
from dart_core.cli import DTYPES, ENGINES, add_model_arguments, add_run_arguments, at_least
from dart_core.cli_checks import check_models, note
from dart_core.errors import ArenaError
from dart_core.memory import is_out_of_memory
from dart_core.progress import ProgressBar, duration
from dart_core.references import local_path
from dart_core.report import check_destination
from dart_core.text import raw_prompt_ids

if TYPE_CHECKING:
    from dart_core.engine import GenerationSettings
    from dart_core.step import Step

logger = logging.getLogger(__name__)

BAD_RUNS = 3  # lines in a row that fail for no fault of theirs: then it is the machine


def add_batch_parser(commands: Any) -> None:
    """Add ``batch`` to the command line's sub-parsers."""
    parser = commands.add_parser(
        "batch",
        help="answer a JSONL file of prompts into another, through crashes, by many processes",
        description="Answers every line of INPUT with a line of OUTPUT, in order. A line has "
        "prompt (a user message), messages or turns, and may have temperature, top_p, top_k, "
        "max_tokens, seed, stop and id, which win over the flags; an answer has line, prompt, "
        "response, figures and settings, or error. The same command again goes on where a run was "
        "cut off; other settings need another output. accelerate launch -m dart_core batch … "
        "spreads the lines over GPUs, and over hosts that share the output's folder. "
        "Lines that fail do not end it: the summary counts them.",
    )
    parser.set_defaults(run=run_batch)
    parser.add_argument("input", metavar="INPUT", type=Path, help="JSONL, one object a line")
    parser.add_argument("output", metavar="OUTPUT", type=Path, help="JSONL; made, or continued")
    parser.add_argument("--engine", choices=ENGINES, default="dart", help="default: dart")
    parser.add_argument("--limit", type=int, metavar="N", help="the first N lines")
    parser.add_argument(
        "--retry-errors", action="store_true", help="lines that have failed before are tried again"
    )
    parser.add_argument("--raw", action="store_true", help="no chat template: texts as they stand")
    parser.add_argument(
        "--system-prompt", metavar="TEXT", help="unless the line brings its own system message"
    )
    parser.add_argument(
        "--enable-thinking", action="store_true", help="let the model think first (default: off)"
    )
    add_model_arguments(parser)
    add_run_arguments(parser)


def run_batch(args: Namespace) -> int:
    at_least(args, {"max_new_tokens": 1, "max_length": 2, "limit": 1})
    if str(args.output) == "-":
        raise ArenaError("OUTPUT -: batch writes a file, so that it can go on after a crash")
    if args.output.exists() and not (args.output.is_file() or args.output.is_dir()):
        raise ArenaError(
            f"OUTPUT {args.output} is no regular file: batch reads it again to go on after a crash"
        )
    trio = check_models(args)
    check_destination(str(args.output), "OUTPUT")
    require_input(args.input)
    from dart_core.cli_run import prepare  # torch takes seconds

    settings = prepare(args)
    share = Share.of_environment()
    batch = Batch(
        args.input,
        args.output,
        share,
        limit=args.limit,
        retry_errors=args.retry_errors,
        settings=_text_settings(args, settings, trio.target),
    )
    say = note if share.index == 0 else _silent
    if batch.done:
        say(f"{batch.done} lines are answered already; {len(batch.pending)} are left")
    try:
        if batch.pending:
            _work(args, batch, share, say)
    finally:
        totals = batch.finish()
        if batch.written and totals is None and share.count == 1:
            note(f"{args.output} is not complete: the same command goes on from here")
    if totals is not None:
        note(f"{args.output}: {totals}")
    return 0


def _text_settings(
    args: Namespace, settings: GenerationSettings, target: str | None
) -> dict[str, Any]:
    """What the texts depend on. Not the engine nor how it drafts, which change no text; nor the
    longest sequence: to lower it is the remedy for lines that the memory was too small for.
    """
    from dart_core.target import default_device, default_dtype, parse_device

    device = default_device() if args.device == "auto" else parse_device(args.device)
    folder = local_path(target) if target else None
    return {
        "target": str(folder.resolve()) if folder else target,  # however it is typed
        "dtype": DTYPES[args.dtype] or str(default_dtype(device)).removeprefix("torch."),
        "temperature": settings.sampling.temperature,
        "top_k": settings.sampling.top_k,
        "top_p": settings.sampling.top_p or 1.0,  # both are off
        "seed": args.seed,
        "max_new_tokens": settings.max_new_tokens,
        "stop": list(settings.stop),
        "eos_token_id": sorted(settings.eos_token_ids),
        "ignore_eos": settings.ignore_eos,
        "raw": args.raw,
        "system_prompt": args.system_prompt,
        "enable_thinking": args.enable_thinking,
    }


def _silent(line: str) -> None:
    pass


def _work(args: Namespace, batch: Batch, share: Share, say: Callable[[str], None]) -> None:
    import torch

    from dart_core.batch_answers import answer_line
    from dart_core.cli_run import load, run_settings

    if share.count > 1 and args.device == "auto" and torch.cuda.is_available():
        args.device = _own_gpu(share)
    engine = load(args, [args.engine], say)
    answer = partial(
        answer_line,
        engine=engine,
        name=args.engine,
        settings=run_settings(args),
        chat_ids=partial(
            engine.chat_ids, system_prompt=args.system_prompt, enable_thinking=args.enable_thinking
        ),
        raw_ids=partial(raw_prompt_ids, engine.tokenizer) if args.raw else None,
        seed=secrets.randbelow(2**31) if args.seed is None else args.seed,
    )
    meter = _Meter(len(batch.pending), share)
    failed = 0
    try:
        for line in batch.pending:
            try:
                record, failed = answer(line, show=meter.step), 0
            except Exception as error:  # not the line's fault, as far as anyone knows
                logger.debug("line %d", line.number, exc_info=True)
                failed += 1
                if failed == BAD_RUNS:
                    raise ArenaError(
                        f"{BAD_RUNS} lines in a row failed, the last with {_in_words(error)}"
                    ) from error
                record = {"line": line.number, "error": _in_words(error)}
            if "error" in record:
                note(f"line {line.number}: {record['error']}")
            batch.write(record)
            meter.line()
    finally:
        meter.close()


def _own_gpu(share: Share) -> str:
    import torch

    count = torch.cuda.device_count()
    if share.local >= count:
        raise ArenaError(
            f"process {share.local + 1} of this machine finds {count} GPUs: start as many "
            "processes as there are GPUs, or give --device"
        )
    return f"cuda:{share.local}"


def _in_words(error: Exception) -> str:
    if isinstance(error, ArenaError):
        return str(error)
    if is_out_of_memory(error):
        return "out of memory: lower max_tokens, --max-length or --tree-budget"
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"


class _Meter:
    """Progress of one process's share."""

    def __init__(self, lines: int, share: Share) -> None:
        which = f" (process 1 of {share.count})" if share.count > 1 else ""
        self.bar = ProgressBar(f"batch{which}") if share.index == 0 else None
        self.lines, self.done, self.tokens = lines, 0, 0
        self.started = time.monotonic()

    def step(self, step: Step, _pieces: object) -> None:
        self.tokens += len(step.tokens)
        self._show()

    def line(self) -> None:
        self.done += 1
        self._show()

    def close(self) -> None:
        if self.bar:
            self.bar.close()

    def _show(self) -> None:
        if not self.bar:
            return
        speed = self.tokens / max(time.monotonic() - self.started, 1e-9)
        left = f", {duration(self.bar.left(self.done, self.lines))} left" if self.done else ""
        self.bar.show(
            self.done / self.lines, f"{self.done}/{self.lines} lines, {speed:.1f} tok/s{left}"
        )
