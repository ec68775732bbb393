"""What the steps of ``train`` share: device, target, text, the target's features, processes."""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
import time
import warnings
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dart_core.cli import within_cores
from dart_core.errors import ArenaError
from dart_core.weights import cache_dir, load_tokenizer, readable, resolve

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from dart_core.training.data import Sequence
    from dart_core.training.features import RecomputedFeatures

Log = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Range:
    """The values of a flag: from ``low``, or only what is above it, to ``high``."""

    low: float
    high: float = math.inf
    above: bool = False

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high and not (self.above and value == self.low)

    def __str__(self) -> str:
        if self.high == math.inf:
            return f"{self.low} or more"
        return f"{'above ' * self.above}{self.low} to {self.high}"


COUNT, SHARE = Range(1), Range(0, 1)
MINUTES = Range(0, 1_000_000, above=True)  # two years

# What every flag that has limits may be, whichever step it belongs to. Those that are no whole
# numbers have an upper one, so that none is infinite.
LIMITS = {
    "conversations": Range(1, 10**9),
    "turns": COUNT,
    "batch": COUNT,
    "max_new_tokens": COUNT,
    "temperature": Range(0, 100),
    "greedy_share": SHARE,
    "template_share": SHARE,
    "max_length": Range(2),
    "exclude_words": COUNT,
    "holdout": Range(0),
    "cache_gib": Range(0, 10**6),
    "minutes": MINUTES,
    "text_minutes": MINUTES,
    "head_minutes": MINUTES,
    "steps": COUNT,
    "tokens": COUNT,
    "rows": COUNT,
    "loss_decay": Range(0, 1, above=True),
    "row_keep": SHARE,
    "sequences": COUNT,
    "anchors": COUNT,
    "learning_rate": SHARE,
    "draft_vocab_size": COUNT,
    "key_value_heads": COUNT,
    "limit": COUNT,
    "passages": COUNT,
    "seed": Range(0, 2**32 - 1),  # random numbers are drawn from products of it, within 64 bits
}


def log(text: str) -> None:
    """A line for people, with the time."""
    print(time.strftime("%H:%M:%S"), text, file=sys.stderr, flush=True)


def silent(text: str) -> None:
    """What all but the first of several processes say."""


def check_flags(args: Namespace) -> None:
    """Raises ArenaError for a number that no step of ``train`` can work with."""
    for name, limits in LIMITS.items():
        value = getattr(args, name, None)
        if value is not None and value not in limits:
            raise ArenaError(f"--{name.replace('_', '-')} {value}: expected {limits}")
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
    """(sequences, held-out ones first; facts about the data, for its provenance). The same files
    give the same sequences, in whatever order they are named.
    """
    from dart_core.training.data import TRAINED_ON, ChatEncoder, read_records, split
    from dart_core.training.fingerprints import data_files
    from dart_core.training.overlap import OverlapFilter

    files = data_files(args.data)
    records = list(read_records([path for path, _ in files], TRAINED_ON))
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
        "data": [[path.name, sha256] for path, sha256 in files],
        "excluded": [[path.name, sha256] for path, sha256 in data_files(args.exclude)],
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
    *,
    count: int | None = None,
    accelerator: Accelerator | None = None,
    log: Log = log,
) -> RecomputedFeatures:
    """The features of these sequences: from the cache, its first ``count`` (all) filled where they
    are not, every process its part; what the size limit leaves out is computed when it is read.
    """
    from dart_core.training.features import (
        FeatureCache,
        RecomputedFeatures,
        cache_settings,
        write_cache,
    )
    from dart_core.training.fingerprints import target_fingerprint

    target = target_fingerprint(resolve(args.base_model_name_or_path, kind="target", progress=log))
    settings = cache_settings(model, sequences, target=target)
    key = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:16]
    folder = Path(args.cache) if args.cache else cache_dir() / "features" / key
    write_cache(
        folder,
        model,
        sequences,
        settings,
        count=count,
        worker=accelerator.process_index if accelerator else 0,
        workers=accelerator.num_processes if accelerator else 1,
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
