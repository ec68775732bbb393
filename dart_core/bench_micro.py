"""Small things, timed apart: start-up, the tree search against its Python twin, re-ranking."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from dart_core._native import Backend
from dart_core.bench_floors import spread
from dart_core.bench_stock import StockTarget
from dart_core.drafters.eagle3 import Pool, rerank
from dart_core.engine import Engine, GenerationSettings
from dart_core.errors import ArenaError
from dart_core.ngram import NgramModel, build_ngram
from dart_core.pruner import TreePruner
from dart_core.tree import DraftTree

WIDTH, BEAM, LEVELS, NODES = 25, 20, 8, 60  # as the published DART searches
EAGLE3_DEPTH, EAGLE3_TOP_K = 7, 10  # as the published EAGLE3 drafts
SYNTHETIC_TOKENS = 560_000  # n-grams up to order 3 of so many made-up tokens: a million nodes
SYNTHETIC_VOCAB = 50_000
SHORT_PROMPT = "Hello!"

Log = Callable[[str], None]

_OPEN = """
import os, sys, time
path = sys.argv[1]
import numpy
from dart_core.ngram import NgramModel
if hasattr(os, "posix_fadvise"):
    file = os.open(path, os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)
start = time.perf_counter()
model = NgramModel.open(path)
opened = time.perf_counter()
model.query([1], [2])
print(opened - start, time.perf_counter() - opened)
"""


# Start-up -----------------------------------------------------------------------------------------


def measure_startup(
    engine: Engine,
    stock: StockTarget | None,
    settings: GenerationSettings,
    *,
    load_seconds: float | None,
    rounds: int,
    log: Log,
) -> dict[str, Any]:
    """load_seconds: of the engine, once, in this process. ngram_open: in fresh processes. Time to
    the first token of a short prompt: by engine, and of transformers' ``generate``.
    """
    found: dict[str, Any] = {"load_seconds": load_seconds, "ngram_open": None}
    path = _ngram_path(engine)
    if path is not None:
        log(f"start-up: opening the n-gram in {rounds} fresh processes")
        found["ngram_open"] = _open_cold(path, rounds)
    try:
        prompt = engine.chat_ids([{"role": "user", "content": SHORT_PROMPT}])
    except ArenaError:  # no chat template
        prompt = list(engine.tokenizer(SHORT_PROMPT)["input_ids"])
    log(f"start-up: first tokens of a prompt of {len(prompt)} tokens")
    eos = settings.eos_token_ids | engine.eos_token_ids
    firsts: dict[str, list[float]] = {}
    for number in range(rounds + 1):  # the first round warms up
        for name in engine.drafters:
            seconds = _first_token(engine, prompt, name, settings)
            firsts.setdefault(name, []).extend([seconds] if number else [])
        if stock is not None:
            run = stock.generate(prompt, max_new_tokens=1, eos_token_ids=eos)
            firsts.setdefault("generate", []).extend([run.first_seconds] if number else [])
    found["prompt_tokens"] = len(prompt)
    found["first_token"] = {name: spread(values) for name, values in firsts.items()}
    return found


def _ngram_path(engine: Engine) -> Path | None:
    ngrams = getattr(engine.drafters.get("dart"), "ngrams", {})
    return next((ngram.path for ngram in ngrams.values()), None)


def _open_cold(path: Path, rounds: int) -> dict[str, Any]:
    opened, queried = [], []
    for _ in range(rounds):
        command = [sys.executable, "-c", _OPEN, str(path)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise ArenaError(f"a fresh process could not open the n-gram {path.name}: {reason}")
        open_seconds, query_seconds = map(float, done.stdout.split())
        opened.append(open_seconds)
        queried.append(query_seconds)
    return {
        "file_bytes": path.stat().st_size,
        "seconds": spread(opened),
        "first_query_seconds": spread(queried),
    }


def _first_token(
    engine: Engine, prompt: list[int], name: str, settings: GenerationSettings
) -> float:
    """Seconds from the call to the first token, caches made on the way."""
    started = perf_counter()
    with closing(engine.stream(prompt, name, settings)) as steps:
        next(steps)
        return perf_counter() - started


# The search ---------------------------------------------------------------------------------------


def measure_pruner(
    engine: Engine | None,
    *,
    calls: int,
    inputs: int = 64,
    log: Log,
) -> dict[str, Any]:
    """Microseconds a call of the native search and of its Python twin on the same ``inputs``, over
    the engine's n-gram (None: without) and a made-up one; and of EAGLE3's re-ranking.
    """
    found: dict[str, Any] = {
        "width": WIDTH, "beam": BEAM, "levels": LEVELS, "nodes": NODES, "searches": [],
    }  # fmt: skip
    path = _ngram_path(engine) if engine is not None else None
    if path is not None:
        log("pruner: the engine's n-gram")
        found["searches"].append(_searches("the engine's n-gram", path, calls, inputs))
    with tempfile.TemporaryDirectory() as folder:
        log(f"pruner: a made-up n-gram of {SYNTHETIC_TOKENS:,} tokens")
        made = Path(folder) / "made-up.ngram"
        build_ngram(_made_up(SYNTHETIC_TOKENS), 3, SYNTHETIC_VOCAB, made)
        found["searches"].append(_searches("made-up", made, calls, inputs))
    found["rerank"] = {
        "depth": EAGLE3_DEPTH,
        "top_k": EAGLE3_TOP_K,
        "microseconds": _rerank(calls, inputs),
    }
    return found


def _searches(name: str, path: Path, calls: int, inputs: int) -> dict[str, Any]:
    with NgramModel.open(path) as model:
        backends: list[Backend] = ["native", "twin"] if model.backend == "native" else ["twin"]
        given = list(_search_inputs(model, inputs))
        nodes = sum(model.entries) + 1
    pruners = {each: _pruner(path, each) for each in backends}
    works = {
        each: [partial(pruner.search, *of) for of in given] for each, pruner in pruners.items()
    }
    trees = [[work()[0] for work in each] for each in works.values()]
    return {
        "ngram": name,
        "ngram_nodes": nodes,
        "equal_trees": all(map(_same, trees[0], trees[-1])),
        "microseconds": _microseconds(works, calls),
    }


def _pruner(path: Path, backend: Backend) -> TreePruner:
    return TreePruner(NgramModel.open(path, backend=backend), levels=LEVELS, beam=BEAM)


def _same(one: DraftTree, other: DraftTree) -> bool:
    return np.array_equal(one.tokens, other.tokens) and np.array_equal(one.parents, other.parents)


def _search_inputs(model: NgramModel, count: int) -> Iterator[tuple]:
    """Arguments of ``TreePruner.search``: candidates as frequent as the n-gram has them."""
    rng = np.random.default_rng(0)
    weights = np.nan_to_num(model.query([0], np.arange(model.vocab_size))[0].astype(np.float64))
    weights = np.maximum(weights, 1e-9)
    weights /= weights.sum()
    width = min(WIDTH, model.vocab_size)
    for _ in range(count):
        tokens = [rng.choice(len(weights), width, replace=False, p=weights) for _ in range(LEVELS)]
        probabilities = -np.sort(-rng.dirichlet(np.full(width, 0.3), LEVELS))
        context = rng.choice(len(weights), 3, p=weights).tolist()
        yield np.array(tokens), probabilities.astype(np.float32), context, context[-1], NODES


def _made_up(tokens: int) -> list[np.ndarray]:
    """Streams of a thousand independent tokens each, by Zipf's law."""
    rng = np.random.default_rng(0)
    drawn = SYNTHETIC_VOCAB ** rng.random((max(1, tokens // 1000), 1000))
    return list(drawn.astype(np.int64).clip(0, SYNTHETIC_VOCAB - 1))


def _rerank(calls: int, inputs: int) -> dict[str, float]:
    pools = [_pool(np.random.default_rng(seed)) for seed in range(inputs)]
    works = {"": [(lambda pool=pool: rerank(pool, 0, NODES)) for pool in pools]}
    return _microseconds(works, calls)[""]


def _pool(rng: np.random.Generator) -> Pool:
    """What EAGLE3 drafts: ``top_k`` children of the root, then of the best ``top_k`` of a level."""
    step = -rng.exponential(1.0, (EAGLE3_DEPTH + 1, EAGLE3_TOP_K, EAGLE3_TOP_K)).astype(np.float32)
    levels, beam = [(step[0, 0], np.full(EAGLE3_TOP_K, -1))], np.arange(EAGLE3_TOP_K)
    size, above = EAGLE3_TOP_K, step[0, 0]
    for own in step[1:]:
        scores = (above[:, None] + own).ravel()
        levels.append((scores, beam.repeat(EAGLE3_TOP_K)))
        best = np.argsort(-scores)[:EAGLE3_TOP_K]
        beam, above, size = best + size, scores[best], size + len(scores)
    scores, parents = (np.concatenate(column) for column in zip(*levels, strict=True))
    tokens = rng.integers(0, SYNTHETIC_VOCAB, len(scores)).astype(np.int32)
    return Pool(scores, tokens, parents.astype(np.int32))


def _microseconds(
    works: Mapping[Any, Sequence[Callable[[], Any]]], calls: int
) -> dict[str, dict[str, float]]:
    """Quartiles over ``calls`` single calls each, in turns and input by input."""
    found: dict[str, list[float]] = {name: [] for name in works}
    for call in range(calls):
        for name, each in works.items():
            work = each[call % len(each)]
            started = perf_counter()
            work()
            found[name].append(1e6 * (perf_counter() - started))
    return {name: spread(values) for name, values in found.items()}
