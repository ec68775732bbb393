"""Texts that are costly to make and asked for more than once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable


class KeptTexts:
    """Keeps what was made, ``most`` characters in all: of more, the oldest are forgotten. An empty
    text is not kept: of what there is nothing, there may be any number.
    """

    def __init__(self, most: int):
        self._most = most
        self._texts: dict[Hashable, str] = {}  # the newest last
        self._lock = threading.Lock()

    def text(self, key: Hashable, make: Callable[[], str]) -> str:
        """The text of ``key``, made if it is not kept."""
        with self._lock:
            kept = self._texts.pop(key, None)
        text = make() if kept is None else kept
        if not text:
            return ""
        with self._lock:
            self._texts[key] = text
            characters = sum(map(len, self._texts.values()))
            while characters > self._most:
                oldest = next(iter(self._texts))
                characters -= len(self._texts.pop(oldest))
        return text
