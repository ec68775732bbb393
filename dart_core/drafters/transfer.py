"""From the device to the CPU in one copy, with the wait for it apart from its start."""

from __future__ import annotations

import torch
from torch import Tensor


class Transfer:
    """A tensor on its way to the CPU, behind all that its device has been given so far.

    What the device is given afterwards runs while the CPU already works on what arrived.
    """

    def __init__(self, tensor: Tensor) -> None:
        self._arrived: torch.cuda.Event | None = None
        self._host = tensor
        if tensor.is_cuda:
            # Only a copy to pinned memory is queued like a kernel.
            self._host = torch.empty_like(tensor, device="cpu", pin_memory=True)
            self._host.copy_(tensor, non_blocking=True)
            self._arrived = torch.cuda.current_stream(tensor.device).record_event()

    def wait(self) -> Tensor:
        """The tensor on the CPU, once it is there; on a CPU it always is."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._host
