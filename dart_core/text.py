"""Text in and out: chat prompts to ids, ids to streamed text, stop strings.

Whatever is streamed joins to exactly ``tokenizer.decode(ids, skip_special_tokens=True,
clean_up_tokenization_spaces=False)``, and where an answer stops never depends on how rounds cut it:
everything here goes token by token.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from dart_core.errors import ArenaError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ROLES = ("system", "user", "assistant")
REPLACEMENT = "\ufffd"  # what a decoder writes for bytes that are no (or not yet a) character
QUIET = {"verbose": False}  # what is too long is our own to say, once it is known for what
WINDOW = 4  # tokens kept as left context when the decode window moves on


# Prompts ------------------------------------------------------------------------------------------


def check_text(text: object, what: str) -> None:
    """Raises ArenaError unless ``text`` is a text of whole characters."""
    if not isinstance(text, str):
        raise ArenaError(f"{what} must be a text, got {text!r:.60}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ArenaError(
            f"{what} holds half a character, {text[error.start]!r}, at position {error.start}: "
            "was it made of bytes that are not UTF-8, or cut within a character?"
        ) from error


def check_messages(messages: object) -> list[dict[str, str]]:
    """The conversation as a list of role and content. Raises ArenaError naming the fault."""
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise ArenaError(
            f"messages must be a non-empty list of role and content, got {messages!r:.80}"
        )
    for number, message in enumerate(messages, 1):
        if not isinstance(message, Mapping):
            raise ArenaError(
                f"message {number} must be an object with role and content, got {message!r:.80}"
            )
        role, content = message.get("role"), message.get("content")
        if role not in ROLES:
            raise ArenaError(
                f"message {number} has role {role!r}; expected one of {', '.join(ROLES)}"
            )
        if not isinstance(content, str):
            raise ArenaError(
                f"message {number} ({role}) needs text as its content, got {content!r:.80}"
            )
        check_text(content, f"message {number} ({role})")
    if messages[-1]["role"] != "user":
        raise ArenaError(
            f"the last message must be from the user, got role {messages[-1]['role']!r}"
        )
    return [{"role": message["role"], "content": message["content"]} for message in messages]


def chat_prompt_ids(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Mapping[str, str]],
    *,
    system_prompt: str | None = None,
    enable_thinking: bool = False,
) -> list[int]:
    """Ids of the conversation in the model's own chat template, ready for the answer.

    ``system_prompt`` goes in front unless the conversation brings its own system message.
    ``enable_thinking`` is handed to the template; templates that do not know it ignore it. Raises
    ArenaError for a malformed conversation, a tokenizer without a template, or a template that
    refuses the conversation.
    """
    conversation = check_messages(messages)
    if not getattr(tokenizer, "chat_template", None):
        raise ArenaError(
            "this model's tokenizer has no chat template: "
            "give the text as it stands, with --raw (raw=True in Python)"
        )
    if system_prompt and conversation[0]["role"] != "system":
        check_text(system_prompt, "the system prompt")
        conversation.insert(0, {"role": "system", "content": system_prompt})
    import jinja2

    try:
        ids = tokenizer.apply_chat_template(
            conversation,
            add_generation_prompt=True,
            enable_thinking=enable_thinking,
            tokenize=True,
            return_dict=False,
            tokenizer_kwargs=QUIET,
        )
    except (jinja2.TemplateError, ValueError) as error:
        raise ArenaError(f"the model's chat template refuses this conversation: {error}") from error
    return [int(token) for token in ids]


def raw_prompt_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Ids of a text as it stands: special tokens written in it count, none are added around it."""
    check_text(text, "the prompt")
    return [int(token) for token in tokenizer.encode(text, add_special_tokens=False, **QUIET)]


# Ids to text --------------------------------------------------------------------------------------


def full_decode(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """The one-shot decode that every stream must join to."""
    return tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)


@cache
def _byte_of_character() -> dict[str, int]:
    """GPT-2's alphabet: printable bytes stand for themselves, the others for U+0100 and on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    table.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return table


def _skipped_ids(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """The ids a decode with skip_special_tokens leaves out."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return frozenset(tokenizer.all_special_ids)
    added = backend.get_added_tokens_decoder()
    return frozenset(token for token, entry in added.items() if entry.special)


def _is_byte_level(tokenizer: PreTrainedTokenizerBase) -> bool:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    decoder = getattr(backend, "decoder", None)
    if decoder is None:
        return False
    state = json.loads(decoder.__getstate__())
    members = state.get("decoders", [state])
    return [member["type"] for member in members] == ["ByteLevel"]


class IncrementalDetokenizer:
    """Ids to text as they come, never half a character, in time linear in their number.

    Byte-level tokenizers are decoded by their bytes, which is exact whatever the bytes are. Any
    other tokenizer is asked to decode a short window; a run of byte tokens (``<0xE6>``) is held
    until it ends, because the tokenizer itself judges such a run as a whole.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, skip_special_tokens: bool = True):
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._skipped = _skipped_ids(tokenizer) if skip_special_tokens else frozenset()
        self._byte_level = _is_byte_level(tokenizer)
        self._reset()

    def _reset(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._window: list[int] = []  # ids still decoded together
        self._shown = 0  # characters of the window's text already returned
        self._open = False  # the window ends in something that is not settled yet

    def push(self, ids: Iterable[int]) -> str:
        """Take the next ids; return the text they finish."""
        return "".join(self._push(int(token)) for token in ids)

    def finish(self) -> str:
        """Flush what is held, half a character as U+FFFD as one-shot decodes do; start anew."""
        text = self.pending
        self._reset()
        return text

    @property
    def pending(self) -> str:
        """What ``finish`` would return now; changes nothing."""
        if self._byte_level:
            held, _ = self._utf8.getstate()
            return held.decode("utf-8", "replace")
        return self._decode(self._window)[self._shown :] if self._open else ""

    def _push(self, token: int) -> str:
        if token in self._skipped:
            return ""
        piece = self._tokenizer.convert_ids_to_tokens(token)
        if not piece:  # a padding row of the embedding: it has no text
            return ""
        if self._byte_level:
            table = _byte_of_character()
            known = all(character in table for character in piece)
            data = bytes(table[character] for character in piece) if known else piece.encode()
            return self._utf8.decode(data)
        self._window.append(token)
        self._open = _is_byte_piece(piece)
        if self._open:
            return ""
        text = self._decode(self._window)
        if text.endswith(REPLACEMENT):
            self._open = True
            return ""
        new = text[self._shown :]
        self._shown = len(text)
        if len(self._window) > 4 * WINDOW:
            self._move_on(text)
        return new

    def _move_on(self, text: str) -> None:
        """Keep a few tokens as context, unless they would decode otherwise on their own."""
        tail = self._window[-WINDOW:]
        if any(map(_is_byte_piece, self._tokenizer.convert_ids_to_tokens(tail))):
            return
        tail_text = self._decode(tail)
        if tail_text and text.endswith(tail_text):
            self._window, self._shown = tail, len(tail_text)

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(
            ids,
            skip_special_tokens=self._skip_special_tokens,
            clean_up_tokenization_spaces=False,
        )


def _is_byte_piece(piece: str) -> bool:
    return len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">")


# Stop strings -------------------------------------------------------------------------------------


class TextStream:
    """The text of one answer as it may be shown: what is shown is never taken back.

    The answer stops with the first token after which its decoded text contains a stop string, so
    the result is the same however rounds cut it. The text is cut before the match (after it if
    ``include``); of several matches, the one that ends first counts. A stop string that is a
    special token of the tokenizer stops at that token.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, stops: Iterable[str] = (), include: bool = False
    ):
        self._detokenizer = IncrementalDetokenizer(tokenizer)
        self._stops = check_stops(stops)
        self._include = include
        self._special = {
            token
            for token in _skipped_ids(tokenizer)
            if tokenizer.convert_ids_to_tokens(token) in self._stops
        }
        self._held = ""  # finished text that may still become a stop string
        self.stopped = False

    def push(self, ids: Iterable[int]) -> str:
        """Take the next ids; return the text that may be shown. Ids after the stop are ignored."""
        shown = []
        for token in ids:
            if self.stopped:
                break
            shown.append(self._push(int(token)))
        return "".join(shown)

    def finish(self) -> str:
        """The end of the answer: what was held back, once."""
        if self.stopped:
            return ""
        text = self._held + self._detokenizer.finish()
        self._held = ""
        return text

    def _push(self, token: int) -> str:
        if token in self._special:
            text = self.finish()
            self.stopped = True
            return text
        self._held += self._detokenizer.push([token])
        if not self._stops:
            text, self._held = self._held, ""
            return text
        # A held run of byte tokens may already be the stop string: take the text as if it ended.
        match = self._find(self._held + self._detokenizer.pending)
        if match is not None:
            start, end = match
            text = (self._held + self._detokenizer.finish())[: end if self._include else start]
            self._held = ""
            self.stopped = True
            return text
        keep = self._may_become_stop()
        text, self._held = (
            self._held[: len(self._held) - keep],
            self._held[len(self._held) - keep :],
        )
        return text

    def _find(self, text: str) -> tuple[int, int] | None:
        """(start, end) of the match that ends first, of those the longest."""
        found = [(text.find(stop), stop) for stop in self._stops]
        ends = [(start + len(stop), start) for start, stop in found if start >= 0]
        if not ends:
            return None
        end, start = min(ends)
        return start, end

    def _may_become_stop(self) -> int:
        """Length of the longest end of the held text that begins a stop string."""
        longest = max(map(len, self._stops)) - 1
        for length in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-length:]) for stop in self._stops):
                return length
        return 0


class StopChecker:
    """For the decoding loop: ``push(token)`` is true once a token has completed a stop string."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stops: Iterable[str]):
        self._stream = TextStream(tokenizer, stops)

    def push(self, token: int) -> bool:
        self._stream.push([token])
        return self._stream.stopped


def check_stops(stops: Iterable[str]) -> tuple[str, ...]:
    """Stop strings as a tuple. Raises ArenaError for a lone string or an empty stop."""
    if isinstance(stops, str | Mapping) or not isinstance(stops, Iterable):
        raise ArenaError(f"stop strings come as a list of texts, got {stops!r:.80}")
    stops = tuple(stops)
    if not all(isinstance(stop, str) and stop for stop in stops):
        raise ArenaError(f"a stop string is a text of at least one character, got {list(stops)!r}")
    return stops


def answer_text(
    tokenizer: PreTrainedTokenizerBase,
    ids: Iterable[int],
    stops: Iterable[str] = (),
    include: bool = False,
) -> str:
    """The text of a whole answer, by the same rules as the stream."""
    stream = TextStream(tokenizer, stops, include)
    return stream.push(ids) + stream.finish()
