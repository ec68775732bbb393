"""Texts that are costly to make and asked for more than once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from sys import getsizeof


class KeptTexts:
    """Keeps what was made, ``most`` bytes of memory in all, or the newest alone if that is larger:
    of more, the oldest are forgotten. An empty text is not kept: of what there is nothing, there
    may be any number.
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
            held = sum(map(getsizeof, self._texts.values()))
            while held > self._most and len(self._texts) > 1:
                oldest = next(iter(self._texts))
                held -= getsizeof(self._texts.pop(oldest))
        return text
