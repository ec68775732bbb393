"""Figures of trained heads: hit@k by position on held-out text, and τ by replay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch

from dart_core.heads import DartHead, Eagle3Head, default_taps, load_dart_head, load_eagle3_head
from dart_core.ngram import NgramModel
from dart_core.prompts import Prompt, read_prompt_file
from dart_core.report import number
from dart_core.text import chat_prompt_ids
from dart_core.training.batches import collate
from dart_core.training.draft_vocab import draft_ids
from dart_core.training.features import FeatureCache, RecomputedFeatures
from dart_core.training.figures import drafter_of, hit_rates, tau_by_budget
from dart_core.training.initial import untrained
from dart_core.training.replay import Passage, held_out_passages, written_passages

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

EAGLE3_ROWS = 5  # positions whose hits are counted; a DART head has D + 1


def evaluate_heads(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    cache: FeatureCache | RecomputedFeatures,
    held_out: int,
    *,
    dart: str | Path | None,
    eagle3: str | Path | None,
    ngram: NgramModel | None,
    passages: int | None = None,
    prompts: Mapping[str, Sequence[Prompt]] = MappingProxyType({}),
    max_new_tokens: int = 128,
    budgets: Sequence[int] = (8, 16, 32, 60),
    log: Callable[[str], None] = print,
) -> dict:
    """Measure heads on the first ``held_out`` sequences of ``cache``, τ on ``passages`` (all) of
    them, and on greedy answers to sets of ``prompts``.

    Returns {"hits": {head: {"hit@k": [by position]}}, "tau": {set: {engine: {budget: τ}}}}, None
    in the place of a figure that no text is long enough for; heads
    are "dart", "eagle3" and, as they were before training, "dart untrained" and "eagle3 untrained"
    (on held-out text alone); engines are these, and "dart+ngram".
    """
    loading = {"dtype": model.dtype, "device": model.device, "target_config": model.config}
    heads: dict[str, DartHead | Eagle3Head] = {}
    if dart:
        heads["dart"] = load_dart_head(dart, **loading)
    if eagle3:
        heads["eagle3"] = load_eagle3_head(eagle3, **loading)
    for name, head in list(heads.items()):
        if (first := untrained(head, model)) is None:
            log(f"{name}: not of the target's sizes, so there is no untrained one to compare with")
        else:
            heads[f"{name} untrained"] = first.to(model.device, model.dtype).eval()
    embed = model.get_input_embeddings()
    report: dict = {"hits": {}, "tau": {}}
    for name, head in sorted(heads.items()):
        vocabulary = head.target_ids(torch.arange(head.config.draft_vocab_size)).cpu()
        inverse = draft_ids(vocabulary, head.config.vocab_size)
        batches = (collate([cache[i]], inverse) for i in range(held_out))
        rows = EAGLE3_ROWS if head.config.draft_length is None else head.config.draft_length + 1
        report["hits"][name] = rates = hit_rates(head, embed, batches, rows)
        for key, values in rates.items():
            log(f"{name:16} {key:6} by position: " + " ".join(number(value, 3) for value in values))

    engines = {name: (drafter_of(head, embed, {}), 0.0) for name, head in sorted(heads.items())}
    if dart and ngram:
        engines["dart+ngram"] = drafter_of(heads["dart"], embed, {"full": ngram}), 0.5
    sets: dict[str, list[Passage]] = {
        "held-out": list(
            held_out_passages(cache, min(held_out, passages or held_out), max_new_tokens)
        )
    }
    taps = default_taps(model.config.num_hidden_layers)
    ends = _end_tokens(model, tokenizer)
    for name, asked in prompts.items():
        ids = [
            chat_prompt_ids(
                tokenizer, [*prompt.history, {"role": "user", "content": prompt.turns[0]}]
            )
            for prompt in asked
        ]
        ids.sort(key=len)
        sets[name] = list(written_passages(model, ids, taps, max_new_tokens, ends))
    for name, texts in sets.items():
        report["tau"][name] = {}
        for engine, (drafter, weight) in engines.items():
            if "untrained" in engine and name != "held-out":
                continue
            by_budget = tau_by_budget(drafter, texts, budgets, weight)
            report["tau"][name][engine] = by_budget
            shown = "  ".join(f"b{budget} {number(value)}" for budget, value in by_budget.items())
            log(f"τ {name} ({len(texts)} texts) {engine:16} {shown}")
    return report


def _end_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Those that end an answer of the engine: the tokenizer's and all of the model's configs."""
    found: set[int] = set()
    for value in (
        tokenizer.eos_token_id,
        model.generation_config.eos_token_id,
        model.config.eos_token_id,
    ):
        if value is not None:
            found.update(value if isinstance(value, list) else [value])
    return found


def read_prompt_sets(paths: Sequence[str | Path], limit: int | None) -> dict[str, list[Prompt]]:
    """The first ``limit`` prompts of each file, by its name; by its path where another has that
    name.
    """
    names = Counter(["held-out", *(Path(path).stem for path in paths)])
    return {
        Path(path).stem if names[Path(path).stem] == 1 else str(path): read_prompt_file(path, limit)
        for path in paths
    }
