"""Watching a training run: its log, measurements on held-out text, and their curves."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from dart_core.disk import disk_told, written_whole
from dart_core.heads import DartHead, Eagle3Head
from dart_core.report import number
from dart_core.training.checkpoints import GO_ON
from dart_core.training.curves import write_curves
from dart_core.training.figures import HeldOut
from dart_core.training.schedule import Progress, TrainSettings, learning_rate

EVALUATIONS = 8  # in a run, where no other measure is given
EVALUATION_SHARE = 0.1  # of the time, at most, for these


class Recent:
    """Means since the last line of log."""

    def __init__(self, rows: int) -> None:
        self.losses: list[float] = []
        self.norms: list[float] = []
        self.anchors, self.started = 0, time.monotonic()
        self.cpu = time.process_time()
        self.rows, self.by_row = rows, [0.0] * (2 * rows)

    def add(self, loss: float, by_row: list[float], norm: float, anchors: int) -> None:
        """by_row: sums of loss, then numbers of cases."""
        self.losses.append(loss)
        self.norms.append(norm)
        self.by_row = [old + new for old, new in zip(self.by_row, by_row, strict=True)]
        self.anchors += anchors

    def figures(self) -> dict:
        """As a line of log has them."""
        seconds = time.monotonic() - self.started
        sums, cases = self.by_row[: self.rows], self.by_row[self.rows :]
        return {
            "loss": round(sum(self.losses) / len(self.losses), 4),
            "loss_by_row": [
                round(total / max(1.0, count), 3) for total, count in zip(sums, cases, strict=True)
            ],
            "norm": round(sum(self.norms) / len(self.norms), 3),
            "anchors_per_second": round(self.anchors / seconds, 1),
            "anchors_per_cpu_second": round(self.anchors / (time.process_time() - self.cpu), 1),
        }


class Watch:
    """Measures the head on held-out text now and then, and keeps the run's log and curves."""

    def __init__(
        self,
        head: DartHead | Eagle3Head,
        progress: Progress,
        settings: TrainSettings,
        output: Path,
        held_out: HeldOut | None,
        log: Callable[[str], None],
    ):
        self.head, self.progress, self.settings = head, progress, settings
        self.held_out, self.log = held_out, log
        self.journal = Journal(output, progress.step, f"How the head in {output.name} trained")
        self.cost = 0.0
        self.measured_at, self.measured_step = time.monotonic(), progress.step
        self.part = self._part()
        if progress.step == 0:
            self._measure()

    def _part(self) -> int:
        every = self.settings.evaluate_every
        if every is not None:
            return self.progress.step // every
        return int(self.progress.fraction(self.settings) * EVALUATIONS)

    def record(self, recent: Recent) -> None:
        """Log what has happened since the last line."""
        progress, done = self.progress, self.progress.fraction(self.settings)
        line = {
            "step": progress.step,
            **recent.figures(),
            "lr": round(learning_rate(self.settings, progress), 7),
            "anchors": progress.anchors,
            "tokens": progress.tokens,
            "minutes_left": round(progress.seconds / 60 * (1 - done) / max(done, 1e-6), 1),
        }
        self.log(_text(line))
        self.journal.add(line)

    def step(self) -> None:
        """After every step: measure if it is time."""
        since = time.monotonic() - self.measured_at
        affordable = since * EVALUATION_SHARE >= self.cost or self.settings.evaluate_every
        if self._part() > self.part and affordable:
            self.part = self._part()
            self._measure()

    def end(self) -> None:
        """After the last step."""
        if self.measured_step < self.progress.step:
            self._measure()
        self.journal.draw()

    def _measure(self) -> None:
        if self.held_out is None:
            return
        start = time.monotonic()
        figures = self.held_out.measure(self.head)
        self.measured_at, self.measured_step = time.monotonic(), self.progress.step
        self.cost = self.measured_at - start
        line = {"step": self.progress.step, "anchors": self.progress.anchors, **figures}
        taus = ", ".join(f"{number(tau)} at {size}" for size, tau in figures["tau"].items())
        self.log(
            f"step {line['step']}: held-out hit@1 {_row(line['hit@1'])}, hit@5 "
            f"{_row(line['hit@5'])}, τ {taus}"
        )
        self.journal.add(line)
        self.journal.draw()


class Journal:
    """``output``/log.jsonl, an object for every logged step or measurement, and curves.html of it.

    Steps after ``step``, which a killed run had logged but not saved, are taken out: they come
    again.
    """

    def __init__(self, output: Path, step: int, title: str):
        self.path, self.page, self.title = output / "log.jsonl", output / "curves.html", title
        self.lines = [line for line in self._read() if line["step"] <= step and step > 0]
        with disk_told("the log", self.path), written_whole(self.path) as partial:
            partial.write_text("".join(json.dumps(line) + "\n" for line in self.lines))

    def _read(self) -> list[dict]:
        lines = []
        for text in self.path.read_text().splitlines() if self.path.exists() else ():
            try:
                lines.append(json.loads(text))
            except ValueError:  # the last one, cut by a kill
                break
        return lines

    def add(self, line: dict) -> None:
        """Append a line."""
        self.lines.append(line)
        with disk_told("the log", self.path, GO_ON), self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def draw(self) -> None:
        """Write the curves of all lines so far."""
        with disk_told("the curves", self.page, GO_ON):
            write_curves(self.lines, self.page, self.title)


def _row(values: list[float | None]) -> str:
    return " ".join(map(number, values))


def _text(line: dict) -> str:
    return (
        f"step {line['step']}: loss {line['loss']:.3f} [{_row(line['loss_by_row'])}] "
        f"norm {line['norm']:.2f} lr {line['lr']:.2e} "
        f"{line['anchors_per_second']:.0f} anchors/s "
        f"({line['anchors_per_cpu_second']:.0f} per CPU second) "
        f"{line['minutes_left']:.1f} min left"
    )
