"""Where prompts come from: a text, token ids, or a JSONL file of conversations."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dart_core.errors import ArenaError
from dart_core.jsonl import numbered_lines
from dart_core.text import check_messages

BATCH_REMEDY = "put several prompts into a JSONL file, one a line, and give it with --prompt-file"


@dataclass(frozen=True, slots=True)
class Prompt:
    """One conversation to run: ``history`` comes first, then each of ``turns`` after its answer.

    ``ids`` replaces both: a prompt that is already token ids.
    """

    name: str
    turns: tuple[str, ...] = ()
    history: tuple[dict[str, str], ...] = ()
    ids: tuple[int, ...] | None = None

    def run(
        self,
        chat_ids: Callable[[list[dict[str, str]]], list[int]],
        raw_ids: Callable[[str], list[int]] | None,
        answer: Callable[[str, list[int]], str],
    ) -> None:
        """Turn by turn: ``answer(label, prompt_ids)`` returns the text that the next turn follows.

        ``raw_ids`` takes the place of the chat template. Errors get the prompt's name, if any.
        """
        try:
            if self.ids is not None:
                answer(self.name, list(self.ids))
                return
            if raw_ids is not None:
                if self.history or len(self.turns) > 1:
                    raise ArenaError("a conversation needs the chat template: leave --raw out")
                answer(self.name, raw_ids(self.turns[0]))
                return
            messages = list(self.history)
            for number, turn in enumerate(self.turns, 1):
                messages.append({"role": "user", "content": turn})
                label = self.name if len(self.turns) == 1 else f"{self.name} turn {number}"
                messages.append(
                    {"role": "assistant", "content": answer(label, chat_ids(list(messages)))}
                )
        except ArenaError as error:
            if isinstance(error, MemoryError):  # nothing is wrong with the prompt
                raise
            raise ArenaError(f"{self.name}: {error}" if self.name else str(error)) from error


def read_prompt_file(path: str | Path, limit: int | None = None) -> list[Prompt]:
    """The first ``limit`` prompts of a JSONL file; blank lines are skipped, other fields ignored.

    A line is an object with ``turns`` (list of user texts), ``prompt`` (one user text) or
    ``messages`` (role and content, the last from the user), and an optional ``id``. Raises
    ArenaError with path and line number.
    """
    path = Path(path)
    prompts: list[Prompt] = []
    for number, line in numbered_lines(path, "prompt file"):
        if limit is not None and len(prompts) == limit:
            break
        try:
            prompts.append(prompt_of(json_object(line), default_name=f"{path.stem}:{number}"))
        except ArenaError as error:
            raise ArenaError(f"{path}, line {number}: {error}") from error
    if not prompts:
        raise ArenaError(f"prompt file {path} holds no prompts; expected one JSON object a line")
    return prompts


def json_object(line: str) -> dict:
    """The JSON object of one line. Raises ArenaError for anything else."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:  # also: numbers too long, lists too deep
        raise ArenaError(f"not JSON: {error}") from error
    if not isinstance(record, dict):
        raise ArenaError(f"expected a JSON object, got {line.strip()[:60]!r}")
    return record


def prompt_of(record: dict, default_name: str) -> Prompt:
    """The prompt of one line's object. Raises ArenaError for what is none."""
    given = [field for field in ("turns", "prompt", "messages") if field in record]
    if len(given) != 1:
        raise ArenaError(
            "expected exactly one of turns, prompt and messages, got "
            + (" and ".join(given) or "fields " + (", ".join(record) or "none"))
        )
    name = default_name if record.get("id") is None else str(record["id"])
    value = record[given[0]]
    if given[0] == "messages":
        messages = check_messages(value)
        return Prompt(name, turns=(messages[-1]["content"],), history=tuple(messages[:-1]))
    turns = [value] if given[0] == "prompt" else value
    if not isinstance(turns, list) or not turns or not all(isinstance(t, str) and t for t in turns):
        kind = "a non-empty text" if given[0] == "prompt" else "a non-empty list of non-empty texts"
        raise ArenaError(f"{given[0]} must be {kind}, got {value!r:.60}")
    return Prompt(name, turns=tuple(turns))
