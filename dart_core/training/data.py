"""Conversations to token sequences with an exact loss mask.

A record is one JSON object a line: ``messages`` (role and content in turn), or ``text`` (already
rendered by the chat template). Supervised are exactly the tokens that the target itself would
write: every assistant answer, its end-of-turn token included, and nothing of the template around
it. ``"complete": false`` marks a last answer that was cut: its end-of-turn token is not supervised,
because the target never wrote it.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dart_core.errors import ArenaError
from dart_core.jsonl import numbered_lines
from dart_core.prompts import json_object
from dart_core.text import check_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PROBE = "QZprobeQZ"  # a text that no template contains, to find where the template puts an answer
TRAINED_ON = ("messages", "text")  # fields of a record: a conversation, or one that is rendered
ASKED = ("prompt", "turns", "messages")  # those that hold what a user says
SHAREGPT = {"human": "user", "gpt": "assistant"}  # its names of roles; others are the same


@dataclass(frozen=True, slots=True)
class Sequence:
    """tokens int32 [S], supervised bool [S]: entry i says whether token i was written by the
    target.
    """

    tokens: np.ndarray
    supervised: np.ndarray


def read_records(
    paths: Iterable[str | Path], fields: tuple[str, ...] = (*ASKED, "text")
) -> Iterator[dict]:
    """The JSON objects of JSONL files, gzipped where the name ends in .gz, each with one of
    ``fields`` at least.

    Conversations may also be written as ShareGPT's are, ``from`` and ``value`` in turn in
    ``conversations`` or ``messages``; they come as ``messages``. Raises ArenaError that names file
    and line.
    """
    for path in map(Path, paths):
        require_file(path)
        for number, line in numbered_lines(path, "data file"):
            try:
                record = _checked(json_object(line), fields)
            except ArenaError as error:
                raise ArenaError(f"{path}, line {number}: {error}") from error
            yield record


def require_file(path: str | Path) -> None:
    """Raises ArenaError for what is no file of data; a pipe is none, for it is read twice."""
    if not Path(path).is_file():
        raise ArenaError(
            f"data file {path} does not exist, or is no regular file; give a JSONL file, one "
            "conversation a line"
        )


def _checked(record: dict, fields: tuple[str, ...]) -> dict:
    """A record of which every field that is read is known to be what it should; null is nothing."""
    record = {name: value for name, value in record.items() if value is not None}
    if "conversations" in record and "messages" not in record:
        record["messages"] = record.pop("conversations")
    if not any(name in record for name in fields):
        raise ArenaError(
            f"expected {' or '.join(fields)}, got fields {', '.join(record) or 'none'}"
            + ("; `train data` answers prompts" if "prompt" in record or "turns" in record else "")
        )
    for name in ("prompt", "text"):
        if name in record:
            check_text(record[name], name)
    for name in ("turns", "messages"):
        if name in record and (not isinstance(record[name], list) or not record[name]):
            raise ArenaError(f"{name} must be a list of one or more, got {record[name]!r:.60}")
    for number, turn in enumerate(record.get("turns", ()), 1):
        check_text(turn, f"turn {number}")
    if "messages" in record:
        record["messages"] = [_message(*each) for each in enumerate(record["messages"], 1)]
    if fields == ASKED and not any(user_texts(record)):
        raise ArenaError("there is nothing that a user says")
    return record


def _message(number: int, message: object) -> dict:
    if not isinstance(message, dict):
        raise ArenaError(f"message {number} must be an object, got {message!r:.60}")
    if "role" not in message and "from" in message:
        author = message["from"]
        role = SHAREGPT.get(author, author) if isinstance(author, str) else author
        message = {"role": role, "content": message.get("value")}
    for name in ("role", "content"):
        check_text(message.get(name), f"{name} of message {number}")
    return message


def user_texts(record: dict) -> list[str]:
    """What a user says in a record of any of the accepted kinds: prompt, turns or messages."""
    if "prompt" in record:
        return [record["prompt"]]
    if "turns" in record:
        return list(record["turns"])
    return [m["content"] for m in record.get("messages", []) if m["role"] == "user"]


def all_text(record: dict) -> str:
    """The whole text of a record, turns joined by newlines."""
    if "text" in record:
        return record["text"]
    return "\n".join(m["content"] for m in record.get("messages", []))


def split(records: list[dict], holdout: int, seed: int) -> tuple[list[dict], list[dict]]:
    """Shuffle by ``seed`` and set the first ``holdout`` records apart: (held out, rest)."""
    order = list(range(len(records)))
    random.Random(seed).shuffle(order)
    shuffled = [records[i] for i in order]
    return shuffled[:holdout], shuffled[holdout:]


class ChatEncoder:
    """Renders conversations with a tokenizer's chat template and marks the tokens that the target
    wrote.

    tokenizer: a transformers tokenizer with a chat template. max_length: longer sequences are cut.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, max_length: int = 512) -> None:
        self.tokenizer, self.max_length = tokenizer, max_length
        probe = [{"role": "user", "content": PROBE}]
        bare = self.render(probe)
        opened = self.render(probe, add_generation_prompt=True)
        answered = self.render([*probe, {"role": "assistant", "content": PROBE}])
        if not opened.startswith(bare) or opened == bare or not answered.startswith(opened):
            raise ArenaError(
                "this chat template has no fixed text before an answer, so the answer's tokens "
                "cannot be found; "
                "use a tokenizer whose template supports add_generation_prompt"
            )
        self.answer_opening = opened[len(bare) :]
        after = answered[len(opened) + len(PROBE) :]
        # The end-of-turn token is the target's own; the newline that follows it is not.
        ends = [t for t in tokenizer.all_special_tokens if after.startswith(t)]
        if not ends:
            raise ArenaError(
                f"the chat template ends an answer with {after!r}, which is no special token"
            )
        self.answer_end = max(ends, key=len)

    def render(self, messages: list[dict], **flags: Any) -> str:
        """The conversation in the chat template, as text. Raises ArenaError where the template
        refuses it.
        """
        import jinja2

        try:
            return self.tokenizer.apply_chat_template(
                messages, tokenize=False, enable_thinking=False, **flags
            )
        except (jinja2.TemplateError, ValueError) as error:
            raise ArenaError(
                f"the model's chat template refuses a conversation ({error}): {messages!r:.120}"
            ) from error

    def encode(self, record: dict) -> Sequence:
        """The token sequence of one record, cut to ``max_length``; ``supervised`` may be false
        everywhere.
        """
        if "text" in record:
            pieces = self._text_pieces(record["text"])
        elif "messages" in record:
            pieces = self._message_pieces(record)
        else:
            raise ArenaError(f"expected messages or text, got fields {', '.join(record)}")
        tokens: list[int] = []
        supervised: list[bool] = []
        for text, own in pieces:
            # Piece by piece, as at inference: the prompt is tokenised alone, and the answer
            # starts a token of its own.
            ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
            tokens += ids
            supervised += [own] * len(ids)
            if len(tokens) >= self.max_length:
                break
        cut = slice(self.max_length)
        return Sequence(
            np.array(tokens[cut], dtype=np.int32), np.array(supervised[cut], dtype=bool)
        )

    def _message_pieces(self, record: dict) -> list[tuple[str, bool]]:
        messages = record["messages"]
        # An answer to nothing has no prompt: it stands there, but is not what the target would say.
        answers = [i for i in range(1, len(messages)) if messages[i]["role"] == "assistant"]
        if not answers:
            return [(self.render(messages), False)]
        whole = self.render(messages[: answers[-1] + 1])
        openings = {i: self.render(messages[:i], add_generation_prompt=True) for i in answers}
        # Some templates show a past answer otherwise than it was written (without its thinking):
        # only answers whose own prompt is a prefix of the conversation can be supervised in it.
        answers = [i for i in answers if whole.startswith(openings[i] + messages[i]["content"])]
        pieces, done = [], 0
        for i in answers:
            start = len(openings[i])
            stop = start + len(messages[i]["content"])
            cut = i == len(messages) - 1 and not record.get("complete", True)
            if not cut and whole.startswith(self.answer_end, stop):
                stop += len(self.answer_end)
            pieces += [(whole[done:start], False), (whole[start:stop], True)]
            done = stop
            if cut:
                return pieces
        return [*pieces, (whole[done:], False)]

    def _text_pieces(self, text: str) -> list[tuple[str, bool]]:
        pieces, done = [], 0
        while (start := text.find(self.answer_opening, done)) >= 0:
            start += len(self.answer_opening)
            stop = text.find(self.answer_end, start)
            stop = len(text) if stop < 0 else stop + len(self.answer_end)
            pieces += [(text[done:start], False), (text[start:stop], True)]
            done = stop
        return [*pieces, (text[done:], False)]

    def encode_all(self, records: Iterable[dict]) -> list[Sequence]:
        """Sequences of all records that hold a supervised token.

        Warns with counts where some hold none, raises ArenaError with an example where none holds
        any.
        """
        kept, total, example = [], 0, None
        for record in records:
            total += 1
            sequence = self.encode(record)
            if sequence.supervised[1:].any():
                kept.append(sequence)
            elif example is None:
                example = record
        if not kept:
            shown = repr(all_text(example))[:300] if example else "(no record)"
            raise ArenaError(
                f"0 supervised tokens in {total} of {total} records: no answer is opened by "
                f"{self.answer_opening!r} within {self.max_length} tokens; one example: {shown}"
            )
        if len(kept) < total:
            warnings.warn(
                f"0 supervised tokens in {total - len(kept)} of {total} records (no answer "
                f"opened by {self.answer_opening!r} in {self.max_length} tokens); they are skipped",
                stacklevel=2,
            )
        return kept
