"""Pools with ceil_mode: PyTorch's windows, in ONNX Runtime, whatever the axes need."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import qfunc
from qfunc import targets
from qfunc.lowering import OnnxRuntimeRunner
from qfunc.specs import Everything, edit
from tests.conformance.modules import Apply

PAIRS = st.tuples(st.integers(1, 3), st.integers(1, 3))
KERNELS = PAIRS.flatmap(lambda k: st.tuples(st.just(k), st.tuples(*(st.integers(0, n // 2) for n in k))))
"""The window, and a padding of at most half of it, as PyTorch wants."""


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.booleans(), KERNELS, PAIRS, st.booleans(), st.tuples(st.integers(3, 9), st.integers(3, 9)))
def test_each_axis_has_the_windows_of_pytorch(
    largest: bool, window: tuple[tuple[int, int], tuple[int, int]], stride: tuple[int, int], counts: bool, size: tuple[int, int]
) -> None:
    kernel, pad = window

    def pool(x: Tensor) -> Tensor:
        if largest:
            return F.max_pool2d(x, kernel, stride, pad, ceil_mode=True)
        return F.avg_pool2d(x, kernel, stride, pad, ceil_mode=True, count_include_pad=counts)

    x = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(sum(size)))
    target = edit.skip(Everything())(targets.onnxruntime)
    model = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(Apply(pool)))
    (found,) = OnnxRuntimeRunner().run(qfunc.deploy(target)(model), [x])
    torch.testing.assert_close(torch.as_tensor(found), pool(x))  # float32 sums of at most nine entries
