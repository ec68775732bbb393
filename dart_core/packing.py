"""Layers for inference on a CPU: packed weights, one-pass norms. Half the time, or better.

Drafting and verification run few rows through large matrices. Two kernels know how: our own
(cpp/row_gemm.h) for fp32 on CPUs with AVX2, where a row's numbers do not depend on how many rows
run, and oneDNN's, with its blocks laid out once instead of in every call. Both serve inference
only: the plain weights are given up.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor, nn

from dart_core._native import native, native_is_here
from dart_core.threads import kernel_threads

logger = logging.getLogger(__name__)


class PackedLinear(nn.Module):
    """An inference-only ``nn.Linear`` on the CPU; ``unpacked`` gives the weight back.

    ``packed`` is opaque to torch, hence neither parameter nor buffer.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias
        self.packed = self.pack(linear.weight.detach())

    def pack(self, weight: Tensor) -> Any:
        """``weight`` [out_features, in_features] as the kernel reads it."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"


def _for_kernel(inputs: Tensor, size: int) -> Tensor:
    """``inputs`` as our kernels read them by address: float32 [..., size] without gaps. Raises
    ValueError for any other dtype or size.
    """
    if inputs.dtype != torch.float32 or inputs.shape[-1] != size:
        raise ValueError(f"expected float32 [..., {size}], got {inputs.dtype} {list(inputs.shape)}")
    return inputs.contiguous()


class RowLinear(PackedLinear):
    """By our kernel. Each output is one sum in a fixed order: a row's result is the same, bit for
    bit, alone or among others, on one thread or several.
    """

    @staticmethod
    def runs_here() -> bool:
        """Whether the extension is built and this CPU has the instructions."""
        return native_is_here() and native().RowMatrix.runs_here()

    def pack(self, weight: Tensor) -> Any:
        return native().RowMatrix(weight.numpy())

    def forward(self, inputs: Tensor) -> Tensor:
        inputs = _for_kernel(inputs, self.in_features)
        outputs = inputs.new_empty((*inputs.shape[:-1], self.out_features))
        self.packed.multiply(
            inputs.data_ptr(),
            inputs.numel() // self.in_features,
            0 if self.bias is None else self.bias.data_ptr(),
            outputs.data_ptr(),
            kernel_threads(),
        )
        return outputs

    def unpacked(self) -> Tensor:
        """The plain weight, [out_features, in_features]."""
        return torch.from_numpy(self.packed.unpack())


class OneDnnLinear(PackedLinear):
    """By oneDNN."""

    def pack(self, weight: Tensor) -> Tensor:
        # The row count is only a hint for the block layout.
        return torch.ops.mkldnn._reorder_linear_weight(weight, 16)

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(inputs, self.packed, self.bias, "none", [], "")

    def unpacked(self) -> Tensor:
        """The plain weight, [out_features, in_features]."""
        return self.packed.to_dense()


class RowNorm(nn.Module):
    """A root-mean-square norm with a weight, fp32, by our kernel: one pass instead of eight."""

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        super().__init__()
        self.weight, self.epsilon = nn.Parameter(weight, requires_grad=False), epsilon

    def forward(self, inputs: Tensor) -> Tensor:
        size = len(self.weight)
        inputs = _for_kernel(inputs, size)
        outputs = torch.empty_like(inputs)
        native().rms_norm(
            inputs.data_ptr(),
            self.weight.data_ptr(),
            self.epsilon,
            inputs.numel() // size,
            size,
            outputs.data_ptr(),
        )
        return outputs

    def extra_repr(self) -> str:
        return f"{len(self.weight)}, eps={self.epsilon}"


def swap_norms(module: nn.Module) -> int:
    """Replace every fp32 root-mean-square norm on the CPU below ``module``; returns how many.

    transformers has a class of its own for each model, so a norm is known by its name and by what
    it computes: one that computes something else is left alone.
    """
    count = 0
    for parent in list(module.modules()) if native_is_here() else ():
        for name, child in list(parent.named_children()):
            norm = _row_norm(child)
            if norm is not None:
                setattr(parent, name, norm)
                count += 1
    return count


@torch.no_grad()
def _row_norm(module: nn.Module) -> RowNorm | None:
    weight = getattr(module, "weight", None)
    epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if not type(module).__name__.endswith("RMSNorm") or weight is None or not epsilon:
        return None
    if weight.device.type != "cpu" or weight.dtype != torch.float32 or weight.dim() != 1:
        return None
    norm = RowNorm(weight.detach(), float(epsilon))
    probe = torch.linspace(-2.0, 3.0, 2 * len(weight)).view(2, -1)
    same = torch.allclose(norm(probe), module(probe), rtol=1e-5, atol=1e-6)
    return norm if same else None


def pack_linears(module: nn.Module) -> int:
    """Replace every plain ``nn.Linear`` on the CPU below ``module``; returns how many.

    Weights in other dtypes or on other devices, and machines without the kernels, are left alone.
    The module can no longer be trained, saved or moved. A weight shared with an embedding stays
    with the embedding.
    """
    count = 0
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and (kind := _kind(child.weight)):
                setattr(parent, name, kind(child))
                count += 1
    if count:
        logger.info("packed %d weight matrices of %s", count, type(module).__name__)
    return count


def _kind(weight: Tensor) -> type[PackedLinear] | None:
    """What packs this weight best here."""
    if weight.device.type != "cpu":
        return None
    # Wider vectors than AVX2's are better served by oneDNN.
    avx2 = torch.backends.cpu.get_cpu_capability() == "AVX2" and RowLinear.runs_here()
    if avx2 and weight.dtype == torch.float32:
        return RowLinear
    if not torch.backends.mkldnn.is_available():
        return None
    if not hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):
        return None
    if weight.dtype == torch.float32:
        return OneDnnLinear
    if weight.dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return OneDnnLinear
    return None


def pack_layers(module: nn.Module) -> None:
    """Make ``module`` quick on the CPU: ``pack_linears`` and ``swap_norms``."""
    pack_linears(module)
    swap_norms(module)
