"""A CUDA graph's rules on a CPU: a call's operators are recorded once, with the tensors they had,
and replayed on the same tensors. Whatever Python decided on the way stays as it was.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

READ_BY_THE_HOST = ("item", "_local_scalar_dense", "nonzero", "is_nonzero", "masked_select")


class _Recorder(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.operators: list[tuple] = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = operator.overloadpacket.__name__
        flags = [leaf for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)]
        by_mask = name.startswith("index") and any(t.dtype == torch.bool for t in flags[1:])
        if name in READ_BY_THE_HOST or by_mask:
            raise RuntimeError(f"{name}: operation not permitted when stream is capturing")
        output = operator(*args, **kwargs)
        self.operators.append((operator, args, kwargs, output))
        return output


def _tensors(values) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def _storage(tensor: torch.Tensor) -> int | None:
    """None for a packed weight, which has none that torch could show."""
    return None if tensor.is_mkldnn else tensor.untyped_storage().data_ptr()


class RecordedCalls:
    """In place of ``CudaGraphs``; counts what it recorded and what was replayed."""

    def __init__(self):
        self.recorded = self.replayed = 0

    def __call__(self, call: Callable[[], None]) -> Callable[[], None]:
        call()
        call()  # as a warm-up does: it must change nothing
        with _Recorder() as recorder:
            call()
        self.recorded += 1

        def replay() -> None:
            self.replayed += 1
            for operator, args, kwargs, output in recorder.operators:
                given = {_storage(tensor) for tensor in _tensors((args, kwargs))}
                for old, new in zip(
                    _tensors(output), _tensors(operator(*args, **kwargs)), strict=True
                ):
                    if _storage(old) not in given:  # else a view, or written in place
                        old.copy_(new)

        return replay
