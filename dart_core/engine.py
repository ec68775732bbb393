"""The engine: one target, the drafters trained for it, its chat template and its stop rules."""

from __future__ import annotations

import logging
import platform
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dart_core import text
from dart_core.budget import Sizes, sizes_for
from dart_core.check import Verdict, compare
from dart_core.drafters import Drafter, DraftSettings
from dart_core.drafters.autoregressive import AutoregressiveDrafter
from dart_core.drafters.dart import DartDrafter
from dart_core.errors import ArenaError, check_kind
from dart_core.generate import check_limits, generate, prompt_tensor, token_budget, token_set
from dart_core.loading import load_models
from dart_core.memory import SHORTER, memory_told
from dart_core.metrics import summarize
from dart_core.presets import Preset
from dart_core.references import HUB
from dart_core.sampling import SamplingParams
from dart_core.step import Step, finish_of
from dart_core.target import Target
from dart_core.trio import FLAGS
from dart_core.verify_cost import VerifyCost, measure_verify

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

ENGINES = ("ar", "dart", "eagle3")


@dataclass(frozen=True, slots=True)
class GenerationSettings:
    """Everything that shapes one run, the same for every engine.

    max_new_tokens: new tokens at most. max_length: committed tokens at most, prompt included. stop:
    stop strings. eos_token_ids: more ids that end generation, besides the model's own; ignore_eos:
    the model's own do not end it. Lists of either are taken too. Raises ArenaError for what cannot
    be.
    """

    max_new_tokens: int = 512
    max_length: int = 2048
    sampling: SamplingParams = SamplingParams()
    draft: DraftSettings = DraftSettings()
    stop: tuple[str, ...] = ()
    eos_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        check_limits(self.max_new_tokens, self.max_length)
        check_kind(self.sampling, SamplingParams, "sampling")
        check_kind(self.draft, DraftSettings, "draft")
        check_kind(self.ignore_eos, bool, "ignore_eos")
        object.__setattr__(self, "stop", text.check_stops(self.stop))
        object.__setattr__(self, "eos_token_ids", token_set(self.eos_token_ids))


@dataclass(frozen=True, slots=True, eq=False)
class Generation:
    """A finished run. output_ids: new tokens only; text: their text, cut at a stop string; metrics:
    see metrics.py.
    """

    engine: str
    prompt_ids: list[int]
    output_ids: list[int]
    text: str
    finish_reason: str
    steps: list[Step]
    metrics: dict[str, Any] = field(default_factory=dict)


class Engine:
    """One target shared by every drafter. ``facts`` says what is loaded, where and in what
    precision.

    Runs may overlap: each owns its caches, and the target takes one forward at a time.
    """

    def __init__(
        self,
        target: Target,
        tokenizer: PreTrainedTokenizerBase,
        drafters: Mapping[str, Drafter] | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        self.target = target
        self.tokenizer = tokenizer
        self.drafters: dict[str, Drafter] = {"ar": AutoregressiveDrafter(), **(drafters or {})}
        self.facts = {**describe_machine(target), **(facts or {})}
        self._warned_of_positions = False
        self._measuring = threading.Lock()
        self._verify_cost: VerifyCost | None = None
        self._latest_sizes: dict[str, Sizes] = {}

    @classmethod
    def load(
        cls,
        preset: str | Preset | None = None,
        *,
        target: str | Path | None = None,
        dart: str | Path | None = None,
        eagle3: str | Path | None = None,
        ngram: str | Path | None = None,
        small_ngram: bool = False,
        engines: Sequence[str] | None = None,
        dtype: torch.dtype | None = None,
        device: str | torch.device | None = None,
        device_map: str | dict | None = None,
        rope_theta: float | None = None,
        cuda_graphs: bool = False,
        source: str = HUB,
        progress: Callable[[str], None] = logger.info,
    ) -> Engine:
        """Load a preset, or the references given one by one, which win over the preset's: folders
        or ids (``owner/name``, ``owner/name@revision``). A published id brings its partners along;
        parts that do not belong together are an error, raised before anything large is fetched.

        ngram: "off" leaves it out. small_ngram: the small n-gram is the default one, not the full.
        The other size is loaded too where that takes no download and no conversion.
        engines: which of "ar", "dart", "eagle3" to load; None loads all that the preset has or
        that are given, and DART where an id brings it. device: None takes the first GPU, or all of
        them (device_map "auto") where the target needs several, else the CPU. rope_theta: overrides
        the EAGLE3 head's RoPE base. cuda_graphs: capture verify and draft passes as CUDA graphs, on
        one GPU. source: where ids come from, "hub" or "modelscope".
        ``progress`` gets one line per phase, with seconds and GiB. Raises ArenaError that names
        what is missing or too small, with the figures, and the remedy.
        """
        loaded = load_models(
            preset,
            target=target,
            dart=dart,
            eagle3=eagle3,
            ngram=ngram,
            small_ngram=small_ngram,
            engines=engines,
            dtype=dtype,
            device=device,
            device_map=device_map,
            rope_theta=rope_theta,
            cuda_graphs=cuda_graphs,
            source=source,
            progress=progress,
        )
        return cls(*loaded)

    @property
    def ngrams(self) -> tuple[str, ...]:
        """Names of the n-grams that a run of DART can ask for, the default one first."""
        return tuple(getattr(self.drafters.get("dart"), "ngrams", ()))

    @property
    def verify_cost(self) -> VerifyCost:
        """What verify passes cost on this machine by size; measured when first asked for."""
        with self._measuring:
            if self._verify_cost is None:
                taps = sorted({tap for each in self.drafters.values() for tap in each.taps})
                self._verify_cost = measure_verify(self.target, taps)
            return self._verify_cost

    @cached_property
    def thinks(self) -> bool:
        """Whether the model's chat template has a thinking mode that ``chat_ids`` can ask for."""
        messages = [{"role": "user", "content": "?"}]
        try:
            return self.chat_ids(messages, enable_thinking=True) != self.chat_ids(messages)
        except ArenaError:  # no template, or one that refuses the question
            return False

    @cached_property
    def eos_token_ids(self) -> frozenset[int]:
        """The model's own end-of-sequence ids: the tokenizer's and every one of the generation
        config's.
        """
        ids: set[int] = set()
        generation_config = getattr(self.target.model, "generation_config", None)
        for value in (
            getattr(self.tokenizer, "eos_token_id", None),
            getattr(generation_config, "eos_token_id", None),
            getattr(self.target.config, "eos_token_id", None),
        ):
            if value is not None:
                ids.update(value if isinstance(value, (list, tuple)) else [value])
        return frozenset(int(i) for i in ids)

    def chat_ids(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        enable_thinking: bool = False,
        system_prompt: str | None = None,
    ) -> list[int]:
        """Ids of a conversation in the model's chat template, ready for the answer."""
        return text.chat_prompt_ids(
            self.tokenizer, messages, system_prompt=system_prompt, enable_thinking=enable_thinking
        )

    def detokenizer(self) -> text.IncrementalDetokenizer:
        """A fresh incremental detokenizer for one answer."""
        return text.IncrementalDetokenizer(self.tokenizer)

    def drafter(self, name: str) -> Drafter:
        """The loaded drafter called ``name``. Raises ArenaError that lists the loaded ones, and
        says how to load it.
        """
        if name in self.drafters:
            return self.drafters[name]
        loaded = f"loaded engines: {', '.join(self.drafters)}"
        if name not in ENGINES:
            raise ArenaError(f"unknown engine {name!r}; {loaded}")
        raise ArenaError(
            f"engine {name!r} is not loaded; {loaded}: load its head too, {FLAGS[name]} (in Python "
            f"{FLAGS[name][2:].replace('-', '_')}, or {name} of Engine.load), or a preset that has "
            "one"
        )

    def stream(
        self,
        prompt_ids: Sequence[int],
        engine: str = "dart",
        settings: GenerationSettings = GenerationSettings(),
    ) -> Generator[Step, None, None]:
        """Run one engine on a prompt, a Step at a time; closing the generator frees its caches.

        Raises ArenaError at once for an unknown engine or n-gram, a prompt that does not fit, a
        cache that does not fit into memory or an end-of-sequence id outside the vocabulary.
        """
        check_kind(settings, GenerationSettings, "settings")
        drafter = self.drafter(engine)
        if isinstance(drafter, DartDrafter):
            drafter.ngram(settings.draft.ngram)
        prompt_ids = prompt_tensor(prompt_ids).tolist()
        budget = token_budget(len(prompt_ids), settings.max_new_tokens, settings.max_length)
        self.target.check_room(len(prompt_ids) + budget + settings.draft.tree_budget + 1)
        self._check_positions(settings.max_length)
        if budget < settings.max_new_tokens:
            logger.warning(
                "%d prompt tokens + %d new ones exceed max length %d: at most %d tokens will come",
                len(prompt_ids),
                settings.max_new_tokens,
                settings.max_length,
                budget,
            )
        eos = settings.eos_token_ids
        wrong = [token for token in eos if not 0 <= token < self.target.vocab_size]
        if wrong:
            raise ArenaError(
                f"end-of-sequence id {min(wrong)} is outside the target's vocabulary of "
                f"{self.target.vocab_size}: it could never end an answer"
            )
        if not settings.ignore_eos:
            eos = eos | self.eos_token_ids
        stop_check = None
        if settings.stop:
            stop_check = text.StopChecker(self.tokenizer, settings.stop).push
        steps = generate(
            self.target,
            drafter,
            prompt_ids,
            sampling=settings.sampling,
            max_new_tokens=settings.max_new_tokens,
            max_length=settings.max_length,
            eos_token_ids=eos,
            settings=settings.draft,
            sizes=self._sizes(engine, drafter, settings.draft),
            stop_check=stop_check,
        )
        return self._guarded(steps)

    def _sizes(self, name: str, drafter: Drafter, draft: DraftSettings) -> Sizes:
        """How large the trees of a run are: it starts with what the one before it found out."""
        sizes = sizes_for(drafter, draft, lambda: self.verify_cost, self._latest_sizes.get(name))
        self._latest_sizes[name] = sizes
        return sizes

    def _guarded(self, steps: Iterator[Step]) -> Generator[Step, None, None]:
        with memory_told("generating", self.target.device, SHORTER):
            yield from steps

    def _check_positions(self, max_length: int) -> None:
        """Warns, once, of a length beyond the positions that the target was trained on."""
        positions = getattr(self.target.config, "max_position_embeddings", None)
        if positions is None or max_length <= positions or self._warned_of_positions:
            return
        self._warned_of_positions = True
        logger.warning(
            "max length %d goes beyond the %d positions this target was made for "
            "(max_position_embeddings): text further on may be nonsense",
            max_length,
            positions,
        )

    def generate(
        self,
        prompt_ids: Sequence[int],
        engine: str = "dart",
        settings: GenerationSettings = GenerationSettings(),
    ) -> Generation:
        """Run one engine to the end."""
        prompt_ids = prompt_tensor(prompt_ids).tolist()
        steps = list(self.stream(prompt_ids, engine, settings))
        output_ids = [token for step in steps for token in step.tokens]
        return Generation(
            engine=engine,
            prompt_ids=prompt_ids,
            output_ids=output_ids,
            text=text.answer_text(self.tokenizer, output_ids, settings.stop),
            finish_reason=finish_of(steps),
            steps=steps,
            metrics=summarize(steps),
        )

    def judge(
        self,
        prompt_ids: Sequence[int],
        plain_steps: Sequence[Step],
        steps: Sequence[Step],
        sampling: SamplingParams,
    ) -> Verdict:
        """Whether an engine's steps say what plain decoding's do, both run with ``sampling`` (an
        unset seed is the one they report): equal, a rounding tie, or DIFFERENT.
        """
        if sampling.seed is None and plain_steps:
            sampling = replace(sampling, seed=plain_steps[0].seed)
        return compare(self.target, prompt_ids, plain_steps, steps, sampling)


def describe_machine(target: Target) -> dict[str, Any]:
    """Device, precision and versions, as stated beside every figure."""
    device = target.device
    return {
        "device": str(device),
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu_name(),
        "threads": torch.get_num_threads(),
        "dtype": str(target.dtype).removeprefix("torch."),
        "versions": {
            "python": platform.python_version(),
            "torch": str(torch.__version__),  # with its build: +cu130, say
            "transformers": version("transformers"),
        },
    }


def _cpu_name() -> str:
    """The processor's name where the system tells it, else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(
            line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")
        )
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
