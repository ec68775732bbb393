"""An engine whose steps are given: no model, no tokenizer files, exact timing."""

from __future__ import annotations

import codecs
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from dart_core.check import Verdict
from dart_core.errors import ArenaError
from dart_core.step import StageSeconds, Step
from dart_core.tree import DraftTree

FACTS = {
    "target": "scripted",
    "device": "cpu",
    "dtype": "float32",
    "versions": {"python": "3", "torch": "0"},
    "dart": "scripted/dart",
    "eagle3": "scripted/eagle3",
}


class ScriptedTokenizer:
    """A vocabulary of byte strings; a text becomes ids by longest match over it, single bytes as
    the last resort.
    """

    def __init__(self, words: Iterable[str | bytes] = ()):
        given = [word if isinstance(word, bytes) else word.encode() for word in words]
        self.vocabulary = [bytes([value]) for value in range(256)]
        self.vocabulary += [word for word in dict.fromkeys(given) if len(word) > 1]
        self.ids = {word: index for index, word in enumerate(self.vocabulary)}

    def encode(self, text: str | bytes) -> list[int]:
        data, ids, longest = text if isinstance(text, bytes) else text.encode(), [], 64
        while data:
            size = next(n for n in range(min(longest, len(data)), 0, -1) if data[:n] in self.ids)
            ids.append(self.ids[data[:size]])
            data = data[size:]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(self.vocabulary[token] for token in ids).decode("utf-8", "replace")


class ScriptedDetokenizer:
    """The incremental decode of a ScriptedTokenizer."""

    def __init__(self, tokenizer: ScriptedTokenizer):
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: Sequence[int]) -> str:
        return "".join(self._decoder.decode(self._tokenizer.vocabulary[token]) for token in ids)

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


def step(
    index: int,
    tokens: Sequence[int],
    *,
    root: int = 0,
    seconds: float = 0.01,
    accepted: int | None = None,
    extra: Sequence[Sequence[int]] = (),
    finish: str | None = None,
    backend: str = "native",
) -> Step:
    """A prefill (index 0) or a verify step that emits ``tokens``, the last of them the target's
    own.

    accepted: how many are accepted drafts (all but the last, unless said). extra: rejected draft
    paths from the root.
    """
    if index == 0:
        stages = StageSeconds(0.0, 0.0, seconds, 0.0)
        return Step(
            0, "prefill", tuple(tokens), 0, 0, None, (), None, stages, backend, None, finish, None
        )
    accepted = len(tokens) - 1 if accepted is None else accepted
    nodes, parents = [root, *tokens[:accepted]], [-1, *range(accepted)]
    for path in extra:
        parent = 0
        for token in path:
            parents.append(parent)
            parent = len(nodes)
            nodes.append(token)
    chances = [1.0, *(1 / (2 + place) for place in range(len(nodes) - 1))]
    tree = DraftTree.of(
        nodes, parents, scores=[-0.1 * n for n in range(len(nodes))], probabilities=chances
    )
    stages = StageSeconds(0.2 * seconds, 0.1 * seconds, 0.6 * seconds, 0.1 * seconds)
    bonus = tokens[accepted] if accepted < len(tokens) else None
    path = tuple(range(accepted + 1))
    return Step(
        index, "verify", tuple(tokens), len(nodes) - 1, accepted, tree, path, bonus, stages,
        backend, None, finish, None,
    )  # fmt: skip


def steps_of(
    ids: Sequence[int],
    sizes: Sequence[int],
    *,
    seconds: float = 0.01,
    prefill: float = 0.03,
    extra: Sequence[Sequence[int]] = (),
    backend: str = "native",
    finish: str = "stop",
) -> list[Step]:
    """``ids`` as a prefill of one token and verify steps of ``sizes`` in turn, over and over."""
    made = [
        step(0, ids[:1], seconds=prefill, backend=backend, finish=finish if len(ids) == 1 else None)
    ]
    at = 1
    while at < len(ids):
        size = sizes[(len(made) - 1) % len(sizes)]
        last = at + size >= len(ids)
        made.append(
            step(
                len(made),
                ids[at : at + size],
                root=ids[at - 1],
                seconds=seconds,
                extra=extra,
                finish=finish if last else None,
                backend=backend,
            )
        )
        at += size
    return made


@dataclass
class ScriptedEngine:
    """Has what the page asks of an Engine. ``scripts``: engine -> steps, or a function of the
    prompt's text.

    An exception in a script's steps is raised there. pace: real seconds slept per second of a step,
    or a function of the prompt.
    """

    scripts: dict[str, Sequence[Step | Exception] | Callable[[str], Sequence[Step | Exception]]]
    tokenizer: ScriptedTokenizer = field(default_factory=ScriptedTokenizer)
    facts: dict = field(default_factory=lambda: dict(FACTS))
    pace: float | Callable[[str], float] = 0.0
    opened: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    moves: list[tuple[str, int]] = field(default_factory=list)
    asked: list[list[dict]] = field(default_factory=list)  # the messages of every run
    thought: list[bool] = field(default_factory=list)  # whether it was let think
    ngrams: tuple[str, ...] = ()
    thinks: bool = False
    verify_cost: None = None  # of no use: sizes are scripted
    verdict: Verdict | Exception | Callable[[], Verdict] | None = None  # what ``judge`` says

    @property
    def drafters(self) -> dict[str, None]:
        return dict.fromkeys(self.scripts)

    def chat_ids(self, messages, *, enable_thinking=False, system_prompt=None) -> list[int]:
        self.asked.append([dict(message) for message in messages])
        self.thought.append(enable_thinking)
        return self.tokenizer.encode(messages[-1]["content"])

    def judge(self, prompt_ids, plain, steps, sampling) -> Verdict:
        verdict = self.verdict() if callable(self.verdict) else self.verdict
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    def detokenizer(self) -> ScriptedDetokenizer:
        return ScriptedDetokenizer(self.tokenizer)

    def stream(self, prompt_ids, engine="dart", settings=None) -> Iterator[Step]:
        script = self.scripts[engine]
        prompt = self.tokenizer.decode(prompt_ids)
        steps = script(prompt) if callable(script) else script
        pace = self.pace(prompt) if callable(self.pace) else self.pace
        if steps and isinstance(steps[0], ArenaError):
            raise steps[0]
        return self._play(engine, steps, pace)

    def _play(self, engine: str, steps, pace: float) -> Iterator[Step]:
        self.opened.append(engine)
        try:
            for move in steps:
                if isinstance(move, Exception):
                    raise move
                time.sleep(pace * move.seconds.total)
                self.moves.append((engine, move.index))
                yield move
        finally:
            self.closed.append(engine)
