"""``python -m dart_core train plan | data | ngram | features | dart | eagle3 | eval``."""

from __future__ import annotations

import argparse
from typing import Any

from dart_core.presets import PRESETS
from dart_core.training import commands as train_commands

DEMO = PRESETS["demo"].target
HEADS = ["dart", "eagle3"]


def add_train_parser(commands: Any) -> None:
    """Add ``train`` and its own commands to the command line's sub-parsers."""
    parser = commands.add_parser("train", help="make training data, train draft heads")
    steps = parser.add_subparsers(dest="step", metavar="STEP", required=True)
    plan = steps.add_parser("plan", help="say what training will take: text, disk, minutes")
    _add_target(plan)
    plan.add_argument("--output", required=True, metavar="DIR", help="where all of it will be")
    plan.add_argument("--data", nargs="+", default=[], metavar="FILE", help="text that is there")
    plan.add_argument("--prompts", nargs="+", default=[], metavar="FILE", help="to be answered")
    plan.add_argument("--conversations", type=int, default=1000, metavar="N")
    plan.add_argument("--text-minutes", type=float, metavar="N", help="for writing text")
    plan.add_argument("--head-minutes", type=float, metavar="N", help="for each head")
    plan.add_argument("--heads", nargs="+", default=HEADS, choices=HEADS)
    plan.add_argument("--cache-gib", type=float, default=20.0, metavar="X")
    plan.add_argument("--draft-vocab-size", type=int, default=8192, metavar="N")
    plan.set_defaults(run=train_commands.run_plan)

    data = steps.add_parser("data", help="let the target write conversations")
    _add_target(data)
    data.add_argument(
        "--output",
        required=True,
        metavar="FILE",
        help="JSONL; a second call goes on where it ended",
    )
    data.add_argument(
        "--prompts",
        nargs="+",
        default=[],
        metavar="FILE",
        help="JSONL with prompt, turns or messages; default: templates and the target ask",
    )
    data.add_argument(
        "--templates", metavar="FILE", help="JSON of sentences with slots and words (default: ours)"
    )
    data.add_argument(
        "--template-share",
        type=float,
        default=0.4,
        metavar="X",
        help="asked by templates where there are no prompts, the others by the target (0.4)",
    )
    data.add_argument("--conversations", type=int, default=1000, metavar="N", help="default: 1000")
    data.add_argument(
        "--minutes", type=float, metavar="N", help="write for so long, all calls together"
    )
    data.add_argument(
        "--turns", type=int, default=1, metavar="N", help="user turns of each (default: 1)"
    )
    data.add_argument(
        "--max-new-tokens", type=int, default=384, metavar="N", help="of one answer (default: 384)"
    )
    data.add_argument(
        "--greedy-share",
        type=float,
        default=0.6,
        metavar="X",
        help="answered greedily (default: 0.6)",
    )
    data.add_argument(
        "--temperature", type=float, default=0.7, metavar="T", help="of the others (default: 0.7)"
    )
    data.add_argument(
        "--batch", type=int, default=64, metavar="N", help="conversations at a time (default: 64)"
    )
    data.add_argument(
        "--part",
        type=_part,
        default=(0, 1),
        metavar="I/N",
        help="write every N-th batch, the I-th (from 0) first: N processes write N files",
    )
    _add_data_rules(data)
    data.set_defaults(run=train_commands.run_data)

    ngram = steps.add_parser("ngram", help="count the n-grams of the text that heads train on")
    _add_target(ngram)
    _add_data(ngram)
    ngram.add_argument("--output", required=True, metavar="FILE", help="FILE.ngram")
    ngram.add_argument("--order", type=int, default=3, metavar="N", help="default: 3")
    ngram.set_defaults(run=train_commands.run_ngram)

    features = steps.add_parser(
        "features",
        help="compute the target's states that heads learn from, ahead of training",
        description="Training does this itself; started by `accelerate launch`, several processes "
        "share the work.",
    )
    _add_target(features)
    _add_data(features)
    features.set_defaults(run=train_commands.run_features)

    for kind, article, rows in (("dart", "a", "mask slots D"), ("eagle3", "an", "unrolled steps")):
        sub = steps.add_parser(kind, help=f"train {article} {kind.upper()} head")
        _add_target(sub)
        _add_data(sub)
        _add_training(sub, kind, rows)
        sub.set_defaults(run=train_commands.run_head, kind=kind)

    evaluate = steps.add_parser("eval", help="hit@k by position and τ by replay, on held-out text")
    _add_target(evaluate)
    _add_data(evaluate)
    evaluate.add_argument("--dart-model-name-or-path", metavar="REF", help="DART head")
    evaluate.add_argument("--eagle3-model-name-or-path", metavar="REF", help="EAGLE3 head")
    evaluate.add_argument("--ngram-model-name-or-path", metavar="FILE", help="n-gram for DART")
    evaluate.add_argument(
        "--prompt-file", action="append", default=[], metavar="FILE", help="τ on these too, greedy"
    )
    evaluate.add_argument(
        "--passages", type=int, metavar="N", help="held-out answers that τ is measured on (all)"
    )
    evaluate.add_argument("--limit", type=int, metavar="N", help="the first N prompts of each file")
    evaluate.add_argument(
        "--max-new-tokens", type=int, default=128, metavar="N", help="default: 128"
    )
    evaluate.add_argument(
        "--budgets",
        type=_numbers,
        default=[8, 16, 32, 60],
        metavar="LIST",
        help="default: 8,16,32,60",
    )
    evaluate.add_argument("--json", metavar="FILE", help="write the figures here")
    evaluate.set_defaults(run=train_commands.run_eval)


def _add_target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--base-model-name-or-path",
        default=DEMO,
        metavar="REF",
        help="Llama- or Qwen3-class target (default: the demo's)",
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda … (default: auto)")
    parser.add_argument(
        "--dtype",
        choices=("auto", "float32", "bfloat16"),
        default="auto",
        help="of the target and of products (default: bfloat16 where the hardware has it)",
    )
    parser.add_argument(
        "--threads", type=int, metavar="N", help="CPU threads (default: torch's choice)"
    )


def _add_data_rules(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--exclude",
        nargs="+",
        default=[],
        metavar="FILE",
        help="evaluation prompts (JSONL): conversations that share a run of words are dropped",
    )
    parser.add_argument(
        "--exclude-words", type=int, default=8, metavar="N", help="length of that run (default: 8)"
    )
    parser.add_argument(
        "--max-length",
        type=int,
        default=512,
        metavar="N",
        help="tokens of a sequence (default: 512)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="default: 0")


def _add_data(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("data")
    group.add_argument(
        "--data",
        nargs="+",
        required=True,
        metavar="FILE",
        help="JSONL (.gz) with messages, ShareGPT's conversations, or text",
    )
    group.add_argument(
        "--holdout",
        type=int,
        default=64,
        metavar="N",
        help="conversations kept for evaluation (64)",
    )
    group.add_argument(
        "--cache", metavar="DIR", help="target features (default: in the user's cache folder)"
    )
    group.add_argument(
        "--cache-gib",
        type=float,
        default=20.0,
        metavar="X",
        help="size limit of the cache; what does not fit is computed again each time (default: 20)",
    )
    _add_data_rules(group)


def _add_training(parser: argparse.ArgumentParser, kind: str, rows: str) -> None:
    dart = kind == "dart"
    parser.add_argument(
        "--output", required=True, metavar="DIR", help="the head; a second call resumes from it"
    )
    group = parser.add_argument_group("training (the first limit reached ends it)")
    group.add_argument("--minutes", type=float, metavar="N")
    group.add_argument("--steps", type=int, metavar="N")
    group.add_argument("--tokens", type=int, metavar="N", help="tokens of the sequences read")
    group.add_argument(
        "--rows",
        type=int,
        default=7 if dart else 4,
        metavar="N",
        help=f"{rows} (default: {7 if dart else 4})",
    )
    group.add_argument(
        "--loss-decay",
        type=float,
        default=0.6 if dart else 0.8,
        metavar="X",
        help="row j counts X^j (default: %(default)s)",
    )
    group.add_argument(
        "--row-keep",
        type=float,
        default=0.7 if dart else 0.8,
        metavar="X",
        help="row j is computed for X^j of the anchors, and counts 1/X^j (default: %(default)s)",
    )
    group.add_argument(
        "--sequences", type=int, default=2, metavar="N", help="per step and process (default: 2)"
    )
    group.add_argument(
        "--anchors", type=int, default=192, metavar="N", help="per sequence (default: 192)"
    )
    group.add_argument(
        "--learning-rate", type=float, default=1.5e-3, metavar="X", help="default: 1.5e-3"
    )
    group.add_argument(
        "--draft-vocab-size", type=int, default=8192, metavar="N", help="default: 8192"
    )
    if dart:
        group.add_argument(
            "--ngram-model-name-or-path",
            metavar="FILE",
            help="n-gram with which τ is measured now and then",
        )
    kinds = "a trained DART or EAGLE3 head" if dart else "a trained EAGLE3 head"
    group.add_argument(
        "--init-from",
        metavar="DIR",
        help=f"start from {kinds} of the same target; it sets the draft vocabulary",
    )
    group.add_argument(
        "--key-value-heads",
        type=int,
        metavar="N",
        help="default: " + ("as many as heads" if dart else "the target's"),
    )


def _part(text: str) -> tuple[int, int]:
    try:
        index, parts = map(int, text.split("/"))
        if 0 <= index < parts:
            return index, parts
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r}: expected I/N, I from 0 to N - 1, such as 0/4")


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected whole numbers with commas") from None
