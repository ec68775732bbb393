"""What the steps of ``python -m dart_core train`` do. torch is imported once one really runs."""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dart_core.disk import alone_with
from dart_core.errors import ArenaError
from dart_core.report import check_destination, write_json
from dart_core.training.provenance import Provenance
from dart_core.training.setup import (
    all_processes,
    check_flags,
    compute_with,
    load_target,
    log,
    read_sequences,
    silent,
    target_features_of,
)
from dart_core.weights import load_tokenizer, resolve

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator
    from torch import Tensor
    from transformers import PreTrainedModel

    from dart_core.training.features import FeatureCache, RecomputedFeatures

WATCHED = 16  # held-out sequences on which a head is measured while it trains


def run_data(args: argparse.Namespace) -> int:
    """``train data``."""
    device, dtype = compute_with(args)
    output = Path(args.output)
    output.parent.mkdir(parents=True, exist_ok=True)
    read = [*args.prompts, *args.exclude, *([args.templates] if args.templates else [])]
    check_destination(args.output, "--output", {"an input": read})
    with alone_with(output, output.with_name(f"{output.name}.lock")):
        print(_write_text(args, device, dtype))
    return 0


def _write_text(args: argparse.Namespace, device: torch.device, dtype: torch.dtype) -> str:
    from dart_core.training.answers import (
        AnswerSettings,
        is_finished,
        read_questions,
        write_answers,
    )
    from dart_core.training.fingerprints import in_words, target_fingerprint
    from dart_core.training.overlap import OverlapFilter
    from dart_core.training.templates import OWN, Templates

    questions = read_questions(args.prompts)
    templates = Templates.read(args.templates or OWN)
    exclude = OverlapFilter(args.exclude, args.exclude_words) if args.exclude else None
    target = resolve(args.base_model_name_or_path, kind="target", progress=log)
    settings = AnswerSettings(
        conversations=args.conversations,
        turns=args.turns,
        batch=args.batch,
        max_new_tokens=args.max_new_tokens,
        max_length=args.max_length,
        greedy_share=args.greedy_share,
        template_share=args.template_share,
        temperature=args.temperature,
        minutes=args.minutes,
        seed=args.seed,
        part=args.part,
        made_from={
            "target fingerprint": target_fingerprint(target),
            "--prompts": in_words(args.prompts),
            "--templates": in_words([] if args.prompts else [args.templates or OWN]),
            "--exclude": in_words(args.exclude),
            "--exclude-words": str(args.exclude_words),
        },
    )
    if (count := is_finished(args.output, settings)) is not None:
        return f"{count} conversations in {args.output}: it is finished"
    model, tokenizer = load_target(args, device, dtype)
    count = write_answers(
        model,
        tokenizer,
        args.output,
        settings,
        questions=questions,
        templates=templates,
        exclude=exclude,
    )
    return f"{count} conversations in {args.output}"


def run_ngram(args: argparse.Namespace) -> int:
    """``train ngram``: the same records, exclusions and held-out conversations as the heads'."""
    from dart_core.ngram import build_ngram, tokenizer_fingerprint
    from dart_core.ngram_inputs import vocabulary_of

    check_flags(args)
    Path(args.output).parent.mkdir(parents=True, exist_ok=True)
    check_destination(args.output, "--output", {"an input": [*args.data, *args.exclude]})
    path = resolve(args.base_model_name_or_path, kind="target", progress=log)
    tokenizer = load_tokenizer(path)
    sequences, facts = read_sequences(args, tokenizer)
    build_ngram(
        (sequence.tokens for sequence in sequences[facts["holdout"] :]),
        args.order,
        vocabulary_of(path, tokenizer),
        args.output,
        fingerprint=tokenizer_fingerprint(tokenizer),
    )
    print(f"{args.output}: {Path(args.output).stat().st_size / 1e6:.1f} MB")
    return 0


def run_plan(args: argparse.Namespace) -> int:
    """``train plan``."""
    device, dtype = compute_with(args)
    from dart_core.training.plan import plan_lines

    path = resolve(args.base_model_name_or_path, kind="target", progress=log)
    for line in plan_lines(args, path, device, dtype):
        print(line)
    return 0


def run_features(args: argparse.Namespace) -> int:
    """``train features``."""
    device, dtype = compute_with(args)
    accelerator = all_processes(device)
    model, tokenizer = load_target(args, accelerator.device, dtype)
    say = log if accelerator.is_main_process else silent
    sequences, _ = read_sequences(args, tokenizer, say)
    cache = target_features_of(args, model, sequences, accelerator=accelerator, log=say).cache
    if accelerator.is_main_process:
        print(f"{len(cache)} of {len(sequences)} sequences in {cache.folder}")
    return 0


def run_head(args: argparse.Namespace) -> int:
    """``train dart`` and ``train eagle3``."""
    device, dtype = compute_with(args)
    Path(args.output).mkdir(parents=True, exist_ok=True)
    check_destination(str(Path(args.output, "provenance.json")), "--output")
    if args.init_from and Path(args.output).resolve() == Path(args.init_from).resolve():
        raise ArenaError(
            f"--output {args.output} is the folder of --init-from: the head there would be lost; "
            "name another"
        )
    accelerator = all_processes(device)
    first = accelerator.is_main_process
    with alone_with(args.output, Path(args.output, "lock")) if first else nullcontext():
        _train_head(args, accelerator, dtype)
    return 0


def _train_head(args: argparse.Namespace, accelerator: Accelerator, dtype: torch.dtype) -> None:
    from dart_core.ngram import NgramModel
    from dart_core.training.batches import BatchSource
    from dart_core.training.draft_vocab import choose_draft_vocabulary, count_tokens, draft_ids
    from dart_core.training.figures import HeldOut
    from dart_core.training.objectives import Objective
    from dart_core.training.trainer import TrainSettings, train

    settings = TrainSettings(
        steps=args.steps,
        tokens=args.tokens,
        minutes=args.minutes,
        sequences=args.sequences,
        anchors=args.anchors,
        learning_rate=args.learning_rate,
        seed=args.seed,
    )
    say = log if accelerator.is_main_process else silent
    ngram = getattr(args, "ngram_model_name_or_path", None)
    ngrams = {"full": NgramModel.open(ngram)} if ngram else {}
    model, tokenizer = load_target(args, accelerator.device, dtype)
    sequences, facts = read_sequences(args, tokenizer, say)
    config = model.config.get_text_config()
    counts = count_tokens(sequences[facts["holdout"] :], config.vocab_size)
    vocabulary = choose_draft_vocabulary(counts, min(args.draft_vocab_size, config.vocab_size))
    head, vocabulary = _new_head(args, model, vocabulary)
    say(
        f"{len(sequences)} sequences, {counts.sum()} supervised tokens; the draft vocabulary of "
        f"{len(vocabulary)} covers {counts[vocabulary.numpy()].sum() / counts.sum():.4f} of them"
    )
    found = target_features_of(args, model, sequences, accelerator=accelerator, log=say)
    fingerprints = {name: found.cache.settings[name] for name in ("target", "text")}
    embed = model.get_input_embeddings().to(dtype)
    features: FeatureCache | RecomputedFeatures = found
    if len(found.cache) == len(sequences):
        features = found.cache
        del model, found  # all that it says is on disk

    to_draft = draft_ids(vocabulary, config.vocab_size)
    source = BatchSource(
        features,
        to_draft,
        holdout=facts["holdout"],
        sequences=args.sequences,
        seed=args.seed,
        rank=accelerator.process_index,
        ranks=accelerator.num_processes,
    )
    objective = Objective(args.rows + (args.kind == "dart"), args.loss_decay, args.row_keep)
    held_out = None
    if accelerator.is_main_process and facts["holdout"]:
        items = source.held_out(WATCHED)
        held_out = HeldOut(items, to_draft, embed, objective.rows, ngrams=ngrams)
    record = Provenance(args, {**facts, "fingerprints": fingerprints}, sequences, accelerator)
    progress = train(
        head.to(accelerator.device),
        embed,
        source,
        objective,
        settings,
        args.output,
        accelerator=accelerator,
        held_out=held_out,
        learnt_from={f"{name} fingerprint": value for name, value in fingerprints.items()},
        begun=record.write,
        log=say,
    )
    record.write(progress)
    if accelerator.is_main_process:
        print(f"{args.kind} head in {args.output}")


def _new_head(
    args: argparse.Namespace, model: PreTrainedModel, vocabulary: Tensor
) -> tuple[Any, Tensor]:
    """(head before training, its draft vocabulary: the given one, or that of --init-from)."""
    import torch

    from dart_core.heads import DartHead, Eagle3Head, head_kind, load_head
    from dart_core.training.initial import continue_from, head_config, initialise

    dart = args.kind == "dart"
    config = model.config.get_text_config()
    trained = kind = None
    if args.init_from:
        folder = resolve(args.init_from, kind="head")
        kind = "eagle3" if dart and head_kind(folder) == "eagle3" else args.kind
        facts: dict[str, Any] = {"dtype": torch.float32, "device": "cpu", "target_config": config}
        trained = load_head(folder, kind, **facts).requires_grad_(True).train()
        vocabulary = trained.target_ids(torch.arange(trained.config.draft_vocab_size))
    if trained and kind == args.kind:
        if dart and trained.config.draft_length != args.rows:
            raise ArenaError(
                f"--rows {args.rows}: {args.init_from} has {trained.config.draft_length} mask slots"
            )
        return trained, vocabulary
    head = (DartHead if dart else Eagle3Head)(
        head_config(
            config,
            draft_vocab_size=len(vocabulary),
            draft_length=args.rows if dart else None,
            key_value_heads=args.key_value_heads or (config.num_attention_heads if dart else None),
        )
    )
    if trained is None:
        initialise(head, model, vocabulary, args.seed)
    else:
        assert isinstance(head, DartHead)  # no other kind starts as one of another
        continue_from(head, trained, args.seed)
    return head, vocabulary


def run_eval(args: argparse.Namespace) -> int:
    """``train eval``."""
    device, dtype = compute_with(args)
    read = [*args.data, *args.exclude, *args.prompt_file]
    check_destination(args.json, apart_from={"an input": read})
    from dart_core.cli_run import check_tree_budgets
    from dart_core.ngram import NgramModel
    from dart_core.training.evaluate import evaluate_heads, read_prompt_sets

    named = {"dart": args.dart_model_name_or_path, "eagle3": args.eagle3_model_name_or_path}
    if not any(named.values()):
        raise ArenaError(
            "nothing to evaluate: give --dart-model-name-or-path or --eagle3-model-name-or-path"
        )
    if not args.holdout:
        raise ArenaError("no held-out conversations: --holdout must be above 0")
    check_tree_budgets("--budgets", args.budgets)
    prompts = read_prompt_sets(args.prompt_file, args.limit)
    ngram = args.ngram_model_name_or_path and NgramModel.open(args.ngram_model_name_or_path)
    heads = {kind: name and resolve(name, kind="head") for kind, name in named.items()}
    model, tokenizer = load_target(args, device, dtype)
    sequences, facts = read_sequences(args, tokenizer)
    features = target_features_of(args, model, sequences, count=facts["holdout"])
    report = evaluate_heads(
        model,
        tokenizer,
        features,
        facts["holdout"],
        **heads,
        ngram=ngram,
        passages=args.passages,
        prompts=prompts,
        max_new_tokens=args.max_new_tokens,
        budgets=args.budgets,
        log=print,
    )
    if args.json:
        write_json(report, args.json)
    return 0
