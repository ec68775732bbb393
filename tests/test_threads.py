"""Who has the cores during a verify step."""

from __future__ import annotations

import threading

import pytest
import torch
from models import tiny_target

from dart_core.drafters.autoregressive import AutoregressiveDrafter
from dart_core.generate import generate
from dart_core.packing import RowLinear, pack_linears
from dart_core.threads import _openmp, cores_for_kernels, kernel_threads

pytestmark = pytest.mark.skipif(_openmp() is None, reason="torch's OpenMP cannot be asked")


@pytest.fixture(autouse=True)
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def threads() -> tuple[int, int]:
    """Of torch's operations, and of our kernels."""
    return torch.get_num_threads(), kernel_threads()


def test_kernels_take_what_torch_leaves():
    assert threads() == (3, 3)
    with cores_for_kernels():
        assert threads() == (1, 3)
        with cores_for_kernels():
            assert threads() == (1, 3)
        assert threads() == (1, 3)
    assert threads() == (3, 3)


def test_an_error_gives_the_cores_back():
    with pytest.raises(KeyboardInterrupt), cores_for_kernels():
        raise KeyboardInterrupt
    assert threads() == (3, 3)


def test_other_threads_keep_theirs():
    seen = []
    with cores_for_kernels():
        thread = threading.Thread(target=lambda: seen.append(threads()))
        thread.start()
        thread.join()
    assert seen == [(3, 3)]


@pytest.mark.parametrize("packed", [False, True])
def test_a_run_asks_for_the_cores_where_our_kernels_run(packed, monkeypatch):
    target = tiny_target()
    if packed and pack_linears(target.model) == 0:
        return
    ours = any(isinstance(layer, RowLinear) for layer in target.model.modules())
    inside = []
    monkeypatch.setattr(
        target.layers[0].mlp, "forward", _watched(target.layers[0].mlp.forward, inside)
    )
    steps = generate(target, AutoregressiveDrafter(), [1, 2, 3], max_new_tokens=4)
    for _ in steps:
        assert threads() == (3, 3)  # the consumer's own
    assert inside == [(3, 3)] + [(1, 3) if ours else (3, 3)] * 3


def _watched(forward, seen: list):
    def watched(*given):
        seen.append(threads())
        return forward(*given)

    return watched
