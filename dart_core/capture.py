"""A call over fixed tensors, captured so that it can be replayed: a CUDA graph, or not at all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from dart_core.errors import ArenaError

if TYPE_CHECKING:
    from dart_core.target import Target

Call = Callable[[], None]
Capture = Callable[[Call], Call]


def run_eagerly(call: Call) -> Call:
    """Captures nothing: the call itself runs every time. The static form on a CPU."""
    return call


class CudaGraphs:
    """Captures calls on one CUDA device. Raises ArenaError for a target that cannot be captured."""

    # torch takes one capture at a time into a pool of graph memory.
    _capturing = threading.Lock()

    def __init__(self, target: Target) -> None:
        require_one_gpu(list(dict.fromkeys([target.device, *target.layer_devices])))
        rope = (getattr(target.config, "rope_parameters", None) or {}).get("rope_type")
        experts = getattr(target.config, "num_experts", None) or getattr(
            target.config, "num_local_experts", None
        )
        if rope == "dynamic" or experts:
            what = "routes tokens to experts" if experts else "has dynamic RoPE"
            raise ArenaError(
                f"CUDA graphs: this target {what}, which reads values on the host in every pass; "
                "leave --cuda-graphs out"
            )
        self._device = target.device
        self._stream = torch.cuda.Stream(target.device)
        self._memory = torch.cuda.graph_pool_handle()

    def __call__(self, call: Call) -> Call:
        """Run ``call`` twice, for what libraries set up on first use, then capture it: what comes
        back replays it. The call must give the same result however often it runs.
        """
        with CudaGraphs._capturing, torch.cuda.device(self._device):
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                call()
                call()
            torch.cuda.current_stream().wait_stream(self._stream)
            graph = torch.cuda.CUDAGraph()
            # thread_local: other runs' threads may allocate meanwhile
            with torch.cuda.graph(
                graph,
                pool=self._memory,
                stream=self._stream,
                capture_error_mode="thread_local",
            ):
                call()
        return graph.replay


def require_one_gpu(devices: Sequence[torch.device]) -> None:
    """Raises ArenaError where CUDA graphs are not offered."""
    if devices[0].type != "cuda":
        raise ArenaError(
            f"CUDA graphs need a CUDA GPU, and the models go to {devices[0]}; "
            "leave --cuda-graphs out"
        )
    if len(devices) > 1:
        raise ArenaError(
            f"CUDA graphs need the whole target on one GPU, and it is spread over {len(devices)} "
            "devices; leave --cuda-graphs out, or take a smaller target"
        )
