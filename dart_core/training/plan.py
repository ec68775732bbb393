"""What training heads for a target will take, said before any of it is done."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from dart_core.heads import DartHead, Eagle3Head, default_taps
from dart_core.progress import duration, size
from dart_core.training.data import ASKED, read_records
from dart_core.training.initial import head_config
from dart_core.training.states import TOP_K

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

TOKENS_A_CONVERSATION = 350  # written by a target; a guess
BYTES_A_TOKEN = 4.3  # of text in JSON; a guess
OPTIMISER_BYTES = 16  # a parameter in fp32, its gradient and two moments


def plan_lines(
    args: argparse.Namespace, target: Path, device: torch.device, dtype: torch.dtype
) -> Iterator[str]:
    """Lines for people: the target, then every phase with its size or its time."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(str(target)).get_text_config()
    processors = torch.cuda.device_count() if device.type == "cuda" else 1
    yield (
        f"target    {args.base_model_name_or_path}: {config.num_hidden_layers} layers, "
        f"{config.hidden_size} wide, vocabulary of {config.vocab_size:,}; {str(dtype)[6:]} on "
        f"{processors} x {device.type}"
    )
    tokens, text = _text(args)
    yield f"text      {text}"
    known = "about " if tokens else "a million of them "
    taps = default_taps(config.num_hidden_layers)
    a_token = len(taps) * config.hidden_size * dtype.itemsize + TOP_K * 6 + 5
    needed, limit = (tokens or 1_000_000) * a_token, args.cache_gib * 2**30
    kept = min(needed, limit)
    yield (
        f"features  {a_token:,} bytes a token, {known}{size(needed)}"
        + (f", of which {size(limit)} are kept and the rest computed again" * (needed > limit))
        + f"; one pass of the target. Free disk: {size(_free(args.output))}"
    )
    if kept > _free(args.output):
        yield "          THAT IS MORE THAN THE DISK HOLDS: lower --cache-gib"
    for kind in args.heads:
        yield f"{kind:9} {_head(args, kind, config)}"
    yield "figures   hit@k and τ of trained and untrained heads on conversations kept apart"


def _text(args: argparse.Namespace) -> tuple[int | None, str]:
    """(about how many tokens, None where time alone decides; in words)."""
    if args.data:
        read = sum(
            Path(path).stat().st_size * (3 if path.endswith(".gz") else 1) for path in args.data
        )
        tokens = int(read / BYTES_A_TOKEN)
        return tokens, f"about {tokens / 1e6:.2f} million tokens in {', '.join(args.data)}"
    count = args.conversations
    if args.prompts:
        count = min(count, sum(1 for _ in read_records(args.prompts, ASKED)))
    source = "prompts of yours" if args.prompts else "questions from templates and the target"
    if args.text_minutes:
        time = duration(args.text_minutes * 60)
        return None, f"the target answers {source} for {time}, or {count:,} of them"
    tokens = count * TOKENS_A_CONVERSATION
    return tokens, f"the target answers {count:,} {source}: about {tokens / 1e6:.2f} million tokens"


def _head(args: argparse.Namespace, kind: str, config: PreTrainedConfig) -> str:
    dart = kind == "dart"
    sizes = head_config(
        config,
        draft_vocab_size=min(args.draft_vocab_size, config.vocab_size),
        draft_length=7 if dart else None,
        key_value_heads=config.num_attention_heads if dart else None,
    )
    with torch.device("meta"):
        head = (DartHead if dart else Eagle3Head)(sizes)
    count = sum(parameter.numel() for parameter in head.parameters())
    time = duration(args.head_minutes * 60) if args.head_minutes else "as long as you let it"
    return (
        f"{count / 1e6:,.1f} M parameters, {size(count * 2)} on disk, "
        f"{size(count * OPTIMISER_BYTES)} of memory to train; {time}"
    )


def _free(folder: str) -> int:
    path = Path(folder).resolve()
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free
