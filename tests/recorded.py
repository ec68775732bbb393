"""A recorded run for tests: three scripted engines, one text that parts from the others, a verdict,
pruned candidates, and markup and formulas where texts may be.
"""

from __future__ import annotations

import json
import math
import random
import threading
from dataclasses import replace
from typing import Any

import numpy as np
from scripted import ScriptedDetokenizer, ScriptedTokenizer, steps_of

from app.race import Judged, Lane, Moved, race
from app.recording import Recording
from dart_core.step import SizeChoice, Step
from dart_core.tree import Candidates

WORDS = [" sky", " is", " blue", "=1+1", "<b>", "@x", " because"]
TEXT = "The sky is blue<b> because 🎉é =1+1\n-3\n@x is blue because the sky is."
TOKENIZER = ScriptedTokenizer(WORDS)
HEADER: dict[str, Any] = {
    "created": "2026-11-29T12:00:00+00:00",
    "facts": {
        "target": "scripted",
        "device": "cpu",
        "dtype": "float32",
        "dart": "scripted/dart",
        "eagle3": "scripted/eagle3",
        "versions": {"python": "3", "torch": "0"},
    },
    "settings": {
        "max_new_tokens": 64, "temperature": 0.7, "top_p": 0.9, "top_k": 0, "seed": 7,
        "tree_budget": 16, "ngram": "small", "ngram_weight": 0.5, "beam": 20, "eagle3_depth": 7,
        "eagle3_top_k": 10, "max_length": 1024,
    },
    "engines": ["dart", "eagle3", "ar"],
    "at_once": True,
    "turns": [["Hello?", "Hello."]],
    "prompt": "Why is\nthe <i>sky</i> blue?",
    "prompt_ids": [72, 105],
    "baseline": {"tokens_per_second": 11.5, "source": "plain decoding at warm-up"},
}  # fmt: skip


def recording(text: str = TEXT, *, at_once: bool = True, engines=tuple(HEADER["engines"])):
    """A run over ``engines``; EAGLE3's text differs from its tenth token on."""
    ids = TOKENIZER.encode(text)
    scripts = {
        "dart": steps_of(ids, [3, 1, 4], seconds=0.05, extra=[[ids[1], ids[2]], [ids[3]]]),
        "eagle3": steps_of([*ids[:9], ids[9] ^ 1, *ids[10:]], [2], seconds=0.06, backend="torch"),
        "ar": steps_of(ids, [1], seconds=0.04, backend="none"),
    }
    rng = random.Random(0)
    dart = [_varied(step, rng) for step in scripts["dart"]]
    reasons = (SizeChoice(60, 1.875, 1.25), SizeChoice(0, 1.0, 1.0))
    chosen = [replace(step, choice=reasons[step.index % 2]) for step in dart[2:]]
    scripts["dart"] = [dart[0], _with_pool(dart[1]), *chosen]
    lanes = [
        Lane(name, lambda name=name: iter(scripts[name]), ScriptedDetokenizer(TOKENIZER))
        for name in engines
    ]
    events = list(race(lanes, stop=threading.Event(), at_once=at_once))
    if {"dart", "eagle3"} <= set(engines):
        events.append(Judged("eagle3", "dart", 9, "tie", "a <i>rounding</i> tie."))
    header = {**json.loads(json.dumps(HEADER)), "engines": list(engines), "at_once": at_once}
    return Recording.of(header, events, lambda token: TOKENIZER.decode([token]))


def _varied(step: Step, rng: random.Random) -> Step:
    """The step with scores and n-gram probabilities of all digits, some of them unknown."""
    if step.tree is None:
        return step
    count = len(step.tree)
    ngram = [rng.choice([math.nan, rng.random()]) for _ in range(count)]
    scores = [-10 * rng.random() for _ in range(count)]
    return replace(
        step,
        tree=replace(
            step.tree, ngram=np.float32(ngram), scores=np.float32(scores),
            probabilities=np.float32([rng.random() for _ in range(count)]),
        ),
    )  # fmt: skip


def _with_pool(step: Step) -> Step:
    """The step with what its search pruned: everything in the tree, and two candidates more."""
    tree = step.tree
    parents = [*(tree.parents[1:] - 1), -1, 0]
    pool = Candidates(
        np.array([*tree.tokens[1:], 300 % len(TOKENIZER.vocabulary), 65], dtype=np.int64),
        np.array(parents, dtype=np.int32),
        np.array([*tree.scores[1:], -11.25, math.nan], dtype=np.float32),
        np.array([*range(1, len(tree)), -1, -1], dtype=np.int32),
    )
    return replace(step, candidates=pool)


def moves(events, engine: str | None = None) -> list[Moved]:
    return [e for e in events if isinstance(e, Moved) and engine in (None, e.engine)]
