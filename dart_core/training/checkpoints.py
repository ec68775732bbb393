"""Checkpoints of a training run."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from dart_core.disk import disk_told
from dart_core.errors import ArenaError

if TYPE_CHECKING:
    from accelerate import Accelerator

GO_ON = "the same command goes on from the last checkpoint"


class Checkpoint:
    """``output``/checkpoint, replaced as a whole: a kill leaves the new one or the one before."""

    def __init__(self, accelerator: Accelerator, output: Path) -> None:
        self.accelerator = accelerator
        self.folder, self.old = output / "checkpoint", output / "checkpoint.old"

    def load(self) -> bool:
        """Restore weights, optimiser and progress, if there is anything to restore from."""
        folder = next((f for f in (self.folder, self.old) if f.is_dir()), None)
        if folder is not None:
            self.accelerator.load_state(str(folder))
        return folder is not None

    def save(self) -> None:
        """Replace the checkpoint. All processes call this together. Raises ArenaError where the
        disk takes no more; the one before stays.
        """
        new = self.folder.with_suffix(".new")
        try:
            with disk_told("a checkpoint", new, GO_ON):
                self.accelerator.save_state(str(new))
        except ArenaError:
            shutil.rmtree(new, ignore_errors=True)  # its room may be what is missing
            raise
        self.accelerator.wait_for_everyone()
        if self.accelerator.is_main_process:
            shutil.rmtree(self.old, ignore_errors=True)
            if self.folder.is_dir():
                self.folder.rename(self.old)
            new.rename(self.folder)
            shutil.rmtree(self.old, ignore_errors=True)
        self.accelerator.wait_for_everyone()
