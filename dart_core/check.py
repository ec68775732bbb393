"""Is an engine's output the target's own? Equal to plain decoding, a rounding tie, or DIFFERENT.

Every engine emits only tokens that the target itself draws, so its output equals plain decoding's
but for one thing: a target that scores a token inside a tree, or in a batch of another shape,
rounds otherwise than one that scores it alone. At the first token that differs both rows of logits
are computed again exactly as they arose, by replaying the recorded steps (plain decoding's
one-token steps; the engine's trees). The divergence is a **tie** if and only if the rows differ by
no more than rounding does at this precision, and a perturbation of the size by which they differ
explains the flip: of the arg-max, of the top-k or top-p boundary, or of the noise race. Anything
else is DIFFERENT, and a bug.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch

from dart_core.sampling import Sampler, SamplingParams, gumbel_noise
from dart_core.step import Step
from dart_core.target import Target
from dart_core.tree import DraftTree

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# The largest difference between rows of logits that rounding alone may make, as a share of the
# row's largest magnitude: twice what ``measure_rounding`` saw on SmolLM2-135M (30 layers) over 130
# tokens, in chunks of 2, 8 and 61 against one at a time: float32 8.8e-6, float16 5.8e-3, bfloat16
# 7.0e-2. float32 is the strict check; in bfloat16 it is the replayed rows that decide, which must
# explain the flip.
ROUNDING = {
    torch.float64: 1e-12,
    torch.float32: 1.8e-5,
    torch.float16: 1.2e-2,
    torch.bfloat16: 0.14,
}
OWN_ROWS = 8  # tokens a pass where plain decoding is held against itself
STATUSES = ("equal", "tie", "DIFFERENT")


@dataclass(frozen=True, slots=True)
class Verdict:
    """An engine's output against plain decoding's.

    position: index into the output of the first difference, None when equal. expected, found: the
    two tokens there, None where an output had ended. gap: how far plain decoding's row sets its
    token above the other, in logits, the noise of a sampled draw included. difference: the largest
    one between the two rows of logits. bound: what rounding may make of it.
    """

    status: Literal["equal", "tie", "DIFFERENT"]
    position: int | None = None
    expected: int | None = None
    found: int | None = None
    gap: float | None = None
    difference: float | None = None
    bound: float | None = None
    reason: str = ""

    def describe(self, tokenizer: PreTrainedTokenizerBase | None = None) -> str:
        """One line, with token texts where there is a tokenizer."""
        if self.status == "equal":
            return "equal"

        def shown(token: int | None) -> str:
            if token is None:
                return "the end"
            return f"{token} {tokenizer.decode([token])!r}" if tokenizer else str(token)

        text = (
            f"{self.status} at position {self.position} "
            f"(ar {shown(self.expected)}, here {shown(self.found)}"
        )
        if self.difference is not None:
            text += (
                f"; gap {self.gap:.3g}, logits differ by {self.difference:.3g}, "
                f"rounding allows {self.bound:.3g}"
            )
        return text + (f"; {self.reason})" if self.reason else ")")


@dataclass
class Verdicts:
    """Many verdicts on one engine: how many of each kind, and the largest figures of the ties.

    largest_gap: in logits. largest_share: of the difference that rounding may make.
    """

    counts: Counter[str] = field(default_factory=Counter)
    largest_gap: float | None = None
    largest_share: float | None = None

    def add(self, verdict: Verdict) -> None:
        self.counts[verdict.status] += 1
        gap, difference = verdict.gap, verdict.difference
        if verdict.status == "tie" and gap is not None and difference is not None:  # as ties have
            self.largest_gap = max(self.largest_gap or 0.0, abs(gap))
            share = difference / verdict.bound if verdict.bound else 0.0
            self.largest_share = max(self.largest_share or 0.0, share)

    def summary(self) -> dict[str, Any]:
        """Counts, the ties' share of all, and their figures (None without a tie)."""
        counts = {status: self.counts[status] for status in STATUSES}
        return {
            **counts,
            "tie_rate": counts["tie"] / max(self.counts.total(), 1),
            "largest_gap": self.largest_gap,
            "largest_share_of_bound": self.largest_share,
        }

    def describe(self) -> str:
        """Counts, and behind the ties their figures."""
        told = {status: f"{self.counts[status]} {status}" for status in STATUSES}
        if self.counts["tie"]:
            told["tie"] += (
                f" (gap at most {self.largest_gap:.3g}, logits differ by at most "
                f"{self.largest_share:.0%} of what rounding allows)"
            )
        return ", ".join(told.values())


@torch.inference_mode()
def compare(
    target: Target,
    prompt_ids: Sequence[int],
    plain: Sequence[Step],
    steps: Sequence[Step],
    sampling: SamplingParams,
) -> Verdict:
    """Judge an engine's steps against plain decoding's, both run with ``sampling`` and its seed."""
    expected = [token for step in plain for token in step.tokens]
    found = [token for step in steps for token in step.tokens]
    shorter = min(len(expected), len(found))
    position = next((i for i in range(shorter) if expected[i] != found[i]), None)
    if position is None:
        if len(expected) == len(found):
            return Verdict("equal")
        ends = [tokens[shorter] if shorter < len(tokens) else None for tokens in (expected, found)]
        reason = "the same tokens, but they end elsewhere"
        return Verdict("DIFFERENT", shorter, ends[0], ends[1], reason=reason)
    row = replay_row(target, prompt_ids, plain, position)
    other = replay_row(target, prompt_ids, steps, position)
    return _judge(
        row, other, position, expected[position], found[position], len(prompt_ids), sampling
    )


def _judge(
    row: torch.Tensor,
    other: torch.Tensor,
    position: int,
    expected: int,
    found: int,
    prompt_length: int,
    sampling: SamplingParams,
) -> Verdict:
    rounding, row, other = ROUNDING[row.dtype], row.float(), other.float()
    difference = float((row - other).abs().max())
    bound = rounding * float(row.abs().max())
    place = prompt_length + position
    race = _race(row, place, sampling)
    figures: dict[str, Any] = {
        "position": position,
        "expected": expected,
        "found": found,
        "gap": float(race[expected] - race[found]),
        "difference": difference,
        "bound": bound,
    }
    if not difference <= bound:  # also where it is NaN
        return Verdict("DIFFERENT", **figures, reason="more than rounding")
    for token, own, moved in ((found, row, other), (expected, other, row)):
        if not _explains(own, moved, token, difference, place, sampling):
            reason = f"no such difference makes the target draw {token}"
            return Verdict("DIFFERENT", **figures, reason=reason)
    return Verdict("tie", **figures)


def _explains(
    row: torch.Tensor,
    moved: torch.Tensor,
    token: int,
    size: float,
    place: int,
    sampling: SamplingParams,
) -> bool:
    """Does some row no further than ``size`` from ``row`` draw ``token``?

    ``moved``, the other replayed row, is one such and nearly always the proof. A replay need not
    repeat a run bit by bit on every device, though; then the rows that favour the token most
    decide: all others lowered, which lifts it over a top-k or top-p boundary; or only those lowered
    that beat it in the race, which pushes them under a boundary.
    """
    sampler = Sampler(sampling)
    race = _race(row, place, sampling)
    ahead = (race - race[token]).clamp(min=0).float()
    lowered, fitted = row - size, row + (size - ahead).clamp(min=-size)
    lowered[token] = fitted[token] = row[token] + size
    rows = (moved, lowered, fitted) if size else (row,)
    return any(sampler.draw(candidate, place) == token for candidate in rows)


def _race(row: torch.Tensor, place: int, sampling: SamplingParams) -> torch.Tensor:
    """What the largest is drawn of, in logits: a sampled draw adds the noise of its place."""
    if sampling.greedy:
        return row.double()
    if sampling.seed is None:
        raise ValueError("a sampled run is judged with the seed it was drawn with")
    ids = torch.arange(len(row), device=row.device)
    return row.double() + sampling.temperature * gumbel_noise(sampling.seed, place, ids)


def replay_row(
    target: Target, prompt_ids: Sequence[int], steps: Sequence[Step], position: int
) -> torch.Tensor:
    """The target's logits [V] that output token ``position`` was drawn from, computed again.

    Every recorded step is run again up to that token: the same trees in the same order, the same
    rows kept, so that the cache and the shapes are those of the run.
    """
    largest = max((len(step.tree) for step in steps if step.tree is not None), default=1)
    cache = target.new_cache(len(prompt_ids) + position + 1 + largest)
    try:
        output = target.prefill(torch.tensor(list(prompt_ids), dtype=torch.int64), cache)
        row, emitted = output.logits[0], len(steps[0].tokens)
        for step in steps[1:]:
            if emitted > position:
                break
            if step.tree is None:
                raise ValueError(f"step {step.index} verified no tree: it cannot be run again")
            logits = target.verify(step.tree, cache).logits
            if position < emitted + len(step.tokens):
                row = logits[step.path[position - emitted]].clone()  # static shapes lend it
            cache.keep(step.path)
            emitted += len(step.tokens)
        return row
    finally:
        cache.close()


@torch.inference_mode()
def own_flip(
    target: Target,
    prompt_ids: Sequence[int],
    plain: Sequence[Step],
    sampling: SamplingParams,
    rows: int = OWN_ROWS,
) -> int | None:
    """Plain decoding against itself: its own text scored ``rows`` tokens a pass instead of one.

    The output position of the first token that the target then draws otherwise, or None. No engine
    has a part in it: how often it happens is how often rounding alone tips a tie.
    """
    ids = [token for step in plain for token in step.tokens]
    sampler = Sampler(sampling)
    cache = target.new_cache(len(prompt_ids) + len(ids) + rows)
    try:
        target.prefill(torch.tensor(list(prompt_ids), dtype=torch.int64), cache)
        for start in range(0, len(ids) - 1, rows):
            part = ids[start : min(start + rows, len(ids) - 1)]
            chain = DraftTree.of(part, range(-1, len(part) - 1))
            logits = target.verify(chain, cache).logits
            draw = sampler.drawer(logits, len(prompt_ids) + start, chain.depths())
            for node in range(len(part)):
                if draw(node) != ids[start + node + 1]:
                    return start + node + 1
            cache.keep(range(len(part)))
        return None
    finally:
        cache.close()


@torch.inference_mode()
def measure_rounding(
    target: Target, sequences: Iterable[Sequence[int]], chunks: Sequence[int] = (2, 8, 61)
) -> float:
    """The largest difference batch shapes alone make, as a share of the row's largest magnitude.

    Each sequence of ids is scored token by token, as plain decoding does, and again in chunks of
    several sizes; this is what ``ROUNDING`` rests on.
    """
    worst = 0.0
    for sequence in sequences:
        tokens = torch.tensor(list(sequence), dtype=torch.int64)
        alone = _score(target, tokens, 1)
        scale = alone.abs().amax(dim=-1)
        for chunk in chunks:
            difference = (_score(target, tokens, chunk) - alone).abs().amax(dim=-1)
            worst = max(worst, float((difference / scale).max()))
    return worst


def _score(target: Target, tokens: torch.Tensor, chunk: int) -> torch.Tensor:
    cache = target.new_cache(len(tokens) + chunk)
    rows = []
    try:
        for start in range(0, len(tokens), chunk):
            part = tokens[start : start + chunk]
            positions = torch.arange(start, start + len(part))
            seen = torch.arange(start + len(part))[None] <= positions[:, None]
            mask = seen if len(part) > 1 else None
            rows.append(target.forward(part, positions, cache, mask=mask).logits.float())
            cache.keep(range(len(part)))
    finally:
        cache.close()
    return torch.cat(rows)
