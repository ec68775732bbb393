"""One engine's side of a run as it grows: its text, who made each token, and its series for charts.

The marks of a panel say for every token who made it: ``d5:87`` is an accepted draft token of 5
characters (UTF-16 units, as browsers count) that its drafter gave 87 %; ``t3`` is a token of the
target's own; ``p4`` is the prefill's first token; ``+2`` are two characters more for the token
before. ``|`` opens each verify step, ``,`` separates.
"""

from __future__ import annotations

import math

from app.race import Ended, Moved
from dart_core.metrics import Tally

LABELS = {"dart": "DART", "eagle3": "EAGLE3", "ar": "AR"}
TAGLINES = {
    "dart": "drafts in one parallel pass, with an n-gram",
    "eagle3": "drafts token by token, with a small decoder",
    "ar": "plain decoding, one token a step",
}
STAGES = ("draft", "search", "verify", "rest")
DONE = {"stop": "End of text.", "length": "Token budget reached."}


class LaneView:
    """One engine's side of a run."""

    def __init__(self, engine: str):
        self.engine = engine
        self.state = "waiting"  # waiting, running, done, stopped, error
        self.reason = ""  # of the end: see ``race.Ended``
        self.note = ""
        self.moves: list[Moved] = []
        self.tally = Tally()
        self.tokens: list[int] = []
        self.ends: list[int] = []  # where each token ends in the text, in UTF-16 units
        # In pieces, joined when they are shown: a string that grows is copied at every step.
        self.pieces: list[str] = []  # of the text
        self.marks: list[str] = []  # of each step
        self.accepted: list[str] = []  # per verify step
        self.drafted: list[str] = []
        self.emitted: list[str] = []  # the same from the prefill on; so is the next
        self.clocks: list[str] = []
        self.stages = dict.fromkeys(STAGES, 0.0)  # seconds in verify steps

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def last(self) -> Moved | None:
        return self.moves[-1] if self.moves else None

    @property
    def prefill_seconds(self) -> float:
        first = self.moves[0] if self.moves else None
        return first.clock if first and first.step.kind == "prefill" else math.nan

    @property
    def verify_steps(self) -> int:
        return len(self.moves) - (1 if math.isfinite(self.prefill_seconds) else 0)

    @property
    def rate(self) -> float:
        """Tokens per second so far, 0 before the first verify step."""
        rate = self.last.tokens_per_second if self.last else math.nan
        return rate if math.isfinite(rate) else 0.0

    def move(self, moved: Moved) -> None:
        step = moved.step
        self.state = "running"
        verify = step.kind == "verify"
        marks = []
        for place, piece in enumerate(moved.pieces):
            length = _units(piece)
            self.ends.append((self.ends[-1] if self.ends else 0) + length)
            if place < step.accepted and step.tree is not None:
                node = step.path[place + 1]
                marks.append(f"d{length}:{_percent(step.tree.probabilities[node])}")
            else:
                marks.append(f"{'t' if verify else 'p'}{length}")
        self.marks.append(("|" if verify else "") + ",".join(marks))
        self.pieces += moved.pieces
        self.tokens += step.tokens
        if verify:
            self.accepted.append(str(step.accepted))
            self.drafted.append(str(step.drafted))
            for stage in STAGES:
                self.stages[stage] += getattr(step.seconds, stage)
        self.emitted.append(str(len(step.tokens)))
        self.clocks.append(f"{moved.clock:.4f}")
        self.tally.add(step)
        self.moves.append(moved)

    def end(self, ended: Ended) -> None:
        if ended.tail:
            self.pieces.append(ended.tail)
            self.marks.append(f",+{_units(ended.tail)}")
            if self.ends:
                self.ends[-1] += _units(ended.tail)
        states = {"stop": "done", "length": "done", "error": "error"}
        self.reason = ended.reason
        self.state = states.get(ended.reason, "stopped")
        self.note = ended.message or DONE.get(ended.reason, "")


def _units(text: str) -> int:
    """Length as browsers count: UTF-16 code units."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _percent(probability: float) -> int:
    return round(100 * float(probability)) if math.isfinite(probability) else 0
