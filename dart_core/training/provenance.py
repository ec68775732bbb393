"""``provenance.json``: what a head was made from, and by which commands."""

from __future__ import annotations

import importlib.metadata
import platform
import shlex
import sys
from argparse import Namespace
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dart_core.json_file import read_object
from dart_core.report import write_json

if TYPE_CHECKING:
    from accelerate import Accelerator

    from dart_core.training.data import Sequence
    from dart_core.training.schedule import Progress


class Provenance:
    """``provenance.json`` beside the head: commands, versions, data, how far it was trained. A
    resumed run adds its command.
    """

    def __init__(
        self,
        args: Namespace,
        facts: dict[str, Any],
        sequences: list[Sequence],
        accelerator: Accelerator,
    ) -> None:
        self.path, self.main = Path(args.output, "provenance.json"), accelerator.is_main_process
        self.command = "python -m dart_core " + shlex.join(sys.argv[1:])
        packages = ("torch", "transformers", "accelerate", "numpy")
        supervised = sum(int(s.supervised.sum()) for s in sequences[facts["holdout"] :])
        self.record = {
            "command": self.command,
            "commands": [*self._before(), self.command],
            "versions": {
                "python": platform.python_version(),
                **{name: importlib.metadata.version(name) for name in packages},
            },
            "target": args.base_model_name_or_path,
            **facts,
            "processes": accelerator.num_processes,
            "device": str(accelerator.device),
            "sequences": len(sequences),
            "supervised_tokens": supervised,
        }

    def _before(self) -> list[str]:
        if not Path(self.path.parent, "checkpoint").is_dir() or not self.path.is_file():
            return []
        with suppress(ValueError):  # damaged: it is written anew
            return read_object(self.path).get("commands", [])
        return []

    def write(self, progress: Progress) -> None:
        """Write it with how far the training is."""
        done = {
            "steps": progress.step,
            "tokens_read": progress.tokens,
            "anchors": progress.anchors,
            "minutes": round(progress.seconds / 60, 1),
        }
        if self.main:
            write_json({**self.record, **done}, str(self.path))
