"""The published Python interface of DART, thin over Engine: only the import line changes.

    from dart_core import DartModel, TEMPLATE_REGISTRY, dart_generate

What every generating function here takes beside its prompt is said at ``run_settings``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dart_core import weights
from dart_core.advice import not_applied, not_applied_notice
from dart_core.drafters import DraftSettings
from dart_core.drafters.dart import DartDrafter
from dart_core.engine import Engine, GenerationSettings
from dart_core.errors import ArenaError
from dart_core.heads import load_dart_head
from dart_core.ngram import NgramModel
from dart_core.ngram_loading import open_ngrams
from dart_core.packing import pack_layers
from dart_core.presets import Preset, get_preset
from dart_core.references import HUB
from dart_core.sampling import SamplingParams
from dart_core.step import Step
from dart_core.target import Target, parse_device
from dart_core.text import TextStream, check_stops, raw_prompt_ids

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

PUBLISHED = "qwen3-4b"  # any published trio: all share the n-gram's file names
ONE_AT_A_TIME = (
    "a call takes one prompt (batch size 1): call it prompt after prompt, or put them into a JSONL "
    "file for python -m dart_core batch"
)


def run_settings(
    temperature: float = 0.0,
    top_p: float = 0.0,
    top_k: int = 0,
    max_new_token_num: int = 512,
    max_length: int = 2048,
    remain_total: int = 60,
    *,
    beam_width: int = 20,
    ngram_weight: float = 0.5,
    depth: int = 7,
    draft_top_k: int = 10,
    seed: int | None = None,
    stop: Sequence[str] | None = (),
    ignore_eos: bool = False,
) -> GenerationSettings:
    """The published keywords, and a few of ours, as settings of the engine.

    temperature 0 is greedy; top_p 0 (or 1) and top_k 0 are off. max_new_token_num: new tokens at
    most, exactly; max_length: prompt included. remain_total: draft tokens per step, both heads.
    beam_width, ngram_weight: DART. depth, draft_top_k: EAGLE3. seed: of sampling; None draws one
    from torch's generator, so that ``torch.manual_seed`` makes a script repeatable. stop: texts
    that end the answer. None of the drafting ones changes the text. Raises ArenaError.
    """
    if seed is None and SamplingParams(temperature).greedy is False:
        seed = int(torch.randint(2**31, ()))
    return GenerationSettings(
        max_new_tokens=max_new_token_num,
        max_length=max_length,
        sampling=SamplingParams(temperature, top_k, top_p, seed),
        draft=DraftSettings(
            tree_budget=remain_total,
            beam=beam_width,
            ngram_weight=ngram_weight,
            eagle3_depth=depth,
            eagle3_top_k=draft_top_k,
        ),
        stop=check_stops((stop,) if isinstance(stop, str) else () if stop is None else stop),
        ignore_eos=ignore_eos,
    )


@dataclass(frozen=True, slots=True)
class NgramFile:
    """An n-gram that is here, yet to be opened for a target's vocabulary: milliseconds, once it is
    converted. All that open it share its memory.
    """

    path: Path
    small: bool = False


class DartModel:
    """A target with its DART head, and EAGLE3 head if given; ``engine`` is what does the work."""

    def __init__(
        self,
        engine: Engine,
        *,
        load: Callable[..., Engine] | None = None,
        dispatched: bool = False,
    ):
        """load: loads the same models with other ``device=``; None: they cannot be moved.
        dispatched: accelerate has placed the weights.
        """
        self.engine = engine
        self._load, self._dispatched = load, dispatched
        if fields := not_applied(getattr(engine.target.model, "generation_config", None)):
            logger.warning("%s", not_applied_notice(fields))

    # Loading

    @classmethod
    def from_pretrained(
        cls,
        base_model_name_or_path: str | Path | None = None,
        dart_model_name_or_path: str | Path | None = None,
        ngram_model_name_or_path: str | Path | None = None,
        is_small_ngram: bool = False,
        *,
        eagle3_model_name_or_path: str | Path | None = None,
        preset: str | Preset | None = None,
        torch_dtype: torch.dtype | str | None = None,
        low_cpu_mem_usage: bool | None = None,
        device_map: str | dict | None = None,
        source: str = HUB,
        progress: Callable[[str], None] = logger.info,
    ) -> DartModel:
        """Load target, heads and n-gram from folders or ids, ``owner/name`` or
        ``owner/name@revision``. A published target's id alone brings its DART head and n-gram.

        source: where ids come from, "hub" or "modelscope".
        torch_dtype: None (or "auto") takes bfloat16 where the hardware has it. device_map: "auto"
        spreads the target over the GPUs; without it everything lies on the first GPU, or the CPU.
        low_cpu_mem_usage is accepted: weights are always loaded so. is_small_ngram: small.trie, not
        full.trie. preset: a trio by name, "demo" say; the references win over it. Raises ArenaError
        that names what is missing and the remedy.
        """
        references = (base_model_name_or_path, dart_model_name_or_path, ngram_model_name_or_path)
        if not any((preset, eagle3_model_name_or_path, *references)):
            raise ArenaError("no target: give base_model_name_or_path, or preset")
        load = partial(
            Engine.load,
            preset,
            target=base_model_name_or_path,
            dart=dart_model_name_or_path,
            eagle3=eagle3_model_name_or_path,
            ngram=ngram_model_name_or_path,
            small_ngram=is_small_ngram,
            dtype=_dtype(torch_dtype),
            source=source,
            progress=progress,
        )
        if device_map is not None:
            return cls(load(device_map=device_map), dispatched=True)
        return cls(load(), load=load)

    @classmethod
    def from_pretrained_with_base(
        cls,
        base_model: Any,
        ngram_model: NgramFile | NgramModel | None,
        base_model_config: Any = None,
        dart_model_name_or_path: str | Path | None = None,
        base_model_name_or_path: str | Path | None = None,
    ) -> DartModel:
        """A DART head over a target that is loaded already: a transformers causal language model,
        or another DartModel. ``base_model_name_or_path`` has the tokenizer; the config is the
        model's own.
        """
        if dart_model_name_or_path is None or base_model_name_or_path is None:
            raise ArenaError("give dart_model_name_or_path, and base_model_name_or_path")
        if isinstance(base_model, DartModel):
            target = base_model.engine.target
        else:
            target = Target(base_model)
        folder = weights.resolve(base_model_name_or_path, kind="tokenizer", progress=logger.info)
        head = load_dart_head(
            weights.resolve(dart_model_name_or_path, kind="head", progress=logger.info),
            dtype=target.dtype,
            device=target.head_device,
            target_config=target.config,
        )
        pack_layers(head)
        ngrams = {}
        if isinstance(ngram_model, NgramModel):
            ngrams = {"full": ngram_model}
        elif ngram_model is not None:
            ngrams = open_ngrams(
                str(ngram_model.path),
                get_preset(PUBLISHED),
                small=ngram_model.small,
                vocab_size=target.vocab_size,
                progress=logger.info,
            )
        engine = Engine(
            target,
            weights.load_tokenizer(folder),
            {"dart": DartDrafter(head, ngrams, target.embed)},
            {
                "target": str(base_model_name_or_path),
                "preset": None,
                "dart": str(dart_model_name_or_path),
                "dart_notes": list(head.notes),
                "ngrams": list(ngrams),
            },
        )
        return cls(engine, dispatched=True)

    @staticmethod
    def ngram_from_pretrained(
        ngram_model_path: str | Path, is_small_ngram: bool = False
    ) -> NgramFile:
        """The n-gram of a file, folder or hub id, to be shared by ``from_pretrained_with_base``."""
        filename = get_preset(PUBLISHED).ngram_name(small=is_small_ngram)
        path = weights.resolve(
            ngram_model_path, kind="ngram", filename=filename, progress=logger.info
        )
        return NgramFile(path, is_small_ngram)

    # What torch modules have

    def to(self, device: str | torch.device) -> DartModel:
        """Have everything on ``device``: nothing to do where it is there already, or where
        accelerate has placed the weights; else it is loaded there from its files.
        """
        if isinstance(device, torch.dtype):
            raise ArenaError(f"to({device}): give the dtype to from_pretrained, as torch_dtype")
        wanted = _indexed(parse_device(device))
        if self._dispatched:
            logger.warning(
                "to(%s) changes nothing: the weights are placed already, on %s", device, self.device
            )
        elif wanted != _indexed(self.device):
            if self._load is None:
                raise ArenaError(
                    f"to({device}): this engine was loaded on {self.device}; load it on {device}"
                )
            del self.engine  # its memory is free before the other takes some
            try:
                self.engine = self._load(device=wanted)
            except ArenaError as error:
                raise ArenaError(
                    f"to({device}): {error}; the model is gone from where it was: load it again"
                ) from error
        return self

    def eval(self) -> DartModel:
        """Nothing to do: models here only ever generate."""
        return self

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self.engine.tokenizer

    def get_tokenizer(self) -> PreTrainedTokenizerBase:
        return self.engine.tokenizer

    @property
    def base_model(self) -> PreTrainedModel:
        """The target: a transformers model."""
        return self.engine.target.model

    @property
    def config(self) -> PreTrainedConfig:
        return self.engine.target.model.config

    @property
    def device(self) -> torch.device:
        """Where prompts go: the device of the target's first layer."""
        return self.engine.target.device

    @property
    def dtype(self) -> torch.dtype:
        return self.engine.target.dtype

    # Ids to ids

    def dart_generate(
        self,
        input_ids: torch.Tensor,
        temperature: float = 0.0,
        top_p: float = 0.0,
        top_k: int = 0,
        max_new_token_num: int = 512,
        max_length: int = 2048,
        remain_total: int = 60,
        **options: Any,
    ) -> torch.Tensor:
        """DART's answer to ``input_ids`` [1, n], on their device: int64 [1, n + new].

        options: see ``run_settings``. Raises ArenaError for a batch, or a prompt that does not fit.
        """
        settings = run_settings(
            temperature, top_p, top_k, max_new_token_num, max_length, remain_total, **options
        )
        return self._answer("dart", input_ids, settings)

    def eagle3_generate(self, input_ids: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        """As ``dart_generate``, with the EAGLE3 head."""
        return self._answer("eagle3", input_ids, run_settings(*args, **options))

    def ar_generate(self, input_ids: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        """As ``dart_generate``, by plain decoding."""
        return self._answer("ar", input_ids, run_settings(*args, **options))

    def _dart_generate(self, input_ids: torch.Tensor, *args: Any, **options: Any) -> Iterator[dict]:
        """``dart_generate`` step by step: {"id": int64 [n] on the prompt's device, the ids that the
        step emitted, "accept_length": n}. The first step, the prefill, emits one.
        """
        return self._steps("dart", input_ids, run_settings(*args, **options))

    def _eagle3_generate(
        self, input_ids: torch.Tensor, *args: Any, **options: Any
    ) -> Iterator[dict]:
        return self._steps("eagle3", input_ids, run_settings(*args, **options))

    def _ar_generate(self, input_ids: torch.Tensor, *args: Any, **options: Any) -> Iterator[dict]:
        return self._steps("ar", input_ids, run_settings(*args, **options))

    def _steps(self, engine: str, input_ids: Any, settings: GenerationSettings) -> Iterator[dict]:
        device = getattr(input_ids, "device", self.device)
        source = self.engine.stream(prompt_row(input_ids), engine, settings)

        def steps() -> Iterator[dict]:
            with closing(source):
                for step in source:
                    ids = torch.tensor(step.tokens, device=device)
                    yield {"id": ids, "accept_length": len(ids)}

        return steps()

    def _answer(self, engine: str, input_ids: Any, settings: GenerationSettings) -> torch.Tensor:
        prompt = prompt_row(input_ids)
        run = self.engine.generate(prompt, engine, settings)
        device = getattr(input_ids, "device", self.device)
        return torch.tensor([prompt + run.output_ids], device=device)


# Text to text -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Output:
    """An answer. tokens: the new ones only; text: theirs, without special tokens; metrics: see
    metrics.py; finish_reason: "stop" or "length"; seed: of sampling, None when greedy.
    """

    tokens: list[int]
    text: str
    metrics: dict[str, Any] = field(repr=False)
    finish_reason: str
    seed: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """What one step brought: text (all chunks' texts join to ``Output.text``), the new tokens, and
    how many of them, the first ones, were drafted. step: everything else about it.
    """

    text: str
    tokens: list[int]
    accepted: int
    step: Step = field(repr=False)


def dart_generate(model: DartModel, prompt: str | None = None, **options: Any) -> Output:
    """DART's answer to ``prompt``, a text ready for the model (as ``template.format`` makes it), or
    to ``messages=``, a conversation for the model's own chat template.

    enable_thinking: with messages: let the model think first. More options: ``run_settings``.
    """
    return _generate("dart", model, prompt, **options)


def eagle3_generate(model: DartModel, prompt: str | None = None, **options: Any) -> Output:
    """As ``dart_generate``, with the EAGLE3 head."""
    return _generate("eagle3", model, prompt, **options)


def ar_generate(model: DartModel, prompt: str | None = None, **options: Any) -> Output:
    """As ``dart_generate``, by plain decoding."""
    return _generate("ar", model, prompt, **options)


def stream(
    model: DartModel,
    prompt: str | None = None,
    *,
    engine: str = "dart",
    messages: Sequence[Mapping[str, str]] | None = None,
    enable_thinking: bool = False,
    **options: Any,
) -> Generator[Chunk, None, None]:
    """The answer of any engine, step by step, as it comes. What is wrong with the prompt or the
    options is raised at once; closing the iterator frees what the run holds.
    """
    settings = run_settings(**options)
    ids = _prompt_ids(model, prompt, messages, enable_thinking)
    source = model.engine.stream(ids, engine, settings)

    def chunks() -> Generator[Chunk, None, None]:
        text = TextStream(model.tokenizer, settings.stop)
        with closing(source):
            for step in source:
                shown = text.push(step.tokens)
                if step.finish_reason is not None:
                    shown += text.finish()
                yield Chunk(shown, list(step.tokens), step.accepted, step)

    return chunks()


def _generate(
    engine: str,
    model: DartModel,
    prompt: str | None,
    *,
    messages: Sequence[Mapping[str, str]] | None = None,
    enable_thinking: bool = False,
    **options: Any,
) -> Output:
    settings = run_settings(**options)
    ids = _prompt_ids(model, prompt, messages, enable_thinking)
    run = model.engine.generate(ids, engine, settings)
    return Output(run.output_ids, run.text, run.metrics, run.finish_reason, run.steps[0].seed)


# What callers give --------------------------------------------------------------------------------


def prompt_row(input_ids: Any) -> list[int]:
    """The ids of one prompt, given as [1, n] or [n]: a tensor, an array or lists.

    Raises ArenaError for a batch, and for what are no ids.
    """
    if isinstance(input_ids, Mapping):
        raise ArenaError("got what the tokenizer returns as a whole: give its .input_ids")
    if isinstance(input_ids, str):
        raise ArenaError(
            f"input_ids is a text, {input_ids[:40]!r}: give model.tokenizer(text, "
            'return_tensors="pt").input_ids, or dart_generate(model, prompt=text)'
        )
    rows = input_ids
    if hasattr(input_ids, "tolist"):
        if torch.is_tensor(input_ids) and (
            input_ids.is_floating_point() or input_ids.dtype == torch.bool
        ):
            raise ArenaError(
                f"input_ids are {input_ids.dtype}; expected whole numbers, int64 [1, n]"
            )
        rows = input_ids.tolist()
    if not isinstance(rows, Sequence):
        raise ArenaError(f"input_ids is {input_ids!r:.60}; expected token ids, int64 [1, n]")
    if any(isinstance(row, Sequence) for row in rows):
        if len(rows) != 1:
            shape = getattr(input_ids, "shape", None)
            what = f"input_ids of shape {list(shape)}" if shape else f"{len(rows)} prompts"
            raise ArenaError(f"got {what}: {ONE_AT_A_TIME}")
        rows = rows[0]
    return list(rows)


def _prompt_ids(model: DartModel, prompt: Any, messages: Any, enable_thinking: bool) -> list[int]:
    if (prompt is None) == (messages is None):
        raise ArenaError("give either prompt, a text, or messages, a conversation")
    if messages is not None:
        return model.engine.chat_ids(messages, enable_thinking=enable_thinking)
    if isinstance(prompt, Sequence) and not isinstance(prompt, str):
        raise ArenaError(f"got {len(prompt)} prompts: {ONE_AT_A_TIME}")
    if not isinstance(prompt, str) or not prompt:
        raise ArenaError(f"prompt must be a text of at least one character, got {prompt!r:.60}")
    return raw_prompt_ids(model.tokenizer, prompt)


def _dtype(given: torch.dtype | str | None) -> torch.dtype | None:
    if given is None or given == "auto":
        return None
    if isinstance(given, torch.dtype):
        return given
    found = getattr(torch, str(given).removeprefix("torch."), None)
    if not isinstance(found, torch.dtype):
        raise ArenaError(
            f"torch_dtype {given!r} is no dtype; expected torch.bfloat16, torch.float16 or float32"
        )
    return found


def _indexed(device: torch.device) -> torch.device:
    """ "cuda" as the GPU it stands for, so that devices compare."""
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device
