"""Prompt sets against engines and their settings: acceptance by replay, speed by real runs.

Acceptance: the target answers a prompt once, then every variant's draft trees are replayed along
that text. Speed: every engine runs the prompt, one after the other, each on its own clock; who runs
first changes from prompt to prompt. Sets take turns, so that what an interrupted bench has measured
is of all of them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest

from dart_core.bench_figures import Counts
from dart_core.bench_texts import TextCache, TextWriter, seen_by
from dart_core.bench_variants import HeadDrafter, Variant, drafted_taps, replays
from dart_core.engine import Engine, GenerationSettings
from dart_core.metrics import Tally
from dart_core.prompts import Prompt
from dart_core.step import Step
from dart_core.text import answer_text, raw_prompt_ids
from dart_core.training.replay import Passage

WARM_UP_TOKENS = 8

Encoder = Callable[[list[dict[str, str]]], list[int]]


@dataclass(slots=True)
class Timed:
    """One engine's real runs of one prompt's turns: tokens and own seconds of verify steps."""

    tokens: int = 0
    seconds: float = 0.0
    equality: Counter[str] = field(default_factory=Counter)

    @property
    def rate(self) -> float | None:
        return self.tokens / self.seconds if self.tokens else None


@dataclass(slots=True)
class Result:
    """One prompt, all its turns: texts are (prompt ids, answer ids)."""

    set: str
    name: str
    texts: list[tuple[list[int], list[int]]] = field(default_factory=list)
    replays: dict[tuple[str, int], Counts] = field(default_factory=dict)
    timed: dict[str, Timed] = field(default_factory=dict)


class Bench:
    """The measuring. ``results`` holds the prompts whose replays are done, all variants of each.

    names: the engines to time, plain decoding first. drafters: by name, what is replayed; more
    heads than the engine's own may be there. cache: where texts are kept beyond this run.
    """

    def __init__(
        self,
        engine: Engine,
        names: Sequence[str],
        drafters: Mapping[str, HeadDrafter],
        chosen: Sequence[Variant],
        budgets: Sequence[int],
        settings: GenerationSettings,
        log: Callable[[str], None],
    ) -> None:
        self.engine, self.names, self.drafters = engine, list(names), dict(drafters)
        self.variants, self.budgets = list(chosen), list(budgets)
        self.settings, self.log = settings, log
        self.taps = drafted_taps(self.drafters.values())
        self.cache: TextCache | None = None
        self.results: list[Result] = []
        self.tallies: dict[str, Tally] = {}  # real runs by engine
        self._writer = TextWriter(engine, settings, self.taps)
        self._eos = settings.eos_token_ids
        if not settings.ignore_eos:
            self._eos |= engine.eos_token_ids

    def replay(
        self,
        sets: Mapping[str, Sequence[Prompt]],
        *,
        raw: bool = False,
        system_prompt: str | None = None,
        enable_thinking: bool = False,
    ) -> None:
        """Answer all prompts and replay every variant's trees along the answers."""
        chat_ids = partial(
            self.engine.chat_ids, system_prompt=system_prompt, enable_thinking=enable_thinking
        )
        raw_ids = partial(raw_prompt_ids, self.engine.tokenizer) if raw else None
        prompts = in_turns([(name, prompt) for prompt in each] for name, each in sets.items())
        pace = Pace(len(prompts))
        for name, prompt in prompts:
            result = Result(name, prompt.name)
            prompt.run(chat_ids, raw_ids, partial(self._replay_turn, result))
            self.results.append(result)
            self.log(f"τ {pace.next()}: {name}/{prompt.name}: {self._shown(result)}")

    def _replay_turn(self, result: Result, label: str, prompt_ids: list[int]) -> str:
        passage = self._text(prompt_ids)
        answer = passage.tokens[passage.prompt :].tolist()
        result.texts.append((prompt_ids, answer))
        for name, drafter in self.drafters.items():
            found = replays(
                drafter,
                seen_by(passage, self.taps, drafter.taps),
                self._eos,
                [variant for variant in self.variants if variant.engine == name],
                self.budgets,
            )
            for key, each in found.items():
                result.replays.setdefault(key, Counts()).add(each)
        return answer_text(self.engine.tokenizer, answer, self.settings.stop)

    def _text(self, prompt_ids: list[int]) -> Passage:
        passage = self.cache.get(prompt_ids) if self.cache else None
        if passage is None:
            passage = self._writer.write(prompt_ids)
            if self.cache:
                self.cache.put(passage)
        return passage

    def _shown(self, result: Result) -> str:
        tokens = sum(len(answer) for _, answer in result.texts)
        taus = [
            f"{variant.name} "
            + "/".join(_tau(result.replays[variant.name, budget]) for budget in self.budgets)
            for variant in self.variants
            if not variant.ablation
        ]
        return "; ".join([f"{tokens} tokens", *taus])

    def time(self, limit: int | None = None) -> None:
        """Run the first ``limit`` (all) of every set's replayed prompts with every engine."""
        sets: dict[str, list[Result]] = {}
        for result in self.results:
            sets.setdefault(result.set, []).append(result)
        chosen = in_turns(
            list(enumerate(each[:limit], number)) for number, each in enumerate(sets.values())
        )
        if not chosen:
            return
        warm_up = replace(self.settings, max_new_tokens=WARM_UP_TOKENS, stop=())
        for name in self.names:  # first forwards allocate and tune
            self.engine.generate(chosen[0][1].texts[0][0], name, warm_up)
        pace = Pace(len(chosen))
        for turn, result in chosen:
            self._time_prompt(result, in_rotation(self.names, turn))
            shown = [f"{name} {timed.rate or 0:.1f}" for name, timed in result.timed.items()]
            self.log(f"speed {pace.next()}: {result.set}/{result.name}: tok/s {', '.join(shown)}")

    def _time_prompt(self, result: Result, order: Sequence[str]) -> None:
        found = {name: Timed() for name in self.names}
        steps: dict[str, list[Step]] = {name: [] for name in self.names}
        for prompt_ids, answer in result.texts:
            runs = {name: self.engine.generate(prompt_ids, name, self.settings) for name in order}
            plain = runs["ar"]
            if plain.output_ids != answer:
                self.log(f"{result.name}: plain decoding now writes another text than was replayed")
            for name, run in runs.items():
                verdict = self.engine.judge(
                    prompt_ids, plain.steps, run.steps, self.settings.sampling
                )
                found[name].equality[verdict.status] += 1
                if verdict.status != "equal":
                    self.log(f"{result.name}: {name} {verdict.describe(self.engine.tokenizer)}")
                found[name].tokens += sum(len(step.tokens) for step in run.steps[1:])
                found[name].seconds += run.metrics["decode_seconds"]
                steps[name] += run.steps
        result.timed = found
        for name in self.names:
            tally = self.tallies.setdefault(name, Tally())
            for step in steps[name]:
                tally.add(step)


def in_rotation(names: Sequence[str], turn: int) -> list[str]:
    """The order of turn ``turn``: everyone is first, last and between equally often, and follows
    either neighbour.
    """
    rounds, start = divmod(turn, len(names))
    order = list(names) if rounds % 2 == 0 else list(names)[::-1]
    return order[start:] + order[:start]


def in_turns(groups: Iterable[Sequence]) -> list:
    """One of each group, then the next of each."""
    nothing = object()
    rows = zip_longest(*groups, fillvalue=nothing)
    return [each for row in rows for each in row if each is not nothing]


def _tau(counts: Counts) -> str:
    return f"{counts.tokens / counts.steps:.2f}" if counts.steps else "-"


class Pace:
    """How far a phase is, and how long it will still take."""

    def __init__(self, total: int) -> None:
        self.total, self.done, self.started = total, 0, time.monotonic()

    def next(self) -> str:
        """Another one is done."""
        self.done += 1
        left = (time.monotonic() - self.started) / self.done * (self.total - self.done)
        return f"{self.done} of {self.total}, {left / 60:.1f} min left"
