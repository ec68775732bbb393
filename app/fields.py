"""JSON that anybody may have written: every value is checked as it is taken, and what is wrong is
named.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

LARGEST = 2**53  # of the whole numbers that every JSON reader keeps exact
DEEPEST = 8  # levels of objects and lists in free-form data
T = TypeVar("T")


class Damage(ValueError):
    """What is wrong with a piece of JSON, in words."""


class Fields:
    """The fields of one JSON object, by type. Every getter raises Damage naming a field that is
    missing or not what it has to be.
    """

    def __init__(self, data: Any, name: str):
        if not isinstance(data, dict):
            raise Damage(f"{name} is {shown(data)}, not an object")
        self.data = data
        self.name = name

    def __contains__(self, key: str) -> bool:
        return self.data.get(key) is not None

    def take(self, key: str) -> Any:
        """A field as it is, unchecked."""
        if key not in self.data:
            raise Damage(f"{self.name} has no {key!r}")
        return self.data[key]

    def optional(self, key: str, read: Callable[..., T], **options: Any) -> T | None:
        """None for a field that is missing or null, else ``read(key, **options)``."""
        return read(key, **options) if key in self else None

    def wrong(self, key: str, expected: str) -> Damage:
        return Damage(f"{key!r} of {self.name} is {shown(self.data[key])}, not {expected}")

    def whole(self, key: str, low: int = 0, high: int = LARGEST) -> int:
        value = self.take(key)
        if type(value) is not int or not low <= value <= high:
            raise self.wrong(key, f"a whole number from {low} to {high}")
        return value

    def real(self, key: str, low: float = 0.0, high: float = LARGEST) -> float:
        value = self.take(key)
        if type(value) not in (int, float) or not low <= value <= high:  # NaN is not, either
            raise self.wrong(key, f"a number from {low:g} to {high:g}")
        return float(value)

    def ratio(self, key: str) -> float:
        """A number of 0 or more; null is NaN."""
        return self.real(key) if self.take(key) is not None else math.nan

    def flag(self, key: str) -> bool:
        value = self.take(key)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def text(self, key: str) -> str:
        value = self.take(key)
        if not is_text(value):
            raise self.wrong(key, "a text")
        return value

    def one_of(self, key: str, known: Sequence[str]) -> str:
        value = self.take(key)
        if not isinstance(value, str) or value not in known:
            raise self.wrong(key, f"one of {', '.join(known)}")
        return value

    def items(self, key: str, most: int) -> list:
        value = self.take(key)
        if not isinstance(value, list):
            raise self.wrong(key, "a list")
        if len(value) > most:
            raise Damage(f"{key!r} of {self.name} has {len(value)} entries, more than {most}")
        return value

    def texts(self, key: str, most: int) -> list[str]:
        values = self.items(key, most)
        if not all(map(is_text, values)):
            raise self.wrong(key, "a list of texts")
        return values

    def wholes(self, key: str, most: int, low: int = 0, high: int = LARGEST) -> list[int]:
        values = self.items(key, most)
        if values and (set(map(type, values)) != {int} or min(values) < low or max(values) > high):
            raise self.wrong(key, f"a list of whole numbers from {low} to {high}")
        return values

    def reals(self, key: str, count: int, low: float, high: float) -> np.ndarray:
        """float32 [count]; null is NaN."""
        values = self.items(key, count)
        if len(values) != count:
            raise Damage(f"{key!r} of {self.name} has {len(values)} entries, not {count}")
        known = [value for value in values if value is not None]
        if not set(map(type, known)) <= {int, float} or not all(low <= v <= high for v in known):
            raise self.wrong(key, f"a list of numbers from {low:g} to {high:g}")
        return np.array([math.nan if v is None else v for v in values], dtype=np.float32)

    def fields(self, key: str) -> Fields:
        return Fields(self.take(key), f"{key!r} of {self.name}")


def is_text(value: Any) -> bool:
    """A string that can be sent as UTF-8: without half a surrogate pair."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_plain(value: Any, name: str, depth: int = 0) -> None:
    """Raise Damage unless ``value`` is data that any JSON reader takes, and not deeply nested."""
    if depth > DEEPEST:
        raise Damage(f"{name} is nested more than {DEEPEST} levels deep")
    if isinstance(value, dict):
        for key, entry in value.items():
            check_plain(key, f"a name in {name}", depth + 1)
            check_plain(entry, name, depth + 1)
    elif isinstance(value, list):
        for entry in value:
            check_plain(entry, name, depth + 1)
    elif not (
        value is None
        or isinstance(value, bool)
        or is_text(value)
        or (isinstance(value, int | float) and -LARGEST <= value <= LARGEST)
    ):
        raise Damage(f"{name} holds {shown(value)}, which is no plain text or number")


def shown(value: Any) -> str:
    """A value as an error may name it: short, on one line, plain ASCII."""
    if isinstance(value, dict | list):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)} entries"
    if type(value) is int and abs(value) > LARGEST:  # Python may refuse to print it
        return "a huge number"
    text = ascii(value[:40] if isinstance(value, str) else value)
    return text if len(text) <= 40 else f"{text[:37]}..."
