"""The command generate, and what every decoding command does: flags to settings, models, runs."""

from __future__ import annotations

import os
import secrets
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from dart_core.advice import short_answers
from dart_core.capture import require_one_gpu
from dart_core.cli import AUTO, DTYPES, MOST_AUTO, model_references
from dart_core.cli_checks import note
from dart_core.drafters import MAX_TREE_BUDGET, NGRAM_OFF, DraftSettings
from dart_core.engine import Engine, Generation, GenerationSettings
from dart_core.errors import ArenaError
from dart_core.metrics import chosen_sizes, sizes_in_words, summarize
from dart_core.profiling import profile_record, profile_text
from dart_core.prompts import Prompt
from dart_core.report import figures, provenance, run_record, write_json
from dart_core.room import devices_for
from dart_core.sampling import SamplingParams
from dart_core.step import Step, finish_of
from dart_core.target import parse_device
from dart_core.text import TextStream, check_stops, raw_prompt_ids
from dart_core.trio import choose_trio

WARM_UP_TOKENS = 8  # before a profile: first forwards allocate and tune
ACCEPTED, PLAIN = "\x1b[33m", "\x1b[0m"  # accepted draft tokens in yellow
# A model may write control characters, which a terminal must not obey: pictures stand for them.
HARMLESS = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"}
HARMLESS |= {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)


def run_generate(args: Namespace, prompts: list[Prompt]) -> int:
    settings = prepare(args)
    engine = load(args, [args.engine])
    to_stdout = args.json != "-"
    results: list[dict[str, Any]] = []

    def answer(label: str, prompt_ids: list[int]) -> str:
        if args.prompt_file:
            note(f"== {label}")
        plain = _plain_run(engine, args.engine, prompt_ids, settings) if args.profile else None
        show = Printer() if to_stdout else None
        run = run_one(engine, args.engine, prompt_ids, settings, show)
        note(f"{args.engine}: {figures(run.metrics)}, finish {run.finish_reason}{_seed(settings)}")
        named = {"id": label} if args.prompt_file else {}
        if plain is None and (sizes := chosen_sizes(run.steps)):
            note(f"tree budget {sizes_in_words(sizes)}")
        record = {**named, **run_record(run)}
        if plain is not None:
            note(profile_text(engine, run, plain))
            record["profile"] = profile_record(run.metrics, plain.metrics)
        results.append(record)
        return run.text

    def finish(failure: dict[str, str]) -> None:
        if args.json and results:
            # One prompt gives its run itself; a file gives a list, however short.
            runs = {"results": results} if args.prompt_file else results[0]
            write_json({**runs, **failure, **provenance(engine, settings)}, args.json)

    run_prompts(args, engine, prompts, answer, finish)
    if args.engine != "ar" and (notice := short_answers(r["metrics"] for r in results)):
        note(notice)
    return 0


def _plain_run(
    engine: Engine, name: str, prompt_ids: list[int], settings: GenerationSettings
) -> Generation:
    """Plain decoding of the same prompt, for a profile; both engines are warm after it."""
    short = replace(settings, max_new_tokens=WARM_UP_TOKENS, stop=())
    for each in dict.fromkeys(("ar", name)):
        run_one(engine, each, prompt_ids, short)
    return run_one(engine, "ar", prompt_ids, settings)


# Before a model is loaded
# ---------------------------------------------------------------------------


def prepare(args: Namespace) -> GenerationSettings:
    """The flags as settings. Raises ArenaError for values out of range, and for devices that are
    not there.
    """
    check_devices(args)
    return run_settings(args)


def check_devices(args: Namespace) -> None:
    """Raises ArenaError for devices that are not there."""
    if args.device != "auto":
        parse_device(args.device)
    if args.cuda_graphs:
        require_one_gpu(devices_for(_device(args), args.device_map))


def _device(args: Namespace) -> str | None:
    return None if args.device == "auto" else args.device


def check_tree_budgets(flag: str, budgets: Iterable[int], otherwise: str = "") -> None:
    """Raises ArenaError for one out of range, naming the flag. otherwise: what else it takes."""
    for budget in budgets:
        if not 1 <= budget <= MAX_TREE_BUDGET:
            raise ArenaError(
                f"{flag} {budget}: expected a number from 1 to {MAX_TREE_BUDGET}{otherwise}"
            )


def run_settings(args: Namespace) -> GenerationSettings:
    """The flags of ``add_run_arguments`` as settings; a sampling run without a seed gets one."""
    if args.tree_budget != AUTO:
        auto = "" if args.command == "bench" else ", or auto"
        check_tree_budgets("--tree-budget", [args.tree_budget], auto)
    sampling = SamplingParams(args.temperature, args.top_k, args.top_p, args.seed)
    if sampling.greedy:
        sampling = replace(sampling, seed=None)
    elif sampling.seed is None:
        sampling = replace(sampling, seed=secrets.randbelow(2**31))
    return GenerationSettings(
        max_new_tokens=args.max_new_tokens,
        max_length=args.max_length,
        sampling=sampling,
        draft=DraftSettings(
            tree_budget=MOST_AUTO if args.tree_budget == AUTO else args.tree_budget,
            auto_budget=args.tree_budget == AUTO,
            beam=args.beam,
            ngram_weight=args.ngram_weight,
            eagle3_depth=args.eagle3_depth,
            eagle3_top_k=args.eagle3_top_k,
            prompt_lookup=args.prompt_lookup,
        ),
        stop=check_stops(args.stop),
        eos_token_ids=frozenset(args.eos_token_id),
        ignore_eos=args.ignore_eos,
    )


# Models and runs
# ------------------------------------------------------------------------------------


def load(
    args: Namespace, engines: list[str] | None, progress: Callable[[str], None] = note
) -> Engine:
    """The engine that the flags ask for; ``progress`` gets a line per phase."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()  # our own lines say what is loaded
    dtype = DTYPES[args.dtype]
    given: dict[str, Any] = model_references(args)
    # A published id stands for its whole trio, as the preset does.
    preset = args.preset or choose_trio(**given).preset
    if args.ngram == NGRAM_OFF:
        given["ngram"] = NGRAM_OFF
    return Engine.load(
        preset,
        **given,
        small_ngram=args.ngram == "small",
        engines=engines,
        dtype=getattr(torch, dtype) if dtype else None,
        device=_device(args),
        device_map=args.device_map,
        cuda_graphs=args.cuda_graphs,
        source=args.source,
        progress=progress,
    )


def run_prompts(
    args: Namespace,
    engine: Engine,
    prompts: list[Prompt],
    answer: Callable[[str, list[int]], str],
    finish: Callable[[dict[str, str]], None],
) -> None:
    """``answer`` prompt after prompt, then ``finish``, with the reason where it ends early: what
    is done by then is kept.
    """
    chat_ids = partial(
        engine.chat_ids, system_prompt=args.system_prompt, enable_thinking=args.enable_thinking
    )
    raw_ids = partial(raw_prompt_ids, engine.tokenizer) if args.raw else None
    try:
        for prompt in prompts:
            prompt.run(chat_ids, raw_ids, answer)
    except BaseException as error:
        interrupted = isinstance(error, KeyboardInterrupt)
        reason = "interrupted" if interrupted else str(error) or type(error).__name__
        finish({"error": reason})
        raise
    finish({})


def run_one(
    engine: Engine,
    name: str,
    prompt_ids: list[int],
    settings: GenerationSettings,
    show: Callable[[Step, list[str]], None] | None = None,
) -> Generation:
    """One run, shown as it comes."""
    stream = TextStream(engine.tokenizer, settings.stop)
    steps, shown = [], []
    with closing(engine.stream(prompt_ids, name, settings)) as source:
        for step in source:
            steps.append(step)
            pieces = [stream.push([token]) for token in step.tokens]
            if step.finish_reason is not None:
                pieces.append(stream.finish())
            shown += pieces
            if show is not None:
                show(step, pieces)
    return Generation(
        engine=name,
        prompt_ids=prompt_ids,
        output_ids=[token for step in steps for token in step.tokens],
        text="".join(shown),
        finish_reason=finish_of(steps),
        steps=steps,
        metrics=summarize(steps),
    )


class Printer:
    """Text to stdout as it comes; on a terminal accepted drafts in colour, unless NO_COLOR."""

    def __init__(self) -> None:
        self.terminal = sys.stdout.isatty()
        plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        self.colour = self.terminal and not plain

    def __call__(self, step: Step, pieces: list[str]) -> None:
        if self.terminal:
            pieces = [piece.translate(HARMLESS) for piece in pieces]
        if self.colour:
            accepted = "".join(pieces[: step.accepted])
            rest = "".join(pieces[step.accepted :])
            pieces = [f"{ACCEPTED}{accepted}{PLAIN}" if accepted else "", rest]
        sys.stdout.write("".join(pieces) + ("" if step.finish_reason is None else "\n"))
        sys.stdout.flush()


# Lines for people
# -----------------------------------------------------------------------------------


def _seed(settings: GenerationSettings) -> str:
    return "" if settings.sampling.greedy else f", seed {settings.sampling.seed}"
