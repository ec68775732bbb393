"""What the steps of ``train`` share: device, target, text, the target's features, processes."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
import warnings
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dart_core.cli import at_least, within_cores
from dart_core.errors import ArenaError
from dart_core.weights import cache_dir, load_tokenizer, readable, resolve

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from dart_core.training.data import Sequence
    from dart_core.training.features import RecomputedFeatures

Log = Callable[[str], None]

# The smallest value of every flag that has one, whichever step it belongs to.
LIMITS = {
    "conversations": 1,
    "turns": 1,
    "batch": 1,
    "max_new_tokens": 1,
    "temperature": 0,
    "greedy_share": 0,
    "template_share": 0,
    "max_length": 2,
    "exclude_words": 1,
    "holdout": 0,
    "cache_gib": 0,
    "minutes": 0,
    "text_minutes": 0,
    "head_minutes": 0,
    "steps": 1,
    "tokens": 1,
    "rows": 1,
    "loss_decay": 0,
    "row_keep": 0,
    "sequences": 1,
    "anchors": 1,
    "learning_rate": 0,
    "draft_vocab_size": 1,
    "key_value_heads": 1,
    "limit": 1,
    "passages": 1,
}


def log(text: str) -> None:
    """A line for people, with the time."""
    print(time.strftime("%H:%M:%S"), text, file=sys.stderr, flush=True)


def silent(text: str) -> None:
    """What all but the first of several processes say."""


def check_flags(args: Namespace) -> None:
    """Raises ArenaError for a number that no step of ``train`` can work with."""
    at_least(args, LIMITS)
    within_cores(args, "threads")


def compute_with(args: Namespace) -> tuple[torch.device, torch.dtype]:
    """(device, dtype) to compute with; also sets the number of threads. Checks the flags first."""
    import torch

    from dart_core.target import default_device, default_dtype, parse_device

    check_flags(args)
    device = default_device() if args.device == "auto" else parse_device(args.device)
    if args.threads:
        torch.set_num_threads(args.threads)
    return device, default_dtype(device) if args.dtype == "auto" else getattr(torch, args.dtype)


def load_target(
    args: Namespace, device: torch.device, dtype: torch.dtype
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """(model, tokenizer) of the target, frozen."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # our own lines say what is going on
    path = resolve(args.base_model_name_or_path, kind="target", progress=log)
    with readable(path, "target"):
        model = AutoModelForCausalLM.from_pretrained(str(path), dtype=dtype).to(device)
    return model.eval().requires_grad_(False), load_tokenizer(path)


def read_sequences(
    args: Namespace, tokenizer: PreTrainedTokenizerBase, log: Log = log
) -> tuple[list[Sequence], dict[str, Any]]:
    """(sequences, held-out ones first; facts about the data for cache and provenance)."""
    from dart_core.training.data import TRAINED_ON, ChatEncoder, file_sha256, read_records, split
    from dart_core.training.overlap import OverlapFilter

    records = list(read_records(args.data, TRAINED_ON))
    dropped = 0
    if args.exclude:
        records, dropped = OverlapFilter(args.exclude, args.exclude_words).clean(records)
        log(
            f"{dropped} of {len(records) + dropped} records dropped: they share "
            f"{args.exclude_words} words with an excluded prompt"
        )
    held_out, rest = split(records, args.holdout, args.seed)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always", UserWarning)
        sequences = ChatEncoder(tokenizer, args.max_length).encode_all(held_out + rest)
    for warning in heard:
        log(f"warning: {warning.message}")
    if len(sequences) <= args.holdout:
        raise ArenaError(
            f"{len(sequences)} conversations, of which --holdout {args.holdout} are kept for "
            "evaluation, leave none to train on: give more data or a smaller --holdout"
        )
    facts = {
        "data": {Path(path).name: file_sha256(path) for path in args.data},
        "excluded": {Path(path).name: file_sha256(path) for path in args.exclude},
        "excluded_records": dropped,
        "exclude_words": args.exclude_words,
        "max_length": args.max_length,
        "seed": args.seed,
        "holdout": args.holdout,
    }
    return sequences, facts


def target_features_of(
    args: Namespace,
    model: PreTrainedModel,
    sequences: list[Sequence],
    facts: dict[str, Any],
    *,
    count: int | None = None,
    accelerator: Accelerator | None = None,
    log: Log = log,
) -> RecomputedFeatures:
    """The features of these sequences: from the cache, its first ``count`` (all) filled where they
    are not, every process its part; what the size limit leaves out is computed when it is read.
    """
    from dart_core.training.features import FeatureCache, RecomputedFeatures, write_cache

    facts = {**facts, "target": args.base_model_name_or_path}
    key = json.dumps({**facts, "dtype": str(model.dtype)}, sort_keys=True)
    key = hashlib.sha256(key.encode()).hexdigest()[:16]
    folder = Path(args.cache) if args.cache else cache_dir() / "features" / key
    write_cache(
        folder,
        model,
        sequences,
        count=count,
        worker=accelerator.process_index if accelerator else 0,
        workers=accelerator.num_processes if accelerator else 1,
        facts=facts,
        limit_bytes=int(args.cache_gib * 2**30),
        log=log,
    )
    if accelerator:
        accelerator.wait_for_everyone()
    return RecomputedFeatures(FeatureCache(folder), model, sequences)


def all_processes(device: torch.device) -> Accelerator:
    """The processes that work together: one, or as many as `accelerate launch` started."""
    from datetime import timedelta

    from accelerate import Accelerator, InitProcessGroupKwargs

    patience = InitProcessGroupKwargs(timeout=timedelta(hours=12))  # while another one computes
    accelerator = Accelerator(cpu=device.type == "cpu", kwargs_handlers=[patience])
    if accelerator.num_processes == 1 and device.type == "cpu" and "MASTER_PORT" in os.environ:
        log(
            "one process runs: on CPUs `accelerate launch` starts no more; several are started by "
            "`torchrun --nproc-per-node N -m dart_core train …`"
        )
    return accelerator
