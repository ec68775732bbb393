"""Keeps evaluation prompts out of the data: no record may share a run of N words with an excluded
prompt.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from dart_core.errors import ArenaError
from dart_core.training.data import ASKED, all_text, read_records, user_texts

_WORD = re.compile(r"\w+")


def word_runs(text: str, length: int) -> set[tuple[str, ...]]:
    """All runs of ``length`` words, case and punctuation ignored; a shorter text is one run of all
    its words.
    """
    words = _WORD.findall(text.lower())
    if not words:
        return set()
    return {tuple(words[i : i + length]) for i in range(max(1, len(words) - length + 1))}


class OverlapFilter:
    """Finds records that share a run of ``length`` words with any prompt of ``paths`` (JSONL:
    prompt, turns, messages).

    A prompt shorter than that is compared as a whole with the user's turns, so that it is found
    only where it stands alone. Raises ArenaError where there is no prompt.
    """

    def __init__(self, paths: Iterable[str | Path], length: int = 8):
        self.length, paths = length, list(paths)
        self.runs: set[tuple[str, ...]] = set()
        for record in read_records(paths, ASKED):
            for text in user_texts(record):
                self.runs |= word_runs(text, length)
        if not self.runs:
            raise ArenaError(
                f"{', '.join(map(str, paths))}: no prompt to exclude; expected a JSON object a line"
            )

    def hits(self, record: dict) -> set[tuple[str, ...]]:
        """The shared runs of one record; empty if it is clean."""
        texts = (
            [all_text(record)]
            if "text" in record
            else [m["content"] for m in record.get("messages", [])]
        )
        return set().union(*(word_runs(text, self.length) & self.runs for text in texts))

    def clean(self, records: Iterable[dict]) -> tuple[list[dict], int]:
        """(records without a hit, number of records dropped)."""
        kept, dropped = [], 0
        for record in records:
            if self.hits(record):
                dropped += 1
            else:
                kept.append(record)
        return kept, dropped
