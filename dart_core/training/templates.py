"""User turns from templates: sentences with slots, filled from lists of words.

Ours are templates.json beside this file. A file of one's own looks the same: ``{"templates":
["Explain {topic} in {count} sentences."], "topic": ["tides", …], "count": ["two", "five"]}``.
"""

from __future__ import annotations

import random
import string
from collections.abc import Mapping, Sequence
from pathlib import Path

from dart_core.errors import ArenaError, in_words
from dart_core.json_file import read_object

OWN = Path(__file__).with_name("templates.json")


class Templates:
    """Draws user turns. ``lists``: "templates", and a list of words for every slot in them."""

    def __init__(self, lists: Mapping[str, Sequence[str]], source: str = "templates"):
        self.lists = lists
        if not lists.get("templates"):
            raise ArenaError(f'{source} has no list "templates" of sentences with {{slots}}')
        for template in lists["templates"]:
            for slot in _slots(template, source):
                if not lists.get(slot):
                    raise ArenaError(f"{source}: no list {slot!r}, which {template!r} needs")

    @classmethod
    def read(cls, path: str | Path) -> Templates:
        """Those of a JSON file. Raises ArenaError that says what is wrong with it."""
        try:
            lists = read_object(Path(path))
        except (OSError, ValueError) as error:
            raise ArenaError(f"templates {path} cannot be read: {in_words(error)}") from error
        if not all(
            isinstance(words, list) and all(isinstance(word, str) for word in words)
            for words in lists.values()
        ):
            raise ArenaError(f"{path}: expected an object of lists of texts")
        return cls(lists, str(path))

    def draw(self, generator: random.Random) -> str:
        """One user turn. A slot that comes twice is filled twice."""
        template = generator.choice(self.lists["templates"])
        return "".join(
            text + (generator.choice(self.lists[slot]) if slot else "")
            for text, slot, _, _ in string.Formatter().parse(template)
        )


def _slots(template: str, source: str) -> list[str]:
    try:
        return [slot for _, slot, _, _ in string.Formatter().parse(template) if slot is not None]
    except ValueError as error:
        raise ArenaError(f"{source}: {template!r}: {error}") from None
