"""Packed weights compute what plain ones compute."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dart_core.packing import PackedLinear, pack_linears

pytestmark = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="torch was built without oneDNN"
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 3, 61])
@pytest.mark.parametrize("bias", [False, True])
def test_same_product(dtype, rows, bias):
    if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("this CPU has no bf16 matrix kernels")
    torch.manual_seed(rows)
    model = nn.Sequential(nn.Linear(48, 80, bias=bias), nn.SiLU(), nn.Linear(80, 24, bias=bias))
    model = model.to(dtype).requires_grad_(False)
    inputs = torch.randn(2, rows, 48, dtype=dtype)
    weight = model[0].weight.clone()
    with torch.inference_mode():
        expected = model(inputs)
        assert pack_linears(model) == 2
        assert isinstance(model[0], PackedLinear)
        tolerance = 1e-5 if dtype == torch.float32 else 2e-2
        torch.testing.assert_close(model(inputs), expected, rtol=tolerance, atol=tolerance)
        assert torch.equal(model[0].unpacked(), weight)
    assert pack_linears(model) == 0


def test_leaves_what_it_cannot_pack():
    model = nn.ModuleDict({"exact": nn.Linear(8, 8).double(), "embed": nn.Embedding(8, 8)})
    assert pack_linears(model) == 0
    assert type(model["exact"]) is nn.Linear


def test_tied_embedding_survives():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(32, 16)
            self.head = nn.Linear(16, 32, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, ids):
            return self.head(self.embed(ids))

    model = Tied().requires_grad_(False)
    ids = torch.tensor([3, 1, 4])
    expected = model(ids)
    assert pack_linears(model) == 1
    torch.testing.assert_close(model(ids), expected)
