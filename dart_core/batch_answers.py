"""A line of a batch's input, and the record that answers it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from dart_core.batch import ECHOED, FIGURES, Line
from dart_core.chat_format import refuse_unsupported, with_fields
from dart_core.cli_run import run_one
from dart_core.engine import Engine, Generation, GenerationSettings
from dart_core.errors import ArenaError
from dart_core.metrics import summarize
from dart_core.prompts import json_object, prompt_of
from dart_core.sampling import MAX_SEED
from dart_core.step import Step


def answer_line(
    line: Line,
    engine: Engine,
    name: str,
    settings: GenerationSettings,
    *,
    chat_ids: Callable[[list[dict[str, str]]], list[int]],
    raw_ids: Callable[[str], list[int]] | None = None,
    seed: int = 0,
    show: Callable[[Step, list[str]], None] | None = None,
) -> dict[str, Any]:
    """The record of one line: its answer, or, as ``error``, why there is none.

    seed: of the batch; each line samples with a seed of its own, seed + number. show: called with
    every step and its texts. Raises what is not the line's fault.
    """
    record: dict[str, Any] = {"line": line.number}
    runs: list[Generation] = []
    try:
        try:
            given = json_object(line.text.decode())
        except UnicodeDecodeError as error:
            raise ArenaError(f"not UTF-8 text: {error}") from error
        record |= _echo(given)
        own = line_settings(given, settings, (seed + line.number) % MAX_SEED)

        def answer(_label: str, prompt_ids: list[int]) -> str:
            runs.append(run_one(engine, name, prompt_ids, own, show))
            return runs[-1].text

        prompt_of(given, "").run(chat_ids, raw_ids, answer)
    except ArenaError as error:
        if isinstance(error, MemoryError):  # not the line's fault, as far as anyone knows
            raise
        return {**record, "error": str(error)}
    steps = [step for run in runs for step in run.steps]
    metrics = summarize(steps)
    texts = [run.text for run in runs]
    answer_field = {"responses": texts} if "turns" in given else {"response": texts[0]}
    return {
        **record,
        **answer_field,
        "engine": name,
        "finish_reason": runs[-1].finish_reason,
        "seed": steps[0].seed,
        "prompt_tokens": sum(len(run.prompt_ids) for run in runs),
        **{figure: metrics[figure] for figure in FIGURES},
    }


def line_settings(
    given: Mapping[str, Any], settings: GenerationSettings, seed: int
) -> GenerationSettings:
    """The batch's settings with what the line says of its own: temperature, top_p, top_k, seed,
    max_tokens, stop. Raises ArenaError for values out of range, and for what no engine does.
    """
    said = {name: value for name, value in given.items() if value is not None}
    refuse_unsupported(said)
    own = with_fields({"seed": seed, **said}, settings)
    if own.sampling.greedy:
        own = replace(own, sampling=replace(own.sampling, seed=None))
    return own


def _echo(given: Mapping[str, Any]) -> dict[str, Any]:
    echo = {name: given[name] for name in ECHOED if name in given}
    try:
        json.dumps(echo, allow_nan=False)
    except ValueError as error:
        raise ArenaError(f"holds a number that JSON does not know: {error}") from error
    return echo
