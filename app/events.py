"""The events of a run as JSON, and back: the one place that knows how a recording spells them.

Reading trusts nothing, for a recording may be damaged or made by an enemy: what comes back is a
run that the engines could have had.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from app.fields import Damage, Fields
from app.race import Ended, Judged, Moved
from dart_core.step import SizeChoice, StageSeconds, Step
from dart_core.tree import Candidates, DraftTree

Event = Moved | Ended | Judged

ENGINES = ("ar", "dart", "eagle3")
BACKENDS = ("native", "twin", "torch", "none")
REASONS = ("stop", "length", "stopped", "deadline", "error")
FINISHES = ("stop", "length")
VERDICTS = ("tie", "DIFFERENT")

MAX_TOKEN = 2**31 - 1
MAX_TOKENS = 100_000  # of one engine
MAX_TEXT = 2**22  # characters of one engine, messages included: a token's are 128 at most
MAX_NODES = 4097  # of a draft tree, the root included
MAX_POOL = 65_536  # candidates of a step, the pruned-away ones included
MAX_SECONDS = 1e6
MAX_SCORE = 1e30


def weight(event: Event) -> int:
    """About how many bytes of memory an event takes."""
    if not isinstance(event, Moved):
        return 1_000 + 4 * len(event.message)
    step, texts = event.step, 4 * sum(map(len, event.pieces))
    nodes = len(step.tree) if step.tree else 0
    pool = len(step.candidates.tokens) if step.candidates else 0
    return 2_000 + 100 * len(step.tokens) + texts + 24 * nodes + 20 * pool


def event_to_json(event: Event) -> dict[str, Any]:
    """One event as plain JSON data; NaN becomes null."""
    if isinstance(event, Ended):
        return {"type": "ended", **asdict(event)}
    if isinstance(event, Judged):
        return {"type": "judged", **asdict(event)}
    step = event.step
    data = {
        "index": step.index,
        "kind": step.kind,
        "tokens": list(step.tokens),
        "drafted": step.drafted,
        "accepted": step.accepted,
        "tree": step.tree and _tree_to_json(step.tree),
        "path": list(step.path),
        "bonus": step.bonus,
        "seconds": asdict(step.seconds),
        "backend": step.backend,
        "finish_reason": step.finish_reason,
        "seed": step.seed,
    }
    if step.choice is not None:
        data["choice"] = asdict(step.choice)
    if step.candidates is not None:
        data["candidates"] = _pool_to_json(step.candidates)
    return {
        "type": "moved",
        "engine": event.engine,
        "clock": event.clock,
        "tokens_per_second": _number(event.tokens_per_second),
        "tau": _number(event.tau),
        "pieces": list(event.pieces),
        "step": data,
    }


def _tree_to_json(tree: DraftTree) -> dict[str, list]:
    return {
        "tokens": tree.tokens.tolist(),
        "parents": tree.parents.tolist(),
        "scores": _numbers(tree.scores),
        "probabilities": _numbers(tree.probabilities),
        "ngram": _numbers(tree.ngram),
    }


def _pool_to_json(pool: Candidates) -> dict[str, list]:
    return {
        "tokens": pool.tokens.tolist(),
        "parents": pool.parents.tolist(),
        "scores": _numbers(pool.scores),
        "node": pool.node.tolist(),
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _numbers(values: np.ndarray) -> list[float | None]:
    """float32 values in as few digits as bring them back exactly."""
    return [float(str(value)) if math.isfinite(value) else None for value in values]


@dataclass(slots=True)
class _Lane:
    """What is known of one engine while its events are read."""

    engine: str
    moves: int = 0
    tokens: int = 0
    characters: int = 0
    clock: float = 0.0
    over: bool = False

    def say(self, *texts: str) -> None:
        """Count texts. Raises Damage where they are more than a run has."""
        self.characters += sum(map(len, texts))
        if self.characters > MAX_TEXT:
            raise Damage(f"{self.engine} has more than {MAX_TEXT} characters of text")


def events_from_json(entries: Sequence[Any], engines: Sequence[str]) -> list[Event]:
    """The events of a run of ``engines``, in their order. Raises Damage naming the first one that
    cannot be.
    """
    lanes = {engine: _Lane(engine) for engine in engines}
    events = []
    for place, entry in enumerate(entries, 1):
        try:
            events.append(_event(Fields(entry, "the event"), lanes))
        except Damage as damage:
            raise Damage(f"event {place}: {damage}") from None
    return events


def _event(fields: Fields, lanes: dict[str, _Lane]) -> Event:
    kind = fields.one_of("type", ("moved", "ended", "judged"))
    engine = fields.one_of("engine", tuple(lanes))
    lane = lanes[engine]
    if kind == "judged":
        return _judged(fields, engine, lanes)
    if lane.over:
        raise Damage(f"{engine} had ended before")
    if kind == "ended":
        lane.over = True
        reason = fields.one_of("reason", REASONS)
        message, tail = fields.text("message"), fields.text("tail")
        lane.say(message, tail)
        return Ended(engine, reason, message, tail)
    clock = fields.real("clock", lane.clock, MAX_SECONDS)
    step = _step(fields.fields("step"), lane.moves)
    pieces = tuple(fields.texts("pieces", len(step.tokens)))
    if len(pieces) != len(step.tokens):
        raise Damage(f"{len(step.tokens)} tokens, but {len(pieces)} pieces of text")
    lane.say(*pieces)
    lane.moves, lane.tokens, lane.clock = lane.moves + 1, lane.tokens + len(pieces), clock
    if lane.tokens > MAX_TOKENS:
        raise Damage(f"{engine} has more than {MAX_TOKENS} tokens")
    return Moved(
        engine, step, pieces, clock, fields.ratio("tokens_per_second"), fields.ratio("tau")
    )


def _judged(fields: Fields, engine: str, lanes: dict[str, _Lane]) -> Judged:
    other = fields.one_of("other", tuple(lanes))
    if other == engine:
        raise Damage(f"{engine} is judged against itself")
    place = fields.whole("place")
    if place >= min(lanes[engine].tokens, lanes[other].tokens):
        raise Damage(f"token {place} is judged, which {engine} and {other} did not both emit")
    message = fields.text("message")
    lanes[engine].say(message)
    return Judged(engine, other, place, fields.one_of("status", VERDICTS), message)


def _step(fields: Fields, index: int) -> Step:
    """The step of a lane that made ``index`` steps before."""
    if fields.whole("index") != index:
        raise fields.wrong("index", f"{index}, the next step of this engine")
    tree = _tree(fields.fields("tree")) if "tree" in fields else None
    seconds = fields.fields("seconds")
    step = Step(
        index=index,
        kind=fields.one_of("kind", ("prefill" if index == 0 else "verify",)),
        tokens=tuple(fields.wholes("tokens", MAX_NODES, high=MAX_TOKEN)),
        drafted=fields.whole("drafted"),
        accepted=fields.whole("accepted"),
        tree=tree,
        path=tuple(fields.wholes("path", MAX_NODES, high=MAX_NODES)),
        bonus=fields.optional("bonus", fields.whole, high=MAX_TOKEN),
        seconds=StageSeconds(
            *(seconds.real(s, 0.0, MAX_SECONDS) for s in ("draft", "search", "verify", "rest"))
        ),
        backend=fields.one_of("backend", BACKENDS),
        candidates=_pool(fields.fields("candidates"), tree) if "candidates" in fields else None,
        finish_reason=fields.optional("finish_reason", fields.one_of, known=FINISHES),
        seed=fields.optional("seed", fields.whole),
        choice=_choice(fields.fields("choice")) if "choice" in fields else None,
    )
    _check_step(step)
    return step


def _choice(fields: Fields) -> SizeChoice:
    return SizeChoice(
        asked=fields.whole("asked", high=MAX_NODES),
        expected=fields.real("expected", high=MAX_NODES),
        cost=fields.real("cost", high=MAX_SECONDS),
    )


def _check_step(step: Step) -> None:
    """Raise Damage unless tokens, path and tree fit together."""
    tree, path, accepted = step.tree, step.path, step.accepted
    if (tree is None) != (step.kind == "prefill"):
        raise Damage(f"a {step.kind} step {'without' if tree is None else 'with'} a tree")
    cut = tree is not None and len(tree) == len(path) and tree.drafted < step.drafted
    if step.drafted != (tree.drafted if tree else 0) and not cut:
        raise Damage(f"{step.drafted} drafted, but the tree has another number of drafts")
    if tree is not None:
        if not path or path[0] != 0:
            raise Damage("the path does not begin at the tree's root")
        for parent, node in pairwise(path):
            if node >= len(tree) or tree.parents[node] != parent:
                raise Damage(f"the path leads from node {parent} to {node}, not its child")
    elif path:
        raise Damage("a path without a tree")
    if accepted > max(0, len(path) - 1):
        raise Damage(f"{accepted} accepted, more than the path has")
    if not step.tokens or not accepted <= len(step.tokens) <= accepted + 1:
        raise Damage(f"{len(step.tokens)} tokens emitted, {accepted} of them accepted")
    drafts = [] if tree is None else [tree.tokens[node] for node in path[1 : accepted + 1]]
    if list(step.tokens[:accepted]) != drafts:
        raise Damage("the accepted tokens are not those of the path")


def _tree(fields: Fields) -> DraftTree:
    tokens = fields.wholes("tokens", MAX_NODES, high=MAX_TOKEN)
    count = len(tokens)
    try:
        return DraftTree.of(
            tokens,
            fields.wholes("parents", MAX_NODES, -1, MAX_NODES),
            scores=fields.reals("scores", count, -MAX_SCORE, MAX_SCORE),
            probabilities=fields.reals("probabilities", count, 0.0, 1.001),  # float32 rounds
            ngram=fields.reals("ngram", count, 0.0, 1.001),
        )
    except Damage:
        raise
    except ValueError as error:
        raise Damage(str(error)) from error


def _pool(fields: Fields, tree: DraftTree | None) -> Candidates:
    tokens = np.array(fields.wholes("tokens", MAX_POOL, high=MAX_TOKEN), dtype=np.int64)
    count, nodes = len(tokens), len(tree) if tree else 0
    parents = np.array(fields.wholes("parents", MAX_POOL, -1, MAX_POOL), dtype=np.int32)
    node = np.array(fields.wholes("node", MAX_POOL, -1, nodes - 1), dtype=np.int32)
    if len(parents) != count or len(node) != count:
        raise Damage(
            f"{count} candidates with {len(parents)} parents and {len(node)} nodes of the tree"
        )
    if not (parents < np.arange(count)).all():
        raise Damage("a candidate's parent comes after it")
    return Candidates(tokens, parents, fields.reals("scores", count, -MAX_SCORE, MAX_SCORE), node)
