"""The training loop of both heads: steps by number, checkpoints that resume to the same losses, a
line of log each while, and measurements on held-out text.

Everything random about a step follows from the seed and the step's number; the learning rate
follows from the fraction of the run that is done, in steps, tokens or minutes, whichever limit was
given. Weights and optimiser are fp32; products are computed in the target's dtype, bf16 where the
machine has it. Several processes share a step's sequences, and take the same step as one process
with all of them.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.func import functional_call

from dart_core.errors import ArenaError, Terminated
from dart_core.heads import DartHead, Eagle3Head, save_head
from dart_core.training.batches import Batch, BatchSource, choose_anchors
from dart_core.training.checkpoints import Checkpoint
from dart_core.training.draft_vocab import draft_ids
from dart_core.training.figures import HeldOut
from dart_core.training.objectives import Objective
from dart_core.training.schedule import Progress, TrainSettings, learning_rate
from dart_core.training.watch import Recent, Watch

if TYPE_CHECKING:
    from accelerate import Accelerator


def train(
    head: DartHead | Eagle3Head,
    embed: nn.Embedding,
    source: BatchSource,
    objective: Objective,
    settings: TrainSettings,
    output: str | Path,
    *,
    accelerator: Accelerator,
    held_out: HeldOut | None = None,
    learnt_from: Mapping[str, str] = MappingProxyType({}),
    begun: Callable[[Progress], None] = lambda progress: None,
    log: Callable[[str], None] = print,
) -> Progress:
    """Train ``head`` in place and write it to ``output`` in the published format, in bf16.

    embed: the target's input embedding, frozen; the products are computed in its dtype.
    held_out: what the head is measured on before, while and after it trains, by the first process.
    learnt_from: what else a run cannot change, its text and its target, by name.
    begun: called once it is sure that this run may go on from what is in ``output``.
    ``output``/checkpoint holds the state that the next call resumes from; ``output``/log.jsonl one
    object per logged step or measurement, curves.html their curves. Raises ArenaError where
    ``output`` was begun with other data or settings, or where the loss is no number any more.
    """
    output = Path(output)
    output.mkdir(parents=True, exist_ok=True)
    progress = Progress()
    optimiser = torch.optim.AdamW(
        head.parameters(),
        settings.learning_rate,
        (0.9, 0.95),
        weight_decay=settings.weight_decay,
        fused=True,
    )
    model, optimiser = accelerator.prepare(
        _Loss(_Rows(head, objective), embed.weight.dtype), optimiser
    )
    accelerator.register_for_checkpointing(progress)
    checkpoint = Checkpoint(accelerator, output)
    if checkpoint.load():
        log(f"resumed from {output} at step {progress.step}")
    progress.begin({**_lasting(objective, settings, source), **learnt_from}, output)
    _check_vocabulary(head, source, output)
    begun(progress)
    ranks, main = accelerator.num_processes, accelerator.is_main_process
    watch = Watch(head, progress, settings, output, held_out, log) if main else None
    started, before, saved = time.monotonic(), progress.seconds, progress.seconds
    recent = Recent(objective.rows)
    model.train()
    with _Stop() as stop:
        while progress.fraction(settings) < 1.0 and not stop.agreed:
            batch = source[progress.step]
            anchors = choose_anchors(batch, settings.anchors, source.generators(progress.step))
            for group in optimiser.param_groups:
                group["lr"] = learning_rate(settings, progress)
            # One clock, and one wish to stop: a run ends at the same step everywhere.
            clock = before + time.monotonic() - started if main else 0.0
            own = torch.tensor([batch.lengths.sum(), clock, stop.wanted])
            anchors, batch = anchors.to(accelerator.device), batch.to(embed.weight)
            inputs = batch, embed(batch.tokens[:, 1:]), anchors
            loss, norm, by_row, shared = _step(
                accelerator, model, optimiser, inputs, own, settings.clip
            )
            tokens, progress.seconds, stop.agreed = shared
            progress.step += 1
            progress.tokens += round(tokens)
            progress.anchors += anchors.numel() * ranks
            recent.add(loss, by_row, norm, anchors.numel() * ranks)
            if watch is not None and progress.step % settings.log_every == 0:
                watch.record(recent)
                recent = Recent(objective.rows)
            if watch is not None:
                watch.step()
            late = progress.seconds - saved > settings.save_seconds
            if progress.step % settings.save_every == 0 or late:
                saved = progress.seconds
                checkpoint.save()
                if main:
                    save_narrow(head, output)
    checkpoint.save()
    if main:
        save_narrow(head, output)
    if stop.agreed:
        log(f"stopped at step {progress.step}; the same command goes on from there")
        raise stop.heard
    if watch is not None:
        watch.end()
    return progress


def _step(
    accelerator: Accelerator,
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    inputs: tuple[Batch, torch.Tensor, torch.Tensor],
    shared: torch.Tensor,
    clip: float,
) -> tuple[float, float, list[float], list[float]]:
    """One step of the optimiser on all processes' inputs together. Returns the mean loss, the
    gradient's norm, by row [sums of loss, numbers of cases], and ``shared`` summed over processes.
    """
    total, sums = model(*inputs)
    own = torch.cat((total.detach()[None], shared.to(total), sums))
    loss, *rest = accelerator.reduce(own, "sum").tolist()
    summed, (weight, *by_row) = rest[: len(shared)], rest[len(shared) :]
    # The mean over all processes' rows: they average gradients, so each counts its own times their
    # number. A batch can be without any valid row; the floor keeps 0 / 0 away.
    weight = max(weight, 1.0)
    accelerator.backward(total * (accelerator.num_processes / weight))
    norm = accelerator.clip_grad_norm_(model.parameters(), clip)
    if not math.isfinite(loss):
        raise ArenaError(f"the loss became {loss}; give a lower --learning-rate")
    optimiser.step()
    optimiser.zero_grad()
    return loss / weight, float(norm), by_row, summed


class _Stop:
    """Ctrl-C, or a scheduler's SIGTERM: the step is finished and saved before the run ends. The
    same signal a second time ends it at once.
    """

    def __init__(self) -> None:
        self.wanted, self.agreed = 0.0, 0.0
        self.before: dict[int, Any] = {}
        self.heard: type[KeyboardInterrupt] = KeyboardInterrupt  # of several processes, anybody's

    def __enter__(self) -> _Stop:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self.before[number] = signal.signal(number, self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _hear(self, number: int, _: object) -> None:
        self.wanted = 1.0
        if number == signal.SIGTERM:
            self.heard = Terminated
        signal.signal(number, self.before[number])


def _lasting(objective: Objective, settings: TrainSettings, source: BatchSource) -> dict:
    """What a run cannot change half-way: what of its settings decides a step."""
    return {
        "--rows": objective.rows,
        "--loss-decay": objective.decay,
        "--row-keep": objective.keep,
        "--anchors": settings.anchors,
        "--seed": settings.seed,
        "--holdout": source.holdout,
        "sequences a step": source.sequences * source.ranks,
    }


def _check_vocabulary(head: DartHead | Eagle3Head, source: BatchSource, output: Path) -> None:
    size = head.config.draft_vocab_size
    vocabulary = head.target_ids(torch.arange(size, device=head.fc.weight.device)).cpu()
    if not torch.equal(draft_ids(vocabulary, head.config.vocab_size), source.to_draft):
        raise ArenaError(
            f"{output} was begun with another draft vocabulary, so with other data: give the same "
            "again, or another --output"
        )


def save_narrow(head: DartHead | Eagle3Head, output: str | Path) -> None:
    """Write the head in bf16, the dtype of published heads; the one in memory stays fp32."""
    narrow = type(head)(head.config)
    narrow.load_state_dict(head.state_dict())
    save_head(narrow.to(torch.bfloat16), output)


class _Rows(nn.Module):
    """Head and objective as one module with a plain forward."""

    head: DartHead | Eagle3Head

    def __init__(self, head: DartHead | Eagle3Head, objective: Objective) -> None:
        super().__init__()
        self.head, self.objective = head, objective

    def forward(
        self, batch: Batch, embeddings: torch.Tensor, anchors: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self.objective.loss(self.head, batch, embeddings, anchors)


class _Loss(nn.Module):
    """The loss computed with the weights in ``dtype``, while the parameters stay as they are: fp32
    masters.
    """

    def __init__(self, rows: _Rows, dtype: torch.dtype) -> None:
        super().__init__()
        self.rows, self.dtype = rows, dtype

    def forward(self, *inputs: Batch | torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights = {name: weight.to(self.dtype) for name, weight in self.rows.named_parameters()}
        return functional_call(self.rows, weights, inputs)
