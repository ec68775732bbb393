"""How long a run goes on, how far it is, and the learning rate that follows from that."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from pathlib import Path

from dart_core.errors import ArenaError
from dart_core.training.fingerprints import GIVE_SAME, check_same

REMEDY = f"{GIVE_SAME} (--init-from starts it from the head here)"


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """steps, tokens (of the sequences read) and minutes are limits of the whole run; the first one
    reached ends it. sequences: per step and process. evaluate_every: steps from one measurement on
    held-out text to the next; None: an eighth of the run, or as much as keeps them to a tenth of
    the time. A checkpoint is written every ``save_every`` steps or ``save_seconds``.
    """

    steps: int | None = None
    tokens: int | None = None
    minutes: float | None = None
    sequences: int = 4
    anchors: int = 128
    learning_rate: float = 1.5e-3
    warmup_steps: int = 50
    cooldown: float = 0.5
    weight_decay: float = 0.01
    clip: float = 1.0
    seed: int = 0
    log_every: int = 20
    evaluate_every: int | None = None
    save_every: int = 200
    save_seconds: float = 300.0

    def __post_init__(self) -> None:
        if self.steps is None and self.tokens is None and self.minutes is None:
            raise ArenaError(
                "training needs an end: give steps, tokens or minutes (--steps, "
                "--tokens, --minutes)"
            )
        for name in ("steps", "tokens", "minutes"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ArenaError(f"--{name} {value}: expected a number above 0")


@dataclass(slots=True)
class Progress:
    """What a checkpoint remembers besides weights: steps, tokens, anchors done, seconds spent, and
    the settings that a resumed run must share to take the same steps.
    """

    step: int = 0
    tokens: int = 0
    anchors: int = 0
    seconds: float = 0.0
    settings: dict = field(default_factory=dict)

    def state_dict(self) -> dict:
        return asdict(self)

    def load_state_dict(self, state: dict) -> None:
        for name, value in state.items():
            setattr(self, name, value)

    def begin(self, settings: dict, output: Path) -> None:
        """Take on a run's settings. Raises ArenaError where it was begun with others."""
        if self.step:
            check_same(f"{output} was begun with", self.settings, settings, REMEDY)
        self.settings = settings

    def fraction(self, settings: TrainSettings) -> float:
        """How much of the run is done, 0 to 1 and beyond."""
        return max(
            self.step / settings.steps if settings.steps else 0.0,
            self.tokens / settings.tokens if settings.tokens else 0.0,
            self.seconds / 60 / settings.minutes if settings.minutes else 0.0,
        )


def learning_rate(settings: TrainSettings, progress: Progress) -> float:
    """Linear warm-up, a plateau, a cosine to zero over the last ``cooldown`` of the run."""
    warm = min(1.0, (progress.step + 1) / settings.warmup_steps)
    left = max(0.0, 1.0 - progress.fraction(settings)) / settings.cooldown
    fall = 0.5 - 0.5 * math.cos(math.pi * min(1.0, left))
    return settings.learning_rate * warm * max(fall, 0.01)
