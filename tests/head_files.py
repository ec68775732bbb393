"""A head folder for tests to spoil, and short greedy runs over it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from models import head_config, random_head
from safetensors.torch import load_file, save_file

from dart_core.drafters import DraftSettings
from dart_core.drafters.dart import DartDrafter
from dart_core.drafters.eagle3 import Eagle3Drafter
from dart_core.errors import ArenaError
from dart_core.generate import generate
from dart_core.heads import DartHead, Eagle3Head, load_dart_head, load_eagle3_head, save_head
from dart_core.sampling import SamplingParams

DRAFT_VOCAB = 128


class Folder:
    """A head folder whose config and tensors a test may spoil before it is loaded."""

    def __init__(self, path: Path, target, kind: str):
        self.path, self.target, self.kind = path, target, kind
        config = head_config(
            target, draft_length=7 if kind == "dart" else None, draft_vocab_size=DRAFT_VOCAB
        )
        self.head = random_head(DartHead if kind == "dart" else Eagle3Head, config, seed=1)
        save_head(self.head, path)
        self.config = json.loads((path / "config.json").read_text())
        self.tensors = load_file(path / "model.safetensors")

    def load(self, kind: str | None = None, dtype=torch.float32, **options):
        (self.path / "config.json").write_text(json.dumps(self.config))
        save_file(self.tensors, self.path / "model.safetensors")
        loader = load_dart_head if (kind or self.kind) == "dart" else load_eagle3_head
        return loader(
            self.path, dtype=dtype, device="cpu", target_config=self.target.config, **options
        )

    def refused(self, kind: str | None = None) -> str:
        """The one-line error of loading."""
        with pytest.raises(ArenaError) as caught:
            self.load(kind)
        message = str(caught.value)
        assert "\n" not in message
        assert message.startswith(str(self.path))
        return message

    def drafter(self, **options):
        """A drafter over the loaded head, without n-gram."""
        head, embed = self.load(**options), self.target.embed
        if self.kind == "dart":
            return DartDrafter(head, {}, embed)
        return Eagle3Drafter(head, embed)


def prompt_of(target, length: int) -> list[int]:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(target.vocab_size, (length,), generator=generator).tolist()


def outputs(target, drafter, length: int = 3, count: int = 16, **settings) -> list[int]:
    steps = generate(
        target,
        drafter,
        prompt_of(target, length),
        sampling=SamplingParams(),
        max_new_tokens=count,
        max_length=512,
        settings=DraftSettings(**settings),
    )
    return [token for step in steps for token in step.tokens]
