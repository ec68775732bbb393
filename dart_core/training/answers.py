"""Conversations written by the target itself, in batches: what draft heads are trained on.

The first user turn comes from prompt files, or from templates, or from the target too: given its
chat template up to an open user turn, an instruction-tuned model writes a plausible question.
Further user turns always come from it. The output file grows by a batch at a time and a second call
goes on where the first one stopped.
"""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from dart_core.disk import disk_told, written_whole
from dart_core.errors import ArenaError
from dart_core.json_file import read_object
from dart_core.progress import ProgressBar, duration
from dart_core.training.data import ASKED, PROBE, ChatEncoder, read_records, user_texts
from dart_core.training.decoding import continue_prompts
from dart_core.training.fingerprints import GIVE_SAME, check_same
from dart_core.training.overlap import OverlapFilter
from dart_core.training.templates import Templates

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

GO_ON = "the same command goes on behind the last finished batch"
SHORTEST = 8  # tokens of an answer that was cut, or it is left out
FIRST = 64  # tokens that answers of the first batch get even where time is up: better than no text


@dataclass(frozen=True, slots=True)
class AnswerSettings:
    """conversations: how many to have in the file. minutes: how long to write it, all calls
    together. turns: user turns of each. greedy_share: fraction of conversations whose answers are
    greedy; the others are sampled at ``temperature``. template_share: fraction whose first turn is
    from a template where there are no prompts. max_length: tokens of a conversation at most.
    part: (i, n) writes every n-th batch, the i-th first, so that n machines write n files.
    made_from: who answers and what is asked, by name.
    """

    conversations: int
    turns: int = 1
    batch: int = 64
    max_new_tokens: int = 384
    max_question_tokens: int = 96
    max_length: int = 512
    greedy_share: float = 0.6
    template_share: float = 0.4
    temperature: float = 0.7
    minutes: float | None = None
    seed: int = 0
    part: tuple[int, int] = (0, 1)
    made_from: Mapping[str, str] = field(default_factory=dict)

    def lasting(self) -> dict:
        """What a second call must share with the first one."""
        return {
            "--turns": self.turns,
            "--batch": self.batch,
            "--max-new-tokens": self.max_new_tokens,
            "--max-length": self.max_length,
            "--greedy-share": self.greedy_share,
            "--template-share": self.template_share,
            "--temperature": self.temperature,
            "--seed": self.seed,
            "--part": "/".join(map(str, self.part)),
            **self.made_from,
        }


class _State:
    """How far the file is, in ``output``.state, so that a kill loses a batch at most. One process
    at a time may have it: what is in the file behind the last finished batch is cut.
    """

    def __init__(self, output: Path, settings: dict):
        self.output, self.path = output, output.with_suffix(output.suffix + ".state")
        self.batches, self.written, self.dropped, self.seconds = 0, 0, 0, 0.0
        self.settings = settings
        if not self.path.exists():
            if output.exists():
                raise ArenaError(
                    f"{output} exists but not its {self.path.name}: it is of another making; "
                    "choose another name or remove it"
                )
            return
        try:
            state = read_object(self.path)
            counts = [int(state[name]) for name in ("batches", "written", "dropped")]
            begun, seconds = dict(state.get("settings", {})), float(state.get("seconds", 0.0))
        except (ValueError, KeyError, TypeError) as error:
            raise ArenaError(
                f"{self.path} is damaged ({error}), so nobody knows how far {output} is: give "
                "another --output, or remove both"
            ) from error
        check_same(f"{output} was begun with", begun, settings, GIVE_SAME)
        self.batches, self.written, self.dropped = counts
        self.seconds = seconds
        self._cut()

    def _cut(self) -> None:
        """Drop what an interrupted write left behind the last finished batch. Raises ArenaError
        where the file lacks some of what was written to it.
        """
        found = 0
        with self.output.open("r+b") if self.output.exists() else BytesIO() as file:
            while found < self.written and file.readline().endswith(b"\n"):
                found += 1
            if found == self.written:
                file.truncate()
                return
        raise ArenaError(
            f"{self.output} holds {found} conversations, but {self.path.name} says that "
            f"{self.written} were written: put the file back, give another --output, or remove both"
        )

    def add(self, records: list[dict], dropped: int, seconds: float) -> None:
        """Append a finished batch."""
        if not self.path.exists():  # or a kill before the first one would leave a file of nobody's
            self._save()
        lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        with disk_told("answers", self.output, GO_ON), self.output.open("ab") as file:
            file.write(lines.encode(errors="backslashreplace"))
        self.batches += 1
        self.written += len(records)
        self.dropped += dropped
        self.seconds = seconds
        self._save()

    def _save(self) -> None:
        names = ("batches", "written", "dropped", "seconds", "settings")
        with disk_told("answers", self.output, GO_ON), written_whole(self.path) as partial:
            partial.write_text(json.dumps({name: getattr(self, name) for name in names}))


def write_answers(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    output: str | Path,
    settings: AnswerSettings,
    *,
    questions: Sequence[str] = (),
    templates: Templates | None = None,
    exclude: OverlapFilter | None = None,
    log: Callable[[str], None] | None = None,
) -> int:
    """Append conversations to ``output`` (JSONL) until it holds ``settings.conversations`` or time
    is up; answers that are being written then are kept as cut ones.

    questions: first user turns that are answered in order (``read_questions``). Without any,
    ``templates`` and the target ask. exclude: conversations that hit it are
    dropped. log: where lines of progress go (default: a bar on stderr). Returns the number of
    conversations in the file.
    """
    output = Path(output)
    output.parent.mkdir(parents=True, exist_ok=True)
    state = _State(output, settings.lasting())
    clock = _Clock(state, settings, log)
    writer = _Writer(model, tokenizer, settings, clock)
    index, parts = settings.part
    number = state.batches * parts + index
    batches = itertools.islice(_batches(questions, templates, settings), number, None, parts)
    while state.written < settings.conversations and clock.goes_on():
        firsts = next(batches, None)
        if firsts is None:
            clock.say("the prompt files hold no more prompts")
            break
        records, dropped = writer.batch(firsts, number), 0
        if exclude is not None:
            records, dropped = exclude.clean(records)
        state.add(records[: settings.conversations - state.written], dropped, clock.seconds())
        number += parts
        clock.show(now=True)
    clock.bar.close()
    return state.written


class _Clock:
    """The time and the tokens so far, the bar that shows them, and the end of ``minutes``."""

    def __init__(
        self, state: _State, settings: AnswerSettings, log: Callable[[str], None] | None
    ) -> None:
        self.state, self.settings, self.log = state, settings, log
        self.bar = ProgressBar("the target writes:", log=log)
        self.before, self.written_before, self.tokens = state.seconds, state.written, 0

    def seconds(self) -> float:
        return self.before + time.monotonic() - self.bar.started

    def goes_on(self) -> bool:
        limit = self.settings.minutes
        return limit is None or self.seconds() < limit * 60

    def steps(self, at_least: int) -> Callable[[int], bool]:
        """For every step of decoding; says False when time is up, and, of the first batch,
        ``at_least`` steps are done.
        """
        left = itertools.count(0 if self.state.written else at_least, -1)

        def step(tokens: int) -> bool:
            self.tokens += tokens
            self.show()
            return next(left) > 1 or self.goes_on()

        return step

    def show(self, *, now: bool = False) -> None:
        state, settings, here = self.state, self.settings, time.monotonic() - self.bar.started
        new = state.written - self.written_before
        parts, left = [state.written / settings.conversations], []
        if new:
            left = [(settings.conversations - state.written) * here / new]
        if settings.minutes is not None:
            limit = settings.minutes * 60
            parts.append(self.seconds() / max(limit, 1e-9))
            left.append(max(0.0, limit - self.seconds()))
        rest = f", {duration(min(left))} left" if left else ""
        text = f"{state.written} of {settings.conversations} conversations"
        if state.dropped:
            text += f" ({state.dropped} dropped)"
        self.bar.show(max(parts), f"{text}, {self.tokens / here:,.0f} tokens/s{rest}", now=now)

    def say(self, text: str) -> None:
        self.bar.close()
        (self.log or print)(text)


def is_finished(output: str | Path, settings: AnswerSettings) -> int | None:
    """How many conversations ``output`` holds, if no more are to be written to it; else None."""
    state = _State(Path(output), settings.lasting())
    over = settings.minutes is not None and state.seconds >= settings.minutes * 60
    return state.written if over or state.written >= settings.conversations else None


def read_questions(paths: Sequence[str | Path]) -> list[str]:
    """The first user turn of every record of JSONL files with prompt, turns or messages. Raises
    ArenaError where a record, or all files together, hold none.
    """
    texts = [user_texts(record)[0] for record in read_records(paths, ASKED)]
    if paths and not texts:
        raise ArenaError(
            f"{', '.join(map(str, paths))}: no prompt to answer; expected a JSON object a line"
        )
    return texts


def _batches(
    questions: Sequence[str], templates: Templates | None, settings: AnswerSettings
) -> Iterator[Sequence[str | None]]:
    """Batches of first user turns; None where the target is to ask."""
    if questions:
        for start in range(0, len(questions), settings.batch):
            yield questions[start : start + settings.batch]
        return
    count = round(settings.batch * settings.template_share) if templates else 0
    for number in itertools.count():
        generator = random.Random(f"{settings.seed} {number}")
        firsts: list[str | None] = []
        if templates:
            firsts += [templates.draw(generator) for _ in range(count)]
        firsts += [None] * (settings.batch - count)
        generator.shuffle(firsts)  # the first ones are answered greedily
        yield firsts


class _Writer:
    """Writes one batch of conversations turn by turn."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        settings: AnswerSettings,
        clock: _Clock,
    ) -> None:
        self.model, self.tokenizer, self.settings = model, tokenizer, settings
        self.clock, self.seed = clock, 0
        encoder = ChatEncoder(tokenizer, settings.max_length)
        self.render = encoder.render
        self.end = tokenizer.convert_tokens_to_ids(encoder.answer_end)

    def batch(self, firsts: Sequence[str | None], number: int) -> list[dict]:
        settings = self.settings
        self.seed = settings.seed * 1_000_003 + number * 64
        greedy = round(len(firsts) * settings.greedy_share)
        temperatures = [0.0] * greedy + [settings.temperature] * (len(firsts) - greedy)
        chats: list[list[dict]] = [[] for _ in firsts]
        complete = [True] * len(firsts)
        for turn in range(settings.turns):
            going = [i for i in range(len(chats)) if complete[i] and (turn == 0 or chats[i])]
            known: Sequence[str | None] = firsts if turn == 0 else [None] * len(firsts)
            asked = self._ask([chats[i] for i in going], [known[i] for i in going])
            going = [i for i, text in zip(going, asked, strict=True) if text]
            for i, text in zip(going, filter(None, asked), strict=True):
                chats[i].append({"role": "user", "content": text})
            prompts = [self.render(chats[i], add_generation_prompt=True) for i in going]
            heats = [temperatures[i] for i in going]
            answers = self._continue(prompts, heats, settings.max_new_tokens, at_least=FIRST)
            for i, (answer, done) in zip(going, answers, strict=True):
                if answer is None:  # no room for an answer: leave the question out too
                    chats[i].pop()
                else:
                    chats[i].append({"role": "assistant", "content": answer})
                    complete[i] = done
        return [
            {"messages": chat, "temperature": heat, "complete": done}
            for chat, heat, done in zip(chats, temperatures, complete, strict=True)
            if chat
        ]

    def _ask(self, chats: list[list[dict]], known: list[str | None]) -> list[str | None]:
        """The next user turn of every chat: the known one, else one that the target writes; None if
        it wrote none.
        """
        open_turns = []
        for chat, text in zip(chats, known, strict=True):
            if text is None:
                rendered = self.render([*chat, {"role": "user", "content": PROBE}])
                open_turns.append(rendered[: rendered.rindex(PROBE)])
        heats = [1.0] * len(open_turns)
        limit = self.settings.max_question_tokens
        written = iter(self._continue(open_turns, heats, limit, at_least=limit))
        answers = []
        for text in known:
            if text is None:
                text, done = next(written)
                text = (text or "").strip() if done else None
            answers.append(text or None)
        return answers

    def _continue(
        self, prompts: list[str], temperatures: list[float], max_new_tokens: int, *, at_least: int
    ) -> list[tuple[str | None, bool]]:
        """(text, ended by itself) after each prompt; text None where there was no room, or no time,
        for more than a few tokens.
        """
        results: list[tuple[str | None, bool]] = [(None, False)] * len(prompts)
        ids = [self.tokenizer(p, add_special_tokens=False)["input_ids"] for p in prompts]
        rows = [i for i, row in enumerate(ids) if len(row) <= self.settings.max_length - SHORTEST]
        self.seed += 1
        if not rows:
            return results
        written = continue_prompts(
            self.model,
            [ids[i] for i in rows],
            [temperatures[i] for i in rows],
            [min(max_new_tokens, self.settings.max_length - len(ids[i])) for i in rows],
            {self.end},
            seed=self.seed,
            each_step=self.clock.steps(at_least),
        )
        for i, own in zip(rows, written, strict=True):
            done = bool(own) and own[-1] == self.end
            if done or len(own) >= SHORTEST:
                text = self.tokenizer.decode(own[: len(own) - done], skip_special_tokens=True)
                results[i] = (text, done)
        return results
