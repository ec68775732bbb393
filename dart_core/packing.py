"""Linear layers with weights packed for this CPU's matrix kernels: same numbers, half the time.

Drafting and verification run few rows through large matrices. oneDNN reads a weight in blocks and
would otherwise reorder it in every call; packing does it once. It serves inference only: the plain
weights are given up.
"""

from __future__ import annotations

import logging

import torch
from torch import Tensor, nn

logger = logging.getLogger(__name__)


class PackedLinear(nn.Module):
    """An inference-only ``nn.Linear`` on the CPU; ``unpacked`` gives the weight back."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias
        # Opaque to torch, hence neither parameter nor buffer. The row count is only a hint for the
        # block layout.
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), 16)

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(inputs, self.packed, self.bias, "none", [], "")

    def unpacked(self) -> Tensor:
        """The plain weight, [out_features, in_features]."""
        return self.packed.to_dense()

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"


def pack_linears(module: nn.Module) -> int:
    """Replace every plain ``nn.Linear`` on the CPU below ``module``; returns how many.

    Weights in other dtypes or on other devices, and machines without the kernels, are left alone.
    The module can no longer be trained, saved or moved. A weight shared with an embedding stays
    with the embedding.
    """
    count = 0
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and _packable(child.weight):
                setattr(parent, name, PackedLinear(child))
                count += 1
    if count:
        logger.info("packed %d weight matrices of %s", count, type(module).__name__)
    return count


def _packable(weight: Tensor) -> bool:
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if not hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):
        return False
    if weight.dtype == torch.bfloat16:
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return weight.dtype == torch.float32
