"""Packed weights compute what plain ones compute."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from dart_core.packing import (
    OneDnnLinear,
    PackedLinear,
    RowLinear,
    RowNorm,
    pack_linears,
    swap_norms,
)

FP32, BF16 = torch.float32, torch.bfloat16
KINDS = [kind for kind in (RowLinear, OneDnnLinear) if kind is OneDnnLinear or kind.runs_here()]


def test_our_kernel_runs_wherever_avx2_does():
    capability = torch.backends.cpu.get_cpu_capability()
    assert RowLinear.runs_here() or "AVX" not in capability or capability == "AVX"


@pytest.mark.parametrize("dtype", [FP32, BF16])
@pytest.mark.parametrize("rows", [1, 3, 61])
@pytest.mark.parametrize("bias", [False, True])
def test_same_product(dtype, rows, bias):
    torch.manual_seed(rows)
    model = nn.Sequential(nn.Linear(48, 80, bias=bias), nn.SiLU(), nn.Linear(80, 24, bias=bias))
    model = model.to(dtype).requires_grad_(False)
    inputs = torch.randn(2, rows, 48, dtype=dtype)
    weight = model[0].weight.clone()
    with torch.inference_mode():
        expected = model(inputs)
        if dtype == BF16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            assert pack_linears(model) == 0  # no such kernels on this CPU
            assert type(model[0]) is nn.Linear
            return
        assert pack_linears(model) == 2
        assert isinstance(model[0], PackedLinear)
        tolerance = 1e-5 if dtype == FP32 else 2e-2
        torch.testing.assert_close(model(inputs), expected, rtol=tolerance, atol=tolerance)
        assert torch.equal(model[0].unpacked(), weight)
    assert pack_linears(model) == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("depth", "columns"), [(576, 192), (64, 16), (40, 17), (33, 5), (7, 211)])
@pytest.mark.parametrize("bias", [False, True])
def test_every_kind_on_every_shape(kind, depth, columns, bias):
    torch.manual_seed(columns)
    linear = nn.Linear(depth, columns, bias=bias).requires_grad_(False)
    packed = kind(linear)
    assert torch.equal(packed.unpacked(), linear.weight)
    exact = nn.Linear(depth, columns, bias=bias).double().requires_grad_(False)
    exact.load_state_dict(linear.state_dict())
    for rows in (*range(1, 21), 64):
        inputs = torch.randn(rows, depth)
        torch.testing.assert_close(
            packed(inputs).double(), exact(inputs.double()), rtol=1e-5, atol=1e-5
        )
    strided = torch.randn(3, depth, 2)[..., 0]
    torch.testing.assert_close(packed(strided), linear(strided), rtol=1e-5, atol=1e-5)
    assert packed(torch.randn(0, depth)).shape == (0, columns)


@pytest.mark.skipif(not RowLinear.runs_here(), reason="no AVX2")
def test_a_row_is_the_same_among_any_others_and_on_any_threads():
    """Bit for bit: so a verify pass computes what plain decoding computes."""
    torch.manual_seed(0)
    packed = RowLinear(nn.Linear(300, 1000).requires_grad_(False))
    inputs = torch.randn(70, 300)
    alone = torch.cat([packed(inputs[i : i + 1]) for i in range(len(inputs))])
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3, 8):
            torch.set_num_threads(count)
            for rows in (2, 5, 6, 7, 13, 70):
                assert torch.equal(packed(inputs[:rows]), alone[:rows])
    finally:
        torch.set_num_threads(threads)


@pytest.mark.skipif(not RowLinear.runs_here(), reason="no AVX2")
@pytest.mark.parametrize(("depth", "columns"), [(576, 1536), (33, 5), (7, 211), (1, 16)])
def test_bfloat16_weights_take_half_the_memory_and_give_the_same_sums(depth, columns):
    torch.manual_seed(depth)
    exact = torch.randn(columns, depth).bfloat16().float()
    exact[0, 0] = -0.0
    inexact = torch.cat((exact, torch.full((1, depth), 1 / 3)))  # one such weight: all in full
    layers = []
    for weight in (exact, inexact):
        linear = nn.Linear(depth, len(weight), bias=False).requires_grad_(False)
        linear.weight.copy_(weight)
        layers.append(RowLinear(linear))
    halved, full = layers
    assert halved.packed.bytes == -(-columns // 16) * 16 * depth * 2
    assert full.packed.bytes == -(-(columns + 1) // 16) * 16 * depth * 4
    assert halved.unpacked().numpy().tobytes() == exact.numpy().tobytes()
    for rows in (*range(1, 15), 61):
        inputs = torch.randn(rows, depth)
        assert torch.equal(halved(inputs), full(inputs)[:, :columns])


@pytest.mark.skipif(not RowLinear.runs_here(), reason="no AVX2")
def test_several_callers_and_a_forked_child_get_their_own_answers():
    torch.manual_seed(0)
    packed = RowLinear(nn.Linear(256, 2048).requires_grad_(False))
    inputs = torch.randn(16, 9, 256)
    expected = [packed(each) for each in inputs]
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(4)

        def ask(number: int) -> bool:
            each = number % len(inputs)
            return torch.equal(packed(inputs[each]), expected[each])

        with ThreadPoolExecutor(6) as pool:
            assert all(pool.map(ask, range(600)))
        child = os.fork()
        if child == 0:  # has none of the kernel's threads
            same = False
            try:
                same = torch.equal(packed(inputs[0]), expected[0])
            finally:
                os._exit(0 if same else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        torch.set_num_threads(threads)


@pytest.mark.skipif(not RowLinear.runs_here(), reason="no AVX2")
def test_other_inputs_are_refused():
    packed = RowLinear(nn.Linear(8, 4).requires_grad_(False))
    with pytest.raises(ValueError, match=r"expected float32 \[..., 8\], got torch.float64"):
        packed(torch.zeros(2, 8, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"got torch.float32 \[2, 7\]"):
        packed(torch.zeros(2, 7))


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


class LlamaLikeRMSNorm(nn.Module):
    """As transformers computes it for Llama and Qwen3."""

    def __init__(self, size: int, offset: float = 0.0):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(size) + 0.5)
        self.variance_epsilon, self.offset = 1e-5, offset

    def forward(self, states):
        states = states * torch.rsqrt(states.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return (self.offset + self.weight) * states


@pytest.mark.parametrize("size", [1, 7, 16, 64, 577])
def test_norms_are_swapped_for_the_same(size):
    torch.manual_seed(size)
    model = nn.ModuleList([LlamaLikeRMSNorm(size), nn.RMSNorm(size, 1e-6)])
    inputs = 3 * torch.randn(2, 5, size)
    inputs[0, 0] = 0.0
    expected = [norm(inputs) for norm in model]
    assert swap_norms(model) == 2
    for norm, each in zip(model, expected, strict=True):
        assert type(norm) is RowNorm
        torch.testing.assert_close(norm(inputs), each, rtol=1e-5, atol=1e-6)
        strided = inputs.transpose(0, 1)
        torch.testing.assert_close(norm(strided), each.transpose(0, 1), rtol=1e-5, atol=1e-6)
        assert torch.equal(norm(inputs[:, 2:3]), norm(inputs)[:, 2:3])
    assert swap_norms(model) == 0
    with pytest.raises(ValueError, match="expected float32"):
        model[0](inputs.double())
    with pytest.raises(ValueError, match="expected float32"):
        model[0](torch.zeros(2, size + 1))


def test_norms_that_compute_something_else_stay():
    model = nn.ModuleDict(
        {
            "offset": LlamaLikeRMSNorm(8, offset=1.0),
            "bf16": nn.RMSNorm(8, 1e-6, dtype=torch.bfloat16),
            "plain": nn.RMSNorm(8, 1e-6, elementwise_affine=False),
            "layer": nn.LayerNorm(8),
        }
    )
    assert swap_norms(model) == 0
