"""Pools with ceil_mode or a divisor: PyTorch's windows, in ONNX Runtime, whatever the axes need."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.errors import DeployError
from qfunc.specs import Everything, edit
from qfunc.targets.runtimes import OnnxRuntimeRunner
from tests.conformance.modules import Apply

PAIRS = st.tuples(st.integers(1, 3), st.integers(1, 3))
KERNELS = PAIRS.flatmap(lambda k: st.tuples(st.just(k), st.tuples(*(st.integers(0, n // 2) for n in k))))
"""The window, and a padding of at most half of it, as PyTorch wants."""


@pytest.mark.thorough
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


@pytest.mark.thorough
@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.booleans(), KERNELS, PAIRS, st.booleans(), st.tuples(st.integers(3, 9), st.integers(3, 9)), st.integers(1, 9))
def test_a_divisor_is_that_of_all_windows(
    ceil_mode: bool,
    window: tuple[tuple[int, int], tuple[int, int]],
    stride: tuple[int, int],
    counts: bool,
    size: tuple[int, int],
    divisor: int,
) -> None:
    """Also of windows that reach beyond the image, and where it is the size of the window; the units are those predicted."""
    kernel, pad = window
    x = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(sum(size)))
    torch.manual_seed(0)
    net = Apply(lambda x, conv: F.avg_pool2d(conv(x), kernel, stride, pad, ceil_mode, counts, divisor), nn.Conv2d(3, 4, 1))
    model = qfunc.calibrate([x], progress=False)(qfunc.quantize(targets.onnxruntime)(net.eval()))
    report = qfunc.verify(targets.onnxruntime)(model, [x])
    assert report.verdict.startswith("bit-exact"), report
    window_size = kernel[0] * kernel[1]
    assert bool(report.float_units) == (divisor != window_size or ceil_mode)  # without ceil_mode, the mean runs on codes
    captured = qfunc.capture()(net)
    torch.testing.assert_close(captured(x), net(x))  # float32 sums of at most nine entries


def test_a_divisor_with_ceil_mode_needs_images_of_one_size() -> None:
    net = Apply(lambda x, conv: F.avg_pool2d(conv(x), 3, 2, ceil_mode=True, divisor_override=5), nn.Conv2d(3, 4, 1))
    batches = [torch.randn(2, 3, 6, 6), torch.randn(2, 3, 8, 8)]
    model = qfunc.calibrate(batches, progress=False)(qfunc.quantize(targets.onnxruntime)(net.eval()))
    with pytest.raises(DeployError) as raised:
        qfunc.deploy(targets.onnxruntime)(model)
    assert str(raised.value) == (
        "op 'avg_pool2d': found ceil_mode and a divisor for images whose size varies, wanted known sizes. Use "
        "ceil_mode=False, or images of one size."
    )
