"""What n-grams are counted in: JSONL or plain text, read in chunks for any process."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from dart_core.errors import ArenaError
from dart_core.lfs import refuse_pointer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CHUNK_CHARACTERS = 1 << 16  # read at a time: what a pipe takes without waiting for its reader


@dataclass(frozen=True, slots=True)
class Chunk:
    """Lines of a JSONL input, the first of them line ``first``; or, if ``plain``, one piece of a
    text, ``last`` if it is that text's last one. ``done``: bytes of all inputs read so far.
    """

    path: str
    first: int
    lines: tuple[str, ...]
    plain: bool
    last: bool
    done: int


def total_bytes(paths: Sequence[str]) -> int:
    """Size of all inputs as they lie on disk. Raises FileNotFoundError for one that is missing."""
    return sum(Path(path).stat().st_size for path in paths)


def vocabulary_of(folder: str | Path, tokenizer: PreTrainedTokenizerBase) -> int:
    """Vocabulary size of the model in ``folder``, which can be larger than its tokenizer's: output
    rows are padded. The tokenizer's size where the folder has no model's config.
    """
    try:
        config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
        return max(int(config.get("text_config", config)["vocab_size"]), len(tokenizer))
    except (OSError, ValueError, LookupError, AttributeError, TypeError):
        return len(tokenizer)


def read_chunks(paths: Sequence[str]) -> Iterator[Chunk]:
    """All inputs in order, .gz ones unpacked; memory holds a chunk at a time.

    A .txt input is one text; a long one is cut at a line's end every 64 Ki characters.
    """
    before = 0
    for path in paths:
        plain = Path(path.removesuffix(".gz")).suffix == ".txt"
        refuse_pointer(path)
        with open(path, "rb") as raw:
            binary = gzip.GzipFile(fileobj=raw) if path.endswith(".gz") else raw
            file = io.TextIOWrapper(binary, encoding="utf-8")
            try:
                for first, lines, last in _pieces(file) if plain else _line_groups(file):
                    yield Chunk(path, first, lines, plain, last, before + raw.tell())
            except (UnicodeDecodeError, EOFError) as error:  # bytes that are no text; half a .gz
                raise ArenaError(f"{path} is not whole UTF-8 text: {error}") from error
        before += Path(path).stat().st_size


def _line_groups(file: TextIO) -> Iterator[tuple[int, tuple[str, ...], bool]]:
    lines, first, characters, number = [], 1, 0, 0
    for number, line in enumerate(file, 1):
        lines.append(line)
        characters += len(line)
        if characters >= CHUNK_CHARACTERS:
            yield first, tuple(lines), False
            lines, first, characters = [], number + 1, 0
    yield first, tuple(lines), True


def _pieces(file: TextIO) -> Iterator[tuple[int, tuple[str, ...], bool]]:
    piece = file.read(CHUNK_CHARACTERS) + file.readline(CHUNK_CHARACTERS)
    while True:
        following = file.read(CHUNK_CHARACTERS) + file.readline(CHUNK_CHARACTERS)
        yield 1, (piece,), not following
        if not following:
            return
        piece = following


@dataclass(frozen=True, slots=True)
class IdReader:
    """Takes JSONL lines of token ids as they are: a list, or an object with ids, tokens or
    input_ids.
    """

    vocab_size: int

    def streams(self, chunk: Chunk) -> Iterator[list[int]]:
        """The token streams of a chunk. Raises ArenaError that names the line of a bad one."""
        for place, record in _records(chunk):
            ids = record
            if isinstance(record, dict):
                names = [name for name in ("ids", "tokens", "input_ids") if name in record]
                ids = record[names[0]] if names else None
            if not isinstance(ids, list) or not all(type(token) is int for token in ids):
                raise ArenaError(f"{place}: expected a list of token ids")
            yield _checked(ids, self.vocab_size, place)


@dataclass(frozen=True, slots=True)
class TextReader:
    """Tokenises the texts of a chunk, each a stream of its own with ``end`` behind it.

    tokenizer: a transformers tokenizer, or the fast one of ``tokenizers`` inside it, which loads
    in a moment wherever it is sent to.
    """

    tokenizer: Any
    end: tuple[int, ...]
    vocab_size: int

    @classmethod
    def of(
        cls, tokenizer: PreTrainedTokenizerBase, end: Sequence[int], vocab_size: int
    ) -> TextReader:
        """A reader with the lightest form of a transformers tokenizer."""
        return cls(getattr(tokenizer, "backend_tokenizer", tokenizer), tuple(end), vocab_size)

    def streams(self, chunk: Chunk) -> Iterator[list[int]]:
        """The token streams of a chunk. Raises ArenaError that names the line of a bad one."""
        place = f"{chunk.path}, from line {chunk.first} on"
        texts = list(chunk.lines if chunk.plain else _texts(chunk))
        if hasattr(self.tokenizer, "encode_batch_fast"):  # the same ids, without their offsets
            encoded = self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
            ids = [encoding.ids for encoding in encoded]
        else:
            ids = self.tokenizer(texts, add_special_tokens=False)["input_ids"] if texts else []
        end = [] if chunk.plain and not chunk.last else list(self.end)
        for stream in ids:
            yield _checked(stream, self.vocab_size, place) + end


def _checked(ids: list[int], vocab_size: int, place: str) -> list[int]:
    if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
        wrong = next(token for token in ids if not 0 <= token < vocab_size)
        raise ArenaError(f"{place}: token {wrong} is outside the vocabulary of {vocab_size}")
    return ids


def _records(chunk: Chunk) -> Iterator[tuple[str, object]]:
    """Place ("file:line") and JSON value of every line that is not blank."""
    for number, line in enumerate(chunk.lines, chunk.first):
        if not line.strip():
            continue
        try:
            yield f"{chunk.path}:{number}", json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ArenaError(f"{chunk.path}:{number}: not a JSON value: {error}") from None


def _texts(chunk: Chunk) -> Iterator[str]:
    """The texts of JSONL lines; every message of a conversation is one."""
    for place, record in _records(chunk):
        if isinstance(record, str):
            yield record
            continue
        if not isinstance(record, dict):
            raise ArenaError(f"{place}: expected an object or a text")
        found = False
        for name in ("text", "prompt", "response", "turns", "messages"):
            values = record.get(name)
            if values is None:
                continue
            found = True
            for value in values if isinstance(values, list) else [values]:
                text = value.get("content") if isinstance(value, dict) else value
                if not isinstance(text, str):
                    raise ArenaError(f"{place}: {name} holds something that is not text")
                yield text
        if not found:
            raise ArenaError(
                f"{place}: none of messages, turns, prompt, response, text; found: "
                f"{', '.join(record) or 'nothing'}"
            )
