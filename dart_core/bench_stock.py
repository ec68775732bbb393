"""transformers' own decoding of the same target: what a user would run without this project.

The weights are loaded a second time, as transformers loads them: plain linear layers, the model's
default attention, transformers' own cache. Nothing of it is tuned or hindered here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import torch
from transformers import AutoModelForCausalLM, DynamicCache, GenerationConfig, PreTrainedModel
from transformers.generation.streamers import BaseStreamer

from dart_core.engine import Engine
from dart_core.memory import memory_told
from dart_core.weights import readable, resolve

LOOKUP_TOKENS = 10  # prompt_lookup_num_tokens, as transformers' documentation has it


@dataclass(frozen=True, slots=True)
class StockRun:
    """A finished ``generate``. tokens: of the answer. first: how many of them the first step gave.

    first_seconds: from the call to the first token. seconds: from there to the last token, as a
    streamer sees them arrive: the prefill is left out. steps: forwards after the first one.
    """

    tokens: list[int]
    first: int
    first_seconds: float
    seconds: float
    steps: int


class StockTarget:
    """A stock copy of an engine's target, in its dtype and on its devices."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model.eval().requires_grad_(False)
        # A model's own sampling temperature or penalties would not be greedy decoding.
        self.model.generation_config = GenerationConfig()
        self.device = model.get_input_embeddings().weight.device

    @classmethod
    def of(cls, engine: Engine, progress: Callable[[str], None] = print) -> StockTarget:
        """Load the weights of ``engine.target`` again. Raises ArenaError where they do not fit."""
        target, reference = engine.target, engine.facts["target"]
        folder = resolve(reference, kind="target", progress=progress)
        spread = len(set(target.layer_devices)) > 1
        started = perf_counter()
        remedy = "leave transformers' own decoding out: --contestants ar,dart,eagle3"
        with memory_told(f"loading a stock copy of {reference}", target.device, remedy):
            model = load_stock(folder, target.dtype, device_map="auto" if spread else None)
            model = model if spread else model.to(target.device)
        progress(f"stock copy of {reference} in {perf_counter() - started:.1f} s")
        return cls(model)

    def generate(
        self,
        prompt_ids: Sequence[int],
        *,
        max_new_tokens: int,
        eos_token_ids: frozenset[int],
        lookup: int | None = None,
    ) -> StockRun:
        """Greedy ``model.generate``. lookup: its ``prompt_lookup_num_tokens``."""
        ends = sorted(eos_token_ids)
        config = GenerationConfig(
            do_sample=False,
            max_new_tokens=max_new_tokens,
            eos_token_id=ends or None,
            pad_token_id=ends[0] if ends else 0,
            prompt_lookup_num_tokens=lookup,
        )
        ids = torch.tensor([list(prompt_ids)], device=self.device)
        clock = _Clock()
        self.model.generate(
            ids, attention_mask=torch.ones_like(ids), generation_config=config, streamer=clock
        )
        return clock.run()

    def new_cache(self) -> DynamicCache:
        return DynamicCache(config=self.model.config)

    @torch.inference_mode()
    def forward(self, tokens: torch.Tensor, cache: DynamicCache) -> torch.Tensor:
        """Logits [1, vocab] of the last of ``tokens`` (int64 [q]) behind the cache's rows."""
        output = self.model(
            input_ids=tokens[None].to(self.device), cache=cache, use_cache=True, logits_to_keep=1
        )
        return output.logits[0]


def load_stock(
    folder: str | Path, dtype: torch.dtype, *, device_map: str | None = None
) -> PreTrainedModel:
    """The model in ``folder``, on the CPU unless ``device_map`` says otherwise."""
    with readable(folder, "target"):
        return AutoModelForCausalLM.from_pretrained(str(folder), dtype=dtype, device_map=device_map)


class _Clock(BaseStreamer):
    """Notes when tokens arrive. ``generate`` hands over the prompt first, then each step's."""

    def __init__(self) -> None:
        self.started = perf_counter()
        self.stamps: list[float] = []
        self.counts: list[int] = []
        self.tokens: list[int] = []
        self._prompt_seen = False

    def put(self, value: torch.Tensor) -> None:
        if not self._prompt_seen:
            self._prompt_seen = True
            return
        self.stamps.append(perf_counter())
        new = value.flatten().tolist()
        self.counts.append(len(new))
        self.tokens += new

    def end(self) -> None:
        pass

    def run(self) -> StockRun:
        return StockRun(
            tokens=self.tokens,
            first=self.counts[0],
            first_seconds=self.stamps[0] - self.started,
            seconds=self.stamps[-1] - self.stamps[0],
            steps=len(self.stamps) - 1,
        )
