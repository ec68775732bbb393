"""The page's controls: one table of names, ranges and explanations, the check of what a visitor
asks for, and what a link may set.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from app.fields import is_text
from app.lane import LABELS
from dart_core.errors import ArenaError

MAX_PROMPT = 20_000  # characters
MAX_ANSWER = 32_768  # tokens: three such answers are still a recording that can be loaded
MAX_SEED = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Knob:
    """One number: its range, its default and what it does, in a sentence."""

    name: str
    label: str
    info: str
    minimum: float
    maximum: float
    default: float | None
    step: float = 1
    optional: bool = False

    @property
    def whole(self) -> bool:
        return self.step == 1

    def read(self, value: Any) -> Any:
        """``value`` as a number where it is one: an optional knob is a text box, empty for None."""
        if self.optional and isinstance(value, str):
            text = value.strip()
            return None if not text else int(text) if _is_count(text) else text
        return value

    def problem(self, value: Any) -> str:
        """What is wrong with ``value``, "" if nothing is."""
        value = self.read(value)
        if value is None:
            return "" if self.optional else f"{self.label}: a number is needed."
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not math.isfinite(value):
            return f"{self.label}: {value!r:.40} is not a number."
        if self.whole and value != int(value):
            return f"{self.label}: {value:g} is not a whole number."
        if not self.minimum <= value <= self.maximum:
            return f"{self.label}: {value:.10g} is outside {self.minimum:g} to {self.maximum:.10g}."
        return ""

    def clean(self, value: Any) -> Any:
        """A value without problems as an int, a float or None."""
        value = self.read(value)
        return value if value is None else int(value) if self.whole else float(value)

    def parse(self, text: str) -> Any:
        """What a link says, as the component would have it; what is no number stays text."""
        if self.optional:
            return text
        try:
            return int(text) if _is_count(text.strip().removeprefix("-")) else float(text)
        except ValueError:
            return text


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several: ``options`` are (label, value)."""

    name: str
    label: str
    info: str
    options: tuple[tuple[str, str], ...]
    default: str

    def problem(self, value: Any) -> str:
        """What is wrong with ``value``, "" if nothing is."""
        known = [option for _, option in self.options]
        if value in known:
            return ""
        return f"{self.label}: {value!r:.40} is none of {', '.join(filter(None, known))}."

    def clean(self, value: Any) -> str:
        return value

    def parse(self, text: str) -> str:
        """What a link says."""
        return text


@dataclass(frozen=True, slots=True)
class Switch:
    """On or off."""

    name: str
    label: str
    info: str
    default: bool = False

    def problem(self, value: Any) -> str:
        """What is wrong with ``value``, "" if nothing is."""
        return "" if isinstance(value, bool) else f"{self.label}: {value!r:.40} is not on or off."

    def clean(self, value: Any) -> bool:
        return value

    def parse(self, text: str) -> Any:
        """What a link says."""
        return {"true": True, "false": False}.get(text, text)


Control = Knob | Choice | Switch
SLOTS = ("first", "second", "third")  # the panels, and the controls that say who runs in them


def controls(
    engines: Sequence[str],
    *,
    max_new_tokens: int = 512,
    max_length: int = 2048,
    tree_budget: int = 60,
    auto_budget: bool = True,
    ngrams: Sequence[str] = (),
    thinks: bool = False,
) -> tuple[Control, ...]:
    """Every setting of a page: who runs in its panels, then how.

    engines: the loaded ones, in the order their panels prefer. max_new_tokens, tree_budget,
    auto_budget: what the page starts with; max_length: what the context holds. ngrams: the loaded
    n-grams, the default first. A control without a choice is left out.
    """
    longest = min(max_length - 1, MAX_ANSWER)
    racers = tuple((LABELS[engine], engine) for engine in engines)
    nobody = ("–", "")
    panels = tuple(
        Choice(
            slot,
            f"{slot.capitalize()} panel",
            "The engine that runs in this panel.",
            racers if place == 0 else (*racers, nobody),
            engines[place] if place < min(2, len(engines)) else "",
        )
        for place, slot in enumerate(SLOTS)
    )
    mode = Choice(
        "mode",
        "The engines run",
        "At once: the engine whose own clock is behind moves next, so each grows as if it had the "
        "device alone. One after the other: for those who doubt it.",
        (("At once", "at-once"), ("One after the other", "in-turn")),
        "at-once",
    )
    thinking = Switch(
        "thinking",
        "Thinking",
        "Lets the model think before it answers. Longer texts, and easier ones to draft for.",
    )
    ngram = Choice(
        "ngram",
        "n-gram",
        "The n-gram that DART's search listens to. Off: the draft head alone.",
        (*((name, name) for name in ngrams), ("off", "off")),
        ngrams[0] if ngrams else "off",
    )
    weight = Knob(
        "ngram_weight",
        "n-gram weight",
        "How much DART's search listens to the n-gram. 0 trusts the draft head alone.",
        0,
        1,
        0.5,
        0.05,
    )
    return (
        *panels,
        mode,
        *([thinking] if thinks else []),
        Knob(
            "max_new_tokens",
            "Max new tokens",
            "Longest answer. Short answers (under about 20) leave drafting nothing to gain.",
            1,
            longest,
            min(max_new_tokens, longest),
        ),
        Knob(
            "temperature",
            "Temperature",
            "0 always takes the likeliest token. Higher is more varied, and harder to draft for.",
            0,
            1.5,
            0,
            0.05,
        ),
        Knob(
            "top_p",
            "Top-p",
            "Samples only among the likeliest tokens that together reach this share. 1 is off.",
            0,
            1,
            1,
            0.01,
        ),
        Knob(
            "top_k", "Top-k", "Samples only among this many likeliest tokens. 0 is off.", 0, 200, 0
        ),
        Knob(
            "seed",
            "Seed",
            "The same seed gives the same text from every engine. Empty draws one.",
            0,
            MAX_SEED,
            None,
            optional=True,
        ),
        Knob(
            "tree_budget",
            "Tree budget",
            "Draft tokens verified per step, or the most of them where each step chooses. Larger "
            "trees are accepted further and cost more.",
            1,
            256,
            tree_budget,
        ),
        Switch(
            "auto_budget",
            "Choose the tree budget at each step",
            "Auto: each step verifies as many drafts as pay, by what a verify pass costs here and "
            "how many were accepted. Off: the tree budget, always.",
            auto_budget,
        ),
        *((ngram, weight) if ngrams else ()),
        Knob(
            "beam", "Beam", "Candidates DART's search keeps at each depth of its tree.", 1, 64, 20
        ),
        Knob(
            "eagle3_depth",
            "EAGLE3 depth",
            "Head passes per step for EAGLE3; its longest draft is one token more.",
            0,
            16,
            7,
        ),
        Knob("eagle3_top_k", "EAGLE3 top-k", "Children EAGLE3 considers per node.", 1, 32, 10),
        Knob(
            "prompt_lookup",
            "Prompt lookup",
            "Of either tree, up to this many tokens are copied from the text so far: what followed "
            "when it last ended the same way. 0 drafts as published.",
            0,
            32,
            0,
        ),
        Switch(
            "candidates",
            "Keep pruned candidates",
            "Also records what the search threw away, for the tree view. EAGLE3 then drafts its "
            "whole pool, which slows it.",
        ),
    )


def check_prompt(prompt: Any) -> str:
    """What is wrong with the prompt, "" if nothing is."""
    if not isinstance(prompt, str) or not prompt.strip():
        return "Write a prompt first."
    if len(prompt) > MAX_PROMPT:
        return f"This prompt has {len(prompt):,} characters; the page takes up to {MAX_PROMPT:,}."
    if not is_text(prompt):
        return "This prompt holds half a character, as a cut emoji leaves it: delete it."
    return ""


def check_panels(values: Mapping[str, Any]) -> str:
    """What is wrong with who runs in the panels, "" if nothing is."""
    chosen = [values[slot] for slot in SLOTS if values.get(slot)]
    twice = next((engine for engine in chosen if chosen.count(engine) > 1), None)
    return f"{LABELS.get(twice, twice)} is in two panels; choose another for one." if twice else ""


def checked(table: Sequence[Control], values: Mapping[str, Any]) -> dict[str, Any]:
    """``values`` by name, numbers as ints and floats. Raises ArenaError naming the first that is
    out of range.
    """
    problems = [control.problem(values[control.name]) for control in table]
    if problem := next(filter(None, [*problems, check_panels(values)]), ""):
        raise ArenaError(problem)
    return {control.name: control.clean(values[control.name]) for control in table}


def read_link(
    table: Sequence[Control], fragment: str
) -> tuple[str | None, dict[str, Any], list[str]]:
    """A link's fragment (``#prompt=…&temperature=0.7``) as (prompt or None, values by name, what
    was not understood).
    """
    known = {control.name: control for control in table}
    prompt, values, refused = None, {}, []
    try:
        fields = parse_qsl(fragment.lstrip("#"), keep_blank_values=True, max_num_fields=64)
    except ValueError:
        return None, {}, ["This link has more settings than the page knows."]
    for name, text in fields:
        if name == "prompt":
            prompt = text[:MAX_PROMPT]
        elif name in known:
            value = known[name].parse(text)
            if problem := known[name].problem(value):
                refused.append(problem)
            else:
                values[name] = value
        elif name not in ("presenter", "__theme"):
            refused.append(f"{name!r:.40} is no setting of this page.")
    return prompt, values, refused


def _is_count(text: str) -> bool:
    """Digits alone, and no more than a number of ours may have."""
    return text.isdecimal() and len(text) <= 18
