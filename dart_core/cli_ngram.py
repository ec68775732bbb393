"""``python -m dart_core ngram build | import | merge | reduce | inspect | query``."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable

from dart_core.cli import at_least, within_cores
from dart_core.errors import ArenaError
from dart_core.ngram import (
    DEFAULT_MEMORY_MIB,
    NgramModel,
    import_trie,
    inspect_ngram,
    merge_ngrams,
    reduce_ngram,
    tokenizer_fingerprint,
)
from dart_core.ngram_inputs import IdReader, TextReader, total_bytes, vocabulary_of
from dart_core.ngram_parallel import count_files, usable_processors
from dart_core.ngram_twin import MAX_ORDER, MIN_ORDER
from dart_core.progress import ProgressBar
from dart_core.report import check_destination
from dart_core.weights import load_tokenizer, resolve

PARALLEL_BYTES = 32 << 20  # of inputs: with less, a second process is not worth its start


def add_ngram_parser(commands: argparse._SubParsersAction) -> None:
    """Add the command ``ngram``; each action's namespace has its handler as ``run``."""
    parser = commands.add_parser("ngram", help="build, import and inspect n-gram files")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    def action(
        name: str, run: Callable[[argparse.Namespace], None], line: str
    ) -> argparse.ArgumentParser:
        added = actions.add_parser(name, help=line, description=line)
        added.set_defaults(run=run)
        return added

    build = action("build", _build, "count the n-grams of texts or token ids")
    build.add_argument(
        "inputs",
        nargs="+",
        metavar="FILE",
        help="JSONL with messages, turns, prompt, response or text; or .txt, one text a file (long "
        "ones are cut at a line's end every 64 Ki characters); either may be .gz",
    )
    build.add_argument("--output", required=True, metavar="FILE.ngram")
    build.add_argument("--order", type=int, default=3, help="longest n-gram (default 3)")
    kind = build.add_mutually_exclusive_group(required=True)
    kind.add_argument("--tokenizer", metavar="PATH", help="tokenizer folder or id, for texts")
    kind.add_argument(
        "--token-ids",
        action="store_true",
        help="the inputs are JSONL of token ids: a list a line, taken as it is",
    )
    build.add_argument(
        "--vocab-size",
        type=int,
        help="default: that of the model whose tokenizer it is; needed for ids",
    )
    build.add_argument(
        "--eos-token-id",
        type=int,
        help="appended to each text (default: the tokenizer's); -1: nothing is",
    )
    build.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="processes that count; the file is the same (default: one a processor, for small "
        "inputs one)",
    )
    _add_memory(build)

    convert = action(
        "import", _import, "convert a published .trie, losslessly; goes on where it was interrupted"
    )
    convert.add_argument("trie", metavar="FILE.trie")
    convert.add_argument("--output", required=True, metavar="FILE.ngram")
    convert.add_argument("--vocab-size", type=int, help="default: the largest token plus one")
    _add_memory(convert)

    merge = action("merge", _merge, "add up n-gram files of one order")
    merge.add_argument("inputs", nargs="+", metavar="FILE.ngram")
    merge.add_argument("--output", required=True, metavar="FILE.ngram")

    reduce = action("reduce", _reduce, "drop rare n-grams, as the published reduce does")
    reduce.add_argument("input", metavar="FILE.ngram")
    reduce.add_argument("--threshold", type=int, required=True, help="smallest count that stays")
    reduce.add_argument("--output", required=True, metavar="FILE.ngram")

    inspect = action("inspect", _inspect, "say what an n-gram file holds")
    inspect.add_argument("file", metavar="FILE.ngram")
    inspect.add_argument(
        "--verify", action="store_true", help="walk all of it, and hash what it holds"
    )
    inspect.add_argument("--json", action="store_true")

    query = action("query", _query, "probabilities of tokens after a context")
    query.add_argument("file", metavar="FILE.ngram")
    query.add_argument("--context", type=_ids, required=True, metavar="1,2,3")
    query.add_argument("--tokens", type=_ids, required=True, metavar="4,5,6")


def _add_memory(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--memory-mib",
        type=int,
        default=DEFAULT_MEMORY_MIB,
        metavar="N",
        help=f"for sorting, all workers together (default {DEFAULT_MEMORY_MIB}); what does not fit "
        "goes to scratch files beside the output",
    )


def _ids(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")] if text else []
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected token ids like 1,2,3, got {text!r}") from None


def _build(args: argparse.Namespace) -> None:
    at_least(args, {"vocab_size": 1, "eos_token_id": -1, "memory_mib": 1})
    within_cores(args, "workers")
    _check_output(args.output, *args.inputs)
    if not MIN_ORDER <= args.order <= MAX_ORDER:
        raise ArenaError(f"--order {args.order} is outside {MIN_ORDER} to {MAX_ORDER}")
    fingerprint = ""
    if args.token_ids:
        if args.vocab_size is None:
            raise ArenaError("--token-ids needs --vocab-size, the target's vocabulary size")
        reader: IdReader | TextReader = IdReader(args.vocab_size)
    else:
        folder = resolve(args.tokenizer, kind="tokenizer", progress=_note)
        tokenizer = load_tokenizer(folder)
        fingerprint = tokenizer_fingerprint(tokenizer)
        vocab_size = args.vocab_size or vocabulary_of(folder, tokenizer)
        eos = tokenizer.eos_token_id if args.eos_token_id is None else args.eos_token_id
        if eos is None:
            raise ArenaError(
                f"{args.tokenizer} names no end-of-sequence token: give --eos-token-id (-1: none)"
            )
        if eos >= vocab_size:
            raise ArenaError(
                f"--eos-token-id {eos} is outside the vocabulary of {vocab_size} tokens"
            )
        reader = TextReader.of(tokenizer, () if eos < 0 else (eos,), vocab_size)
    small = total_bytes(args.inputs) < PARALLEL_BYTES
    start = time.perf_counter()
    count_files(
        args.inputs,
        reader,
        args.order,
        args.output,
        fingerprint=fingerprint,
        memory_mib=args.memory_mib,
        workers=args.workers or (1 if small else usable_processors()),
    )
    _report(args.output, start)


def _check_output(output: str, *inputs: str) -> None:
    check_destination(output, "--output", {"an input": inputs})


def _import(args: argparse.Namespace) -> None:
    at_least(args, {"vocab_size": 1, "memory_mib": 1})
    _check_output(args.output, args.trie)
    start = time.perf_counter()
    import_trie(
        args.trie,
        args.output,
        args.vocab_size,
        memory_mib=args.memory_mib,
        note=_note,
        bar=ProgressBar("converting"),
    )
    _report(args.output, start)


def _merge(args: argparse.Namespace) -> None:
    _check_output(args.output, *args.inputs)
    start = time.perf_counter()
    merge_ngrams(args.inputs, args.output)
    _report(args.output, start)


def _reduce(args: argparse.Namespace) -> None:
    at_least(args, {"threshold": 1})
    _check_output(args.output, args.input)
    start = time.perf_counter()
    reduce_ngram(args.input, args.threshold, args.output)
    _report(args.output, start)


def _inspect(args: argparse.Namespace) -> None:
    facts = inspect_ngram(args.file, verify=args.verify)
    if args.json:
        print(json.dumps(facts, indent=2))
        return
    for name, value in facts.items():
        if name == "ngrams":
            value = ", ".join(f"{count:,} of length {length}" for length, count in value.items())
        if name == "root_total" and value < 0:
            value = f"{value} (minus the counts that reduce dropped, as published files have it)"
        print(f"{name:22} {value}")


def _query(args: argparse.Namespace) -> None:
    with NgramModel.open(args.file) as model:
        probabilities, matched = model.query(args.context, args.tokens)
    for token, probability, length in zip(args.tokens, probabilities, matched, strict=True):
        print(f"{token:8d}  {probability:.6f}  after the last {length} of the context")


def _note(line: str) -> None:
    print(line, file=sys.stderr)


def _report(path: str, start: float) -> None:
    facts = inspect_ngram(path)
    _note(
        f"{path}: order {facts['order']}, {facts['nodes'] - 1:,} n-grams, "
        f"{facts['file_bytes'] / 1e6:.1f} MB, in {time.perf_counter() - start:.1f} s"
    )
