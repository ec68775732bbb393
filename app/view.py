"""What the page shows of a run: race events folded into small JSON values for the panels. No
Gradio, no model.

Texts and series are strings that only ever get longer, so that the wire carries the new end
alone and a browser that missed an update, or opened late, still has everything.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from app.lane import LABELS, STAGES, TAGLINES, LaneView
from app.race import Ended, Judged, Moved
from app.totals import rows_of
from dart_core.metrics import chosen_sizes, sizes_in_words
from dart_core.tree import Candidates

POOL = 150  # pruned candidates of a step that are shown


@dataclass(frozen=True, slots=True)
class Baseline:
    """The measured rate of plain decoding that speedups refer to, and where it was measured."""

    tokens_per_second: float
    source: str


class RunView:
    """One run as its visitor sees it.

    token_text: the text of one token id, for the labels of tree nodes. turns: (prompt, answer) of
    the conversation so far; prompt: what is answered now. facts: (name, value) pairs that say what
    runs, and how. speed: how fast a replay runs (0: this is no replay).
    """

    def __init__(
        self,
        run: str,
        engines: Sequence[str],
        token_text: Callable[[int], str],
        *,
        baseline: Baseline | None = None,
        seed: int | None = None,
        prompt: str = "",
        turns: Sequence[tuple[str, str]] = (),
        facts: Sequence[tuple[str, str]] = (),
        replayed: bool = False,
    ):
        self.run = run
        self.lanes = {engine: LaneView(engine) for engine in engines}
        self.events: list[Moved | Ended | Judged] = []
        # Pair of engines -> first token that differs, and what the target said of it.
        self.divergences: dict[tuple[str, str], int] = {}
        self.verdicts: dict[tuple[str, str], Judged] = {}
        self.judging = False  # the run is over but for the verdicts
        self.prompt = prompt
        self.turns = [list(turn) for turn in turns]
        self.facts = [list(fact) for fact in facts]
        self.token_text = token_text
        self._warmup = baseline
        self._seed = seed
        self._replayed = replayed

    @property
    def running(self) -> bool:
        return any(lane.state in ("waiting", "running") for lane in self.lanes.values())

    def take(self, event: Moved | Ended | Judged) -> None:
        """Fold one event of the race in."""
        lane = self.lanes[event.engine]
        self.events.append(event)
        if isinstance(event, Moved):
            known = len(lane.tokens)
            lane.move(event)
            self._compare(lane, known)
        elif isinstance(event, Judged):
            self.verdicts[_pair(event.engine, event.other)] = event
        else:
            lane.end(event)

    def _compare(self, lane: LaneView, known: int) -> None:
        for other in self.lanes.values():
            pair = _pair(lane.engine, other.engine)
            if other is lane or pair in self.divergences:
                continue
            shared = min(len(lane.tokens), len(other.tokens))
            for place in range(known, shared):
                if lane.tokens[place] != other.tokens[place]:
                    self.divergences[pair] = place
                    break

    def answer(self) -> str:
        """The text that a follow-up continues from: the first panel's that is complete, else the
        first there is.
        """
        lanes = [lane for lane in self.lanes.values() if lane.ends and lane.ends[-1]]
        whole = (lane for lane in lanes if lane.state == "done")
        lane = next(whole, lanes[0] if lanes else None)
        return lane.text if lane else ""

    # What the components get -----------------------------------------------------------------

    def baseline(self) -> Baseline | None:
        """Plain decoding's rate: of this run if it takes part and has begun, else the one measured
        at warm-up.
        """
        lane = self.lanes.get("ar")
        if lane and lane.last and math.isfinite(lane.last.tokens_per_second):
            where = "the recorded run" if self._replayed else "this run"
            return Baseline(lane.last.tokens_per_second, f"plain decoding in {where}")
        return self._warmup

    def panel(self, engine: str) -> dict:
        """Value of the token panel of ``engine``."""
        lane = self.lanes[engine]
        cut, why = self._divergence(engine)
        return {
            **idle_panel(engine),
            "run": self.run,
            "state": lane.state,
            "turns": self.turns,
            "prompt": self.prompt,
            "text": lane.text,
            "marks": "".join(lane.marks),
            "note": " ".join(filter(None, [lane.note, why, self._on_speed(lane)])),
            "cut": cut,
            **self._figures(lane),
        }

    def charts(self) -> dict:
        """Value of the charts: every lane's series, and the baseline with its source."""
        baseline = self.baseline()
        return {
            "run": self.run,
            "baseline": baseline and [round(baseline.tokens_per_second, 3), baseline.source],
            "lanes": [
                {
                    "engine": lane.engine,
                    "label": LABELS[lane.engine],
                    "accepted": ",".join(lane.accepted),
                    "drafted": ",".join(lane.drafted),
                    "emitted": ",".join(lane.emitted),
                    "clocks": ",".join(lane.clocks),
                    "stages": [
                        round(1000 * seconds / max(1, lane.verify_steps), 3)
                        for seconds in lane.stages.values()
                    ],
                }
                for lane in self.lanes.values()
            ],
        }

    def totals(self) -> dict:
        """Value of the table of totals: every engine's figures, and what ran and how."""
        baseline = self.baseline()
        lanes = list(self.lanes.values())
        return {
            "run": self.run,
            "columns": [{"engine": lane.engine, "label": LABELS[lane.engine]} for lane in lanes],
            "rows": rows_of(
                [lane.tally.summary() for lane in lanes],
                [lane.engine == "ar" for lane in lanes],
                baseline.tokens_per_second if baseline else None,
            ),
            "facts": [*self.facts, *self._sizes()],
        }

    def _sizes(self) -> list[list[str]]:
        """Per engine whose tree sizes were chosen: what was chosen, and why."""
        found = [
            (lane, chosen_sizes(moved.step for moved in lane.moves)) for lane in self.lanes.values()
        ]
        return [
            [f"{LABELS[lane.engine]} tree budget", sizes_in_words(sizes)]
            for lane, sizes in found
            if sizes
        ]

    def trees(self) -> dict:
        """Value of the tree view: the newest tree of every drafting lane; the others come on
        request.
        """
        return {
            "run": self.run,
            "lanes": [
                {
                    "engine": lane.engine,
                    "label": LABELS[lane.engine],
                    "emitted": ",".join(lane.emitted),
                    "latest": self.tree(lane.engine, lane.last.step.index) if lane.last else "",
                }
                for lane in self.lanes.values()
                if lane.engine != "ar"
            ],
        }

    def tree(self, engine: str, index: int) -> str:
        """The tree of one step as JSON text, "" where that step has none."""
        lane = self.lanes.get(engine)
        moves = lane.moves if lane else []
        moved = next(
            (m for m in moves[max(0, index - 1) : index + 2] if m.step.index == index), None
        )
        if moved is None or moved.step.tree is None:
            return ""
        step, tree = moved.step, moved.step.tree
        return json.dumps(
            {
                "engine": engine,
                "step": step.index,
                "backend": step.backend,
                "choice": step.choice and asdict(step.choice),
                "drafted": step.drafted,
                "accepted": step.accepted,
                "emitted": len(step.tokens),
                "tokens": self._texts(tree.tokens),
                "parents": tree.parents.tolist(),
                "p": _finite(tree.probabilities),
                "ngram": _finite(tree.ngram),
                "score": _finite(tree.scores),
                "path": list(step.path),
                "bonus": None if step.bonus is None else self.token_text(step.bonus),
                "ms": {stage: round(1000 * getattr(step.seconds, stage), 2) for stage in STAGES},
                "pool": step.candidates and self._pool(step.candidates),
            }
        )

    def status(self) -> dict:
        """Value of the status line: one sentence, and whether a run is on."""
        return {
            "run": self.run,
            "running": self.running or self.judging,
            "text": self.sentence(),
        }

    def sentence(self) -> str:
        """The run in one sentence, for those who hear the page."""
        failed = [LABELS[lane.engine] for lane in self.lanes.values() if lane.state == "error"]
        moving = [lane for lane in self.lanes.values() if lane.rate > 0 and lane.state != "error"]
        if not moving and self.running:
            return "Reading the prompt …"
        with_text = [lane for lane in self.lanes.values() if lane.tokens]
        if not with_text:
            return f"{' and '.join(failed) or 'The run'} ended before a token was decoded."
        parts = [f"{LABELS[lane.engine]} {lane.rate:.1f} tokens per second" for lane in moving]
        counts = [
            f"{LABELS[lane.engine]} {_count(len(lane.tokens), 'token')}" for lane in with_text
        ]
        words = ", ".join(parts or counts)
        racers = sorted(
            (lane for lane in moving if lane.engine != "ar"),
            key=lambda lane: lane.rate,
            reverse=True,
        )
        if len(racers) > 1:
            first, second = racers[0], racers[1]
            ratio = first.rate / second.rate
            words += f" – {LABELS[first.engine]} is {ratio:.2f}× as fast as {LABELS[second.engine]}"
        seed = f" (seed {self._seed})" if self._seed is not None and not self.running else ""
        trouble = f" {' and '.join(failed)} ended with an error." if failed else ""
        if self.judging and not self.running:
            trouble += " Asking the target why the texts part …"
        return f"{self._doing()}{seed}: {words}.{trouble}"

    def _doing(self) -> str:
        if self._replayed:
            return "Replaying" if self.running else "Replayed"
        return "Running" if self.running else "Done"

    def _texts(self, tokens: np.ndarray) -> list[str]:
        return [self.token_text(token) for token in tokens.tolist()]

    def _pool(self, pool: Candidates) -> dict:
        """What became of the tree's nodes and the best of the rest, never without what stands above
        it; ``more`` counts what is left out.
        """
        shown = set(np.flatnonzero(pool.node >= 0).tolist())
        pruned = np.flatnonzero(pool.node < 0)
        room = len(shown) + POOL
        for best in pruned[np.argsort(-pool.scores[pruned], kind="stable")].tolist():
            chain = []
            while best >= 0 and best not in shown:
                chain.append(best)
                best = int(pool.parents[best])
            if len(shown) + len(chain) > room:
                break
            shown.update(chain)
        kept = sorted(shown)
        place = {old: new for new, old in enumerate(kept)}
        return {
            "tokens": self._texts(pool.tokens[kept]),
            "parents": [place.get(parent, -1) for parent in pool.parents[kept].tolist()],
            "score": _finite(pool.scores[kept]),
            "node": pool.node[kept].tolist(),
            "more": len(pool.node) - len(kept),
        }

    def _figures(self, lane: LaneView) -> dict:
        last, baseline = lane.last, self.baseline()
        if last is None:
            return {}
        speedup = lane.rate / baseline.tokens_per_second if baseline and lane.engine != "ar" else 0
        drafted = sum(moved.step.drafted for moved in lane.moves)
        accepted = sum(moved.step.accepted for moved in lane.moves)
        details = [
            _count(len(lane.tokens), "token"),
            _count(lane.verify_steps, "step"),
            f"prefill {_milliseconds(lane.prefill_seconds)}",
            f"own clock {last.clock:.2f} s",
        ]
        if drafted:
            details.append(f"{accepted} of {drafted} drafts accepted")
        return {
            "rate": _figure(lane.rate, 1),
            "tau": _figure(last.tau, 2),
            "speedup": f"{speedup:.2f}×" if speedup > 0 else "–",
            "slower": 0 < speedup < 1,
            "details": " · ".join(details),
            "backend": "" if last.step.backend in ("none", "") else last.step.backend,
        }

    def _divergence(self, engine: str) -> tuple[int, str]:
        """Where the text of ``engine`` first differs from another's, in UTF-16 units (-1: nowhere),
        and in words.
        """
        found = [(place, pair) for pair, place in self.divergences.items() if engine in pair]
        if not found:
            return -1, ""
        place, pair = min(found)
        other = pair[0] if pair[1] == engine else pair[1]
        ends = self.lanes[engine].ends
        told = f"From token {place + 1} on this text differs from {LABELS[other]}'s: "
        if verdict := self._verdict(pair, place):
            told += verdict.message
        elif self.running or self.judging:
            told += "why is found out when the run has ended."
        elif any(lane.reason == "stopped" for lane in self.lanes.values()):
            told += "the run ended before the target was asked why."
        else:
            log = "" if self._replayed else "; see the server's log"
            told += f"the target could not be asked why{log}."
        return (ends[place - 1] if place else 0), told

    def _verdict(self, pair: tuple[str, str], place: int) -> Judged | None:
        """What the target said of a pair; or of one of the two and a third, where those part at the
        same token: two of three texts are compared with one alone.
        """
        told = [v for v in self.verdicts.values() if v.place == place]
        touching = (v for v in told if {v.engine, v.other} & set(pair))
        return self.verdicts.get(pair) or next(touching, None)

    def _on_speed(self, lane: LaneView) -> str:
        """Why drafting did not pay, once a finished lane was slower than plain decoding; or why its
        speedup is more than there can be.
        """
        baseline, last = self.baseline(), lane.last
        if lane.state != "done" or lane.engine == "ar" or not baseline or last is None:
            return ""
        if lane.rate > IMPOSSIBLE * last.tau * baseline.tokens_per_second:
            return (
                "Faster than its τ allows: the machine was busier when plain decoding was measured "
                f"({baseline.tokens_per_second:.1f} tokens / s, {baseline.source}). Run AR beside "
                "it, in turn, for a fair comparison."
            )
        if not 0 < lane.rate < baseline.tokens_per_second:
            return ""
        if len(lane.tokens) < 20:
            return "Slower than plain decoding: the answer is too short for drafting to pay."
        tau = last.tau
        ratio = sum(lane.stages.values()) / lane.verify_steps * baseline.tokens_per_second
        cost = f"a step takes {ratio:.1f}× as long as plain decoding's and yields {tau:.2f} tokens"
        if tau < LOW_ACCEPTANCE:
            return (
                f"Slower than plain decoding: {cost}. Few drafts are accepted: this text is hard "
                "to foresee."
            )
        remedy = "" if last.step.choice else " A smaller tree budget makes steps cheaper."
        return f"Slower than plain decoding: {cost}.{remedy}"


IMPOSSIBLE = 1.1  # speedup ÷ τ: no verify pass is that much quicker than a plain step
LOW_ACCEPTANCE = 1.4  # tokens per step below which no budget makes drafting pay on any machine seen


def idle_panel(engine: str, note: str = "") -> dict:
    """Value of a token panel before its first run; "" for a panel without an engine."""
    return {
        "run": "",
        "engine": engine,
        "label": LABELS.get(engine, ""),
        "tagline": TAGLINES.get(engine, ""),
        "state": "idle",
        "turns": [],
        "prompt": "",
        "text": "",
        "marks": "",
        "note": note,
        "cut": -1,
        "rate": "–",
        "tau": "–",
        "speedup": "–",
        "slower": False,
        "details": "",
        "backend": "",
    }


IDLE_STATUS: dict = {"run": "", "running": False, "text": ""}
IDLE_CHARTS: dict = {"run": "", "baseline": None, "lanes": []}
IDLE_TOTALS: dict = {"run": "", "columns": [], "rows": [], "facts": []}
IDLE_TREES: dict = {"run": "", "lanes": []}


def _pair(engine: str, other: str) -> tuple[str, str]:
    return (engine, other) if engine < other else (other, engine)


def _finite(values: Iterable[float]) -> list[float | None]:
    return [round(float(value), 4) if math.isfinite(value) else None for value in values]


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _figure(value: float, digits: int) -> str:
    return f"{value:.{digits}f}" if math.isfinite(value) and value > 0 else "–"


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms" if math.isfinite(seconds) else "–"
