"""What one step of the generation loop leaves behind. Nothing of torch: a page that replays
recordings knows steps too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dart_core.tree import Candidates, DraftTree


@dataclass(frozen=True, slots=True)
class StageSeconds:
    """Own seconds of one step. verify: target forward and draw; rest: everything else (accept,
    commit, stop rules).
    """

    draft: float = 0.0
    search: float = 0.0
    verify: float = 0.0
    rest: float = 0.0

    @property
    def total(self) -> float:
        return self.draft + self.search + self.verify + self.rest


@dataclass(frozen=True, slots=True)
class SizeChoice:
    """Why a tree got its size, where that was chosen (tree budget ``auto``).

    asked: drafts the drafter was asked for; 0: none, drafting rested. expected: tokens that the
    step was expected to emit. cost: estimated seconds of its verify pass ÷ those of a plain one.
    """

    asked: int
    expected: float
    cost: float


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One step of the loop, with all that a face may want to show of it.

    index: 0 is the prefill, which emits the first token; verify steps follow. kind: "prefill" or
    "verify". tokens: emitted, already cut at end-of-sequence, stop string or budget: the first
    ``accepted`` of them are accepted drafts, one more (if any) is the target's own bonus token.
    drafted: draft nodes verified. tree, path: the verified tree and its accepted nodes, root first,
    before any cut; None and () for the prefill. bonus: the target's own token after the path; it is
    not in ``tokens`` when the step was cut before it. seconds: own time; backend: what searched the
    tree; candidates: the whole pool, on request. finish_reason: "stop" (end-of-sequence or stop
    string) or "length", on the last step only. seed: the noise seed in use; None when greedy.
    choice: why the tree has its size; None where that was fixed.
    """

    index: int
    kind: str
    tokens: tuple[int, ...]
    drafted: int
    accepted: int
    tree: DraftTree | None
    path: tuple[int, ...]
    bonus: int | None
    seconds: StageSeconds
    backend: str
    candidates: Candidates | None
    finish_reason: str | None
    seed: int | None
    choice: SizeChoice | None = None


def finish_of(steps: Sequence[Step]) -> str:
    """Why a run ended, "stop" or "length", as its last step says. Raises ValueError for one that
    has not.
    """
    reason = steps[-1].finish_reason if steps else None
    if reason is None:
        raise ValueError("this run has not ended: no step of it has a finish reason")
    return reason
