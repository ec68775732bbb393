"""The target: a stock transformers model, with hidden-state taps and a tree-shaped forward.

Nothing of transformers is copied or patched: tree attention is a 4-D mask with explicit positions,
an attention function registered under our name, and our own cache class.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from transformers import AttentionInterface, AutoModelForCausalLM, PreTrainedModel

from dart_core.cache import KVCache, free_memory
from dart_core.capture import Capture, CudaGraphs, require_one_gpu, run_eagerly
from dart_core.errors import ArenaError
from dart_core.memory import OutOfMemory, is_out_of_memory
from dart_core.packing import RowLinear, pack_layers
from dart_core.static_shapes import StaticVerify
from dart_core.threads import cores_for_kernels
from dart_core.tree import DraftTree
from dart_core.weights import readable

logger = logging.getLogger(__name__)

ATTENTION = "dart_core_tree"
PREFILL_CHUNK = 1024  # rows a prefill forward takes at once: bounds the memory of long prompts
LONG_CONTEXT = 2048  # committed rows from which attention itself needs every core
SHORTER = "lower --max-new-tokens or --max-length"


def _tree_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **unsupported: Any,
) -> tuple[torch.Tensor, None]:
    """Grouped-query attention without repeating key/value heads.

    query [1, heads, q, d], key and value [1, kv, s, d]. The query heads that share a key/value head
    are folded into the query rows; ``attention_mask`` [1, 1, groups * q, s], in that folded order,
    is added to the scores. None means a causal prefill from an empty cache or a single row that may
    see everything.
    """
    for name in ("softcap", "s_aux", "sliding_window"):
        if unsupported.get(name) is not None:
            raise ArenaError(
                f"this target's attention uses {name}, which tree attention here does not support; "
                "use a Qwen3- or Llama-class target"
            )
    batch, heads, rows, dim = query.shape
    kv_heads, groups = key.shape[1], heads // key.shape[1]
    if attention_mask is None and rows > 1:
        output = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scaling, enable_gqa=groups > 1
        )
    else:
        folded = query.reshape(batch, kv_heads, groups * rows, dim)
        output = torch.nn.functional.scaled_dot_product_attention(
            folded, key, value, attn_mask=attention_mask, scale=scaling
        ).view(batch, heads, rows, dim)
    return output.transpose(1, 2).contiguous(), None


AttentionInterface.register(ATTENTION, _tree_attention)


def parse_device(name: str | torch.device) -> torch.device:
    """``name`` as a device that a target may run on. Raises ArenaError for any other."""
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ArenaError(f"device {name!s} is not supported; expected cpu, cuda or cuda:N")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ArenaError(
            f"device {device} was asked for, but torch {torch.__version__} sees no "
            "CUDA GPU; use --device cpu, or install a CUDA build of torch"
        )
    return device


def default_device() -> torch.device:
    """The first GPU where there is one, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("cpu")


def default_dtype(device: torch.device) -> torch.dtype:
    """bf16 on GPUs and on CPUs with bf16 instructions; else fp16 on GPUs, fp32 on CPUs."""
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    if device.type == "cpu" and torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return torch.bfloat16
    return torch.float32


@dataclass(frozen=True, slots=True)
class TargetOutput:
    """logits: [rows, vocab] in the model's dtype; hidden: [q, taps * hidden size] or None when
    nothing was tapped.
    """

    logits: torch.Tensor
    hidden: torch.Tensor | None


class Target:
    """A loaded target shared by every engine and every run; it holds no run's state.

    One forward runs at a time: a lock guards the taps, so that concurrent runs cannot see each
    other's states.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        config = model.config.get_text_config()
        if "sliding_attention" in (getattr(config, "layer_types", None) or ()):
            raise ArenaError(
                f"target {model.config.name_or_path or model.config.model_type!r} has "
                "sliding-window layers; tree attention needs full attention in every layer: use a "
                "Qwen3- or Llama-class target"
            )
        model.eval().requires_grad_(False)
        model.set_attn_implementation(ATTENTION)
        self.model = model
        self.config = config
        self.weight_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
        self.layers = model.get_decoder().layers
        self.num_layers = len(self.layers)
        self.vocab_size: int = config.vocab_size
        self.hidden_size: int = config.hidden_size
        self.embed = model.get_input_embeddings()
        self.dtype: torch.dtype = self.embed.weight.dtype
        self.layer_devices: list[torch.device] = [
            next(layer.parameters()).device for layer in self.layers
        ]
        self.device: torch.device = self.embed.weight.device
        self.head_device = self.layer_devices[
            -1
        ]  # where the last tap lives, and so the draft heads
        self._head_dim = getattr(config, "head_dim", None) or (
            config.hidden_size // config.num_attention_heads
        )
        self._groups = config.num_attention_heads // config.num_key_value_heads
        self._lock = threading.Lock()
        self._static: StaticVerify | None = None
        self._taps: frozenset[int] = frozenset()  # of the pass under way
        self._tapped: dict[int, torch.Tensor] = {}
        self._hooked: set[int] = set()  # a hook costs each pass a little, so only where one taps

    def _tap(self, index: int) -> Callable[..., None]:
        def hook(_module: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> None:
            if index in self._taps:
                self._tapped[index] = args[0]

        return hook

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        dtype: torch.dtype | None = None,
        device: str | torch.device | None = None,
        device_map: str | dict | None = None,
        cuda_graphs: bool = False,
        **kwargs: Any,
    ) -> Target:
        """Load a stock causal language model from a local folder.

        dtype: None picks ``default_dtype``. device: None picks the GPU where there is one.
        device_map: passed to accelerate for targets larger than one device; it excludes ``device``.
        cuda_graphs: capture verify passes of static shapes, see ``static_shapes``; one GPU only.
        Raises ArenaError for a device that is not there, and for weights that are damaged, missing
        or of another kind of model.
        """
        device = parse_device(device) if device is not None else default_device()
        if cuda_graphs:
            require_one_gpu([device])
        dtype = dtype or default_dtype(device)
        if device_map is not None:
            kwargs["device_map"] = device_map
        with readable(path, "target"):
            model, report = AutoModelForCausalLM.from_pretrained(
                str(path),
                dtype=dtype,
                attn_implementation=ATTENTION,
                output_loading_info=True,
                **kwargs,
            )
            # transformers fills in noise for these, and answers with it.
            missing, unused = sorted(report["missing_keys"]), sorted(report["unexpected_keys"])
            if missing:
                raise ArenaError(
                    f"target {path}: {len(missing)} tensors that config.json asks for are not in "
                    f"the weights ({missing[0]} first); get the model's files again"
                )
            if unused:
                logger.warning(
                    "target %s: %d tensors have no place in the model that config.json describes "
                    "and are not used (%s first)",
                    path,
                    len(unused),
                    unused[0],
                )
            target = cls(model if device_map is not None else model.to(device))
        if device_map is None:
            pack_layers(model)  # does nothing away from the CPU
        if cuda_graphs:
            target.use_static_shapes(CudaGraphs(target))
        return target

    def use_static_shapes(self, capture: Capture = run_eagerly) -> None:
        """Verify in static shapes from now on: ``capture`` makes a replay of a call, see
        ``static_shapes``. By itself it captures nothing, and the calls run as they are.
        """
        self.capture: Capture = capture
        self._static = StaticVerify(self, capture)

    def check_room(self, capacity: int) -> None:
        """Raises OutOfMemory, with the figures, where a cache of ``capacity`` rows would not fit
        into the memory that is free now.
        """
        if self._static is not None and self._static.pool.fits(capacity):
            return
        shortage = self.shortage(capacity)
        if shortage and self._static is not None and self._static.pool.clear():
            shortage = self.shortage(capacity)
        if shortage:
            raise OutOfMemory(shortage)

    def shortage(self, capacity: int) -> str | None:
        """What a cache of ``capacity`` rows lacks in memory, with the figures; None: nothing."""
        row = 2 * self.config.num_key_value_heads * self._head_dim * self.dtype.itemsize
        for device, layers in Counter(self.layer_devices).items():
            need, free = layers * row * capacity, free_memory(device)
            if free is not None and need > free:
                return (
                    f"no memory for a run of {capacity} tokens, prompt and draft tree included: "
                    f"their keys and values take {need / 2**30:.1f} GiB, {device} has "
                    f"{free / 2**30:.1f} GiB free; {SHORTER}"
                )
        return None

    @property
    def cache_layout(self) -> dict[str, Any]:
        """What a KVCache of this target is made of, its capacity apart."""
        return {
            "layer_devices": self.layer_devices,
            "heads": self.config.num_key_value_heads,
            "head_dim": self._head_dim,
            "dtype": self.dtype,
        }

    def new_cache(self, capacity: int) -> KVCache:
        """An empty cache of ``capacity`` rows for one run. Raises OutOfMemory where it does not
        fit.
        """
        self.check_room(capacity)
        try:
            if self._static is not None:
                return self._static.pool.lend(capacity)
            return KVCache(capacity=capacity, **self.cache_layout)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise OutOfMemory(
                f"no memory for a run of {capacity} tokens, prompt and draft tree included; "
                f"{SHORTER}"
            ) from error

    @torch.inference_mode()
    def forward(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        cache: KVCache,
        *,
        mask: torch.Tensor | None = None,
        taps: Sequence[int] = (),
        logits: Literal["last", "all"] = "all",
    ) -> TargetOutput:
        """Run q tokens behind the cache's committed rows; the caller decides which rows to
        ``keep``.

        tokens, positions: int64 [q]. mask: bool [q, cache.length + q], true = may attend; None for
        a causal run from an empty cache or for a single token. taps: layer indices whose *input* is
        wanted (index i is transformers' ``hidden_states[i]``), concatenated along the features in
        the order given. logits: for the last row or all.
        """
        if mask is not None:
            mask = self._bias(mask.to(self.device))
        elif len(tokens) > 1 and cache.length:
            raise ValueError("several tokens behind a non-empty cache need a mask")
        return self._run(
            tokens.to(self.device), positions.to(self.device), mask, cache, taps, logits
        )

    def forward_in_place(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        cache: KVCache,
        *,
        mask: torch.Tensor,
        taps: Sequence[int],
    ) -> TargetOutput:
        """``forward`` where ``cache.place`` says where rows go: all on the device, and nothing of
        it is read by the host, so that it can be captured. mask: bool [q, window].
        """
        return self._run(tokens, positions, self._bias(mask), cache, taps)

    def _bias(self, mask: torch.Tensor) -> torch.Tensor:
        """What kernels add for a mask of bool [q, s], in the folded order of ``_tree_attention``:
        made once, not in every layer.
        """
        bias = torch.zeros(mask.shape, dtype=self.dtype, device=mask.device)
        bias.masked_fill_(mask.logical_not(), -torch.inf)
        return bias.repeat(self._groups, 1)[None, None]

    def _run(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        mask: torch.Tensor | None,
        cache: KVCache,
        taps: Sequence[int],
        logits: Literal["last", "all"] = "all",
    ) -> TargetOutput:
        with self._lock:
            for index in set(taps) - self._hooked:
                self.layers[index].register_forward_pre_hook(self._tap(index))
                self._hooked.add(index)
            self._taps = frozenset(taps)
            try:
                output = self.model(
                    input_ids=tokens[None],
                    position_ids=positions[None],
                    attention_mask=mask,
                    cache=cache,
                    use_cache=True,
                    logits_to_keep=1 if logits == "last" else 0,
                )
                hidden = None
                if taps:
                    states = [self._tapped[i][0].to(self.head_device) for i in taps]
                    hidden = torch.cat(states, dim=-1)
            finally:
                self._taps, self._tapped = frozenset(), {}
        return TargetOutput(output.logits[0], hidden)

    def step_cores(self, cache: KVCache) -> AbstractContextManager[None]:
        """What the passes of one verify step run in: who has this machine's cores."""
        ours = any(isinstance(layer, RowLinear) for layer in self.layers[0].modules())
        return cores_for_kernels() if ours and cache.length < LONG_CONTEXT else nullcontext()

    @torch.inference_mode()
    def verify(self, tree: DraftTree, cache: KVCache, *, taps: Sequence[int] = ()) -> TargetOutput:
        """Run a draft tree of N nodes behind the committed rows: logits [N, vocab] of every node.

        The root stands at position ``cache.length``: it is committed, but its row is not there yet.
        In static shapes the output is valid until the cache's next verify pass.
        """
        if self._static is not None:
            static = self._static.run(tree, cache, taps)
            if static is not None:
                return TargetOutput(*static)
        mask = None
        if len(tree) > 1:
            seen = np.ones((len(tree), cache.length), dtype=bool)
            mask = torch.from_numpy(np.concatenate([seen, tree.ancestor_mask()], axis=1))
        positions = torch.from_numpy(tree.depths().astype(np.int64) + cache.length)
        tokens = torch.from_numpy(tree.tokens)
        with self.step_cores(cache):
            return self.forward(tokens, positions, cache, mask=mask, taps=taps)

    def prefill(
        self, prompt: torch.Tensor, cache: KVCache, *, taps: Sequence[int] = ()
    ) -> TargetOutput:
        """Run a prompt (int64 [n]) from an empty cache and commit it; logits [1, vocab] of the last
        row, hidden of all.
        """
        hidden = []
        for start in range(0, len(prompt), PREFILL_CHUNK):
            tokens = prompt[start : start + PREFILL_CHUNK]
            positions = torch.arange(start, start + len(tokens))
            mask = None
            if start:
                mask = torch.arange(start + len(tokens))[None] <= positions[:, None]
            output = self.forward(tokens, positions, cache, mask=mask, taps=taps, logits="last")
            cache.keep(range(len(tokens)))
            if output.hidden is not None:
                hidden.append(output.hidden)
        return TargetOutput(output.logits, torch.cat(hidden) if taps else None)
