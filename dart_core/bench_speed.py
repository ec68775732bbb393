"""Decoding speed of everything a user could run instead: one run, prompt by prompt, in turns.

Contestants are transformers' own ``generate``, the engines, and the engines with other settings.
Each answers every prompt several times; who runs first changes from prompt to prompt and from
repeat to repeat. All have the same threads, the same prompt, the same limit and the same ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from dart_core.bench import WARM_UP_TOKENS, Pace, in_rotation, in_turns
from dart_core.bench_stock import LOOKUP_TOKENS, StockTarget
from dart_core.drafters import NGRAM_OFF, DraftSettings
from dart_core.engine import Engine, GenerationSettings
from dart_core.errors import ArenaError
from dart_core.generate import token_budget
from dart_core.metrics import Tally
from dart_core.prompts import Prompt
from dart_core.step import Step
from dart_core.text import answer_text, raw_prompt_ids

OWN_LOOKUP = 8  # nodes of the tree that the lookup contestants may copy


@dataclass(frozen=True, slots=True)
class Contestant:
    """One way to decode. engine: of ours; None: transformers' ``generate``, whose lookup is
    ``prompt_lookup_num_tokens``. extra: runs on request only.
    """

    name: str
    what: str
    engine: str | None = None
    draft: DraftSettings = DraftSettings()
    lookup: int | None = None
    extra: bool = False

    @property
    def drafts(self) -> bool:
        return self.lookup is not None or self.engine not in (None, "ar")


def contestants(
    engines: Sequence[str], draft: DraftSettings, budgets: Sequence[int] = ()
) -> dict[str, Contestant]:
    """All that can run with these engines, by name. budgets: further fixed tree budgets."""
    found = [
        Contestant("generate", "transformers' generate"),
        Contestant(
            "generate-lookup",
            f"transformers' generate, prompt_lookup_num_tokens={LOOKUP_TOKENS}",
            lookup=LOOKUP_TOKENS,
        ),
        Contestant("ar", "our plain decoding", "ar", draft),
    ]
    for engine in ("dart", "eagle3"):
        if engine in engines:
            found += _of_head(engine, draft, budgets)
    return {each.name: each for each in found}


def _of_head(engine: str, draft: DraftSettings, budgets: Sequence[int]) -> Iterator[Contestant]:
    title = {"dart": "DART", "eagle3": "EAGLE3"}[engine]
    fixed, auto = f"{title}, tree budget {draft.tree_budget}", f"{title}, tree budget auto"
    chooses = replace(draft, tree_budget=DraftSettings().tree_budget, auto_budget=True)
    copies = f", prompt lookup {OWN_LOOKUP}"

    def copying(settings: DraftSettings) -> DraftSettings:
        return replace(settings, prompt_lookup=OWN_LOOKUP)

    yield Contestant(engine, fixed, engine, draft)
    if engine == "dart":
        bare = replace(draft, ngram=NGRAM_OFF)
        yield Contestant("dart-no-ngram", f"{fixed}, no n-gram", engine, bare)
    yield Contestant(
        f"{engine}-lookup", fixed + copies, engine, copying(draft), extra=engine != "dart"
    )
    yield Contestant(f"{engine}-auto", auto, engine, chooses)
    yield Contestant(f"{engine}-auto-lookup", auto + copies, engine, copying(chooses), extra=True)
    for budget in budgets:
        if budget != draft.tree_budget:
            name, what = f"{engine}-{budget}", f"{title}, tree budget {budget}"
            yield Contestant(name, what, engine, replace(draft, tree_budget=budget))


def choose(possible: Mapping[str, Contestant], names: Sequence[str] | None) -> list[Contestant]:
    """The contestants called ``names`` (None: all but the extra ones), plain decoding always among
    them.

    Raises ArenaError for one that is unknown or whose engine is not loaded.
    """
    for name in names or ():
        if name not in possible:
            engine, _, budget = name.rpartition("-")
            own = possible.get(engine)
            if own is not None and budget == str(own.draft.tree_budget):
                raise ArenaError(
                    f"--contestants {name}: {engine} itself has tree budget {budget}, that of "
                    f"--tree-budget: name {engine}"
                )
            raise ArenaError(
                f"--contestants {name}: there is no such contestant here; there are "
                f"{', '.join(possible)}; a tree budget N of --tree-budgets adds dart-N and eagle3-N"
            )
    if not names:
        return [each for each in possible.values() if not each.extra]
    return [each for name, each in possible.items() if name in (*names, "ar")]


@dataclass(slots=True)
class Sample:
    """One repeat of one prompt, all its turns. tokens, steps, seconds: after each turn's first
    step. first_seconds: of each turn, to the first token.
    """

    tokens: int = 0
    steps: int = 0
    seconds: float = 0.0
    first_seconds: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float | None:
        return self.tokens / self.seconds if self.tokens else None


@dataclass(slots=True)
class Measured:
    """One prompt: the ids that each of its turns begins with, samples by contestant.

    texts: how many came out "equal" to plain decoding's, and otherwise. differences: where
    transformers' texts first differ from ours, position in the answer.
    """

    set: str
    name: str
    turns: list[list[int]]
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    texts: dict[str, Counter[str]] = field(default_factory=dict)
    differences: dict[str, list[int]] = field(default_factory=dict)


class StepLog:
    """All steps of a contestant: their metrics, and the steps themselves without their trees."""

    def __init__(self) -> None:
        self.tally = Tally()
        self.steps: list[Step] = []

    def add(self, steps: Sequence[Step]) -> None:
        for step in steps:
            self.tally.add(step)
            self.steps.append(replace(step, tree=None, path=(), candidates=None))


class SpeedBench:
    """The measuring. ``results`` holds every prompt that all contestants have run at least once.

    stock: needed only where a contestant is transformers' own. logs: of our engines' runs, by
    contestant.
    """

    def __init__(
        self,
        engine: Engine,
        stock: StockTarget | None,
        chosen: Sequence[Contestant],
        settings: GenerationSettings,
        log: Callable[[str], None],
    ) -> None:
        self.engine, self.stock, self.settings, self.log = engine, stock, settings, log
        self.contestants = {each.name: each for each in chosen}
        self.results: list[Measured] = []
        self.logs: dict[str, StepLog] = {}
        drafting = [each.draft for each in chosen if each.engine and each.drafts]
        self.budgets = sorted({d.tree_budget for d in drafting if not d.auto_budget})
        self._eos = settings.eos_token_ids
        if not settings.ignore_eos:
            self._eos |= engine.eos_token_ids

    def run(
        self,
        sets: Mapping[str, Sequence[Prompt]],
        repeats: int,
        *,
        raw: bool = False,
        system_prompt: str | None = None,
        enable_thinking: bool = False,
        done: Callable[[], None] = lambda: None,
    ) -> None:
        """Run every prompt ``repeats`` times with every contestant; ``done`` is called after each
        prompt.
        """
        chat_ids = partial(
            self.engine.chat_ids, system_prompt=system_prompt, enable_thinking=enable_thinking
        )
        raw_ids = partial(raw_prompt_ids, self.engine.tokenizer) if raw else None
        prompts = in_turns([(name, prompt) for prompt in each] for name, each in sets.items())
        all_turns = [self._turns(prompt, chat_ids, raw_ids) for _, prompt in prompts]
        self._warm_up(all_turns[0][0])
        measured = [
            Measured(name, prompt.name, turns)
            for (name, prompt), turns in zip(prompts, all_turns, strict=True)
        ]
        pace = Pace(len(measured) * repeats)
        names = list(self.contestants)
        for repeat in range(repeats):
            for number, result in enumerate(measured):
                # One place further on in every repeat, however many prompts there are.
                order = in_rotation(names, number + repeat * (len(measured) + 1))
                self._measure(result, order)
                if repeat == 0:
                    self.results.append(result)
                done()
                self.log(
                    f"speed {pace.next()}: {result.set}/{result.name}: tok/s "
                    + ", ".join(f"{n} {result.samples[n][-1].rate or 0:.1f}" for n in names)
                )

    def _turns(
        self,
        prompt: Prompt,
        chat_ids: Callable[[list[dict[str, str]]], list[int]],
        raw_ids: Callable[[str], list[int]] | None,
    ) -> list[list[int]]:
        """The ids each turn begins with: what comes before is plain decoding's answers.

        Raises ArenaError for a prompt that does not fit: before anything is measured.
        """
        turns: list[list[int]] = []
        count = 1 if prompt.ids is not None else len(prompt.turns)

        def answer(label: str, prompt_ids: list[int]) -> str:
            token_budget(len(prompt_ids), self.settings.max_new_tokens, self.settings.max_length)
            turns.append(prompt_ids)
            if len(turns) == count:
                return ""
            run = self.engine.generate(prompt_ids, "ar", self.settings)
            return answer_text(self.engine.tokenizer, run.output_ids, ())

        prompt.run(chat_ids, raw_ids, answer)
        return turns

    def _warm_up(self, prompt_ids: list[int]) -> None:
        """First forwards allocate and tune."""
        short = replace(self.settings, max_new_tokens=WARM_UP_TOKENS)
        for each in self.contestants.values():
            self.once(each, prompt_ids, short)

    def _measure(self, result: Measured, order: Sequence[str]) -> None:
        samples = {name: Sample() for name in order}
        texts: dict[str, Counter[str]] = {name: Counter() for name in order}
        differences: dict[str, list[int]] = {}
        steps: dict[str, list] = {name: [] for name in order}
        for prompt_ids in result.turns:
            runs = {
                name: self.once(self.contestants[name], prompt_ids, self.settings, samples[name])
                for name in order
            }
            plain = runs["ar"]
            for name, run in runs.items():
                if self.contestants[name].engine is None:
                    place = first_difference(plain.output_ids, run.tokens)
                    texts[name]["equal" if place is None else "different"] += 1
                    if place is not None:
                        differences.setdefault(name, []).append(place)
                    continue
                verdict = self.engine.judge(
                    prompt_ids, plain.steps, run.steps, self.settings.sampling
                )
                texts[name][verdict.status] += 1
                if verdict.status != "equal":
                    self.log(f"{result.name}: {name} {verdict.describe(self.engine.tokenizer)}")
                steps[name] += run.steps
        for name in order:  # at the end: an interrupted prompt leaves nothing by halves
            result.samples.setdefault(name, []).append(samples[name])
            result.texts.setdefault(name, Counter()).update(texts[name])
            result.differences.setdefault(name, []).extend(differences.get(name, []))
            if steps[name]:
                self.logs.setdefault(name, StepLog()).add(steps[name])

    def once(
        self,
        contestant: Contestant,
        prompt_ids: list[int],
        settings: GenerationSettings,
        sample: Sample | None = None,
    ) -> Any:
        """One run, a ``Generation`` or a ``StockRun``; its figures are added to ``sample``."""
        sample = Sample() if sample is None else sample
        if contestant.engine is None:
            if self.stock is None:
                raise ValueError(f"{contestant.name}: transformers' own decoding is not loaded")
            limit = token_budget(len(prompt_ids), settings.max_new_tokens, settings.max_length)
            stock = self.stock.generate(
                prompt_ids, max_new_tokens=limit, eos_token_ids=self._eos, lookup=contestant.lookup
            )
            sample.tokens += len(stock.tokens) - stock.first
            sample.steps += stock.steps
            sample.seconds += stock.seconds
            sample.first_seconds.append(stock.first_seconds)
            return stock
        settings = replace(settings, draft=contestant.draft)
        run = self.engine.generate(prompt_ids, contestant.engine, settings)
        sample.tokens += sum(len(step.tokens) for step in run.steps[1:])
        sample.steps += len(run.steps) - 1
        sample.seconds += run.metrics["decode_seconds"]
        sample.first_seconds.append(run.steps[0].seconds.total)
        return run


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """The first position where two texts differ, the end of one included; None where equal."""
    shorter = min(len(one), len(other))
    place = next((i for i in range(shorter) if one[i] != other[i]), shorter)
    return None if place == len(one) == len(other) else place
