"""Exact accumulators: convolutions, matrix products and their chunks against int64."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from qfunc.numerics.kernels import integer
from qfunc.numerics.kernels.accumulators import conv_codes, conv_transpose_codes, exact_chunks, linear_codes, matmul_codes
from qfunc.testing import integer_oracle, oracle

CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
SIZES = {1: (23,), 2: (11, 13), 3: (5, 6, 7)}


def codes(shape: tuple[int, ...], low: int, high: int, seed: int) -> Tensor:
    return torch.randint(low, high + 1, shape, generator=torch.Generator().manual_seed(seed)).float()


def int64_conv(x: Tensor, zero: int, weight: Tensor, bias: Tensor | None, **options: Any) -> Tensor:
    # torch's own int64 convolution: another code path, exact modulo 2^64.
    run = CONV[weight.ndim - 2]
    return run(x.long() - zero, weight.long(), None if bias is None else bias.long(), **options)


@pytest.mark.parametrize("zero", [0, 255, 131])
@pytest.mark.parametrize("kind", ["dense", "grouped", "depthwise", "multiplier", "dilated", "strided"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_convolutions_equal_int64(rank: int, kind: str, zero: int) -> None:
    """Padding counts as the zero point: int64 pads x - z with zeros, so a wrong padding shows for z != 0."""
    groups = {"grouped": 3, "depthwise": 6, "multiplier": 6}.get(kind, 1)
    out = {"depthwise": 6, "multiplier": 12, "grouped": 9}.get(kind, 7)
    x, weight = codes((2, 6, *SIZES[rank]), 0, 255, 1), codes((out, 6 // groups, *[3] * rank), -127, 127, 2)
    bias = codes((out,), -(2**20), 2**20, 3).double()
    options = {
        "stride": 2 if kind == "strided" else 1,
        "padding": 2,
        "dilation": 2 if kind == "dilated" else 1,
        "groups": groups,
    }
    ends = exact_chunks(weight, 255)

    found = conv_codes(x, zero, weight, bias, ends=ends, **options)

    assert torch.equal(found.long(), int64_conv(x, zero, weight, bias, **options))
    assert torch.equal(found, found.round())


@pytest.mark.parametrize("onednn", [True, False])
def test_convolutions_equal_int64_without_onednn(onednn: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 16 images, PyTorch then takes NNPACK, whose Winograd transforms are no sums of products."""
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", onednn)
    x, weight = codes((16, 8, 12, 12), 0, 255, 1), codes((8, 8, 3, 3), -127, 127, 2)

    found = conv_codes(x, 3, weight, None, 1, 1, 1, 1, exact_chunks(weight, 255))

    assert torch.equal(found.double(), int64_conv(x, 3, weight, None, padding=1).double())


@pytest.mark.parametrize(("stride", "padding", "more"), [(1, 0, 0), (2, 1, 1), (3, 2, 0)])
@pytest.mark.parametrize("groups", [1, 2])
def test_transposed_convolutions_equal_int64(groups: int, stride: int, padding: int, more: int) -> None:
    """Every input entry adds its product with the kernel to the outputs from its place times the stride on."""
    x, weight = codes((2, 4, 5, 3), -128, 127, 1).long(), codes((4, 3, 3, 2), -127, 127, 2).long()
    bias = codes((3 * groups,), -(2**30), 2**30, 3).double()
    whole = torch.zeros(2, 3 * groups, 4 * stride + 3 + more, 2 * stride + 2 + more, dtype=torch.int64)
    for g, i, j in product(range(groups), range(5), range(3)):
        each = slice(g * 4 // groups, (g + 1) * 4 // groups)
        added = torch.einsum("nc,cokl->nokl", x[:, each, i, j] + 7, weight[each])
        whole[:, 3 * g : 3 * g + 3, i * stride : i * stride + 3, j * stride : j * stride + 2] += added
    wanted = whole[:, :, padding : whole.shape[2] - padding, padding : whole.shape[3] - padding] + bias.long()[:, None, None]

    found = conv_transpose_codes(x.float(), -7, weight.float(), bias, stride, padding, more, groups, 1)

    assert torch.equal(found.long(), wanted)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(("largest", "path"), [(255, "one run"), (4095, "runs"), (65535, "float64")])
def test_every_accumulation_path_is_exact(largest: int, path: str, groups: int) -> None:
    """One run, several runs and float64, all weights and inputs extreme: sums far beyond 2^24 keep their last bit."""
    weight = torch.full((3 * groups, 24, 3, 3), 127.0)
    weight[::2, ::2] -= 1
    x = codes((1, 24 * groups, 7, 5), largest - 1, largest, 4)
    ends = exact_chunks(weight, largest)
    assert (len(ends) == 1, len(ends) > 1, not ends) == (path == "one run", path == "runs", path == "float64")

    found = conv_codes(x, 0, weight, None, 1, 1, 1, groups, ends)

    assert torch.equal(found.long(), int64_conv(x, 0, weight, None, padding=1, groups=groups))
    assert (found.abs().max() >= 2**24) == (path != "one run")


@pytest.mark.parametrize(("largest", "length"), [(255, 60), (255, 5000), (65535, 700), (2**20, 40)])
def test_linear_layers_equal_int64(largest: int, length: int) -> None:
    """One run, runs and float64, with zero point and bias, 3-d input."""
    weight, x = codes((5, length), -127, 127, 1), codes((2, 3, length), 0, largest, 2)
    weight[0], x[0, 0], bias = 127.0, largest, codes((5,), -(2**22), 2**22, 3).double()
    ends = exact_chunks(weight, largest)

    found = linear_codes(x, 7, weight, bias, ends)

    assert torch.equal(found.long(), (x.long() - 7) @ weight.long().T + bias.long())


@pytest.mark.parametrize("length", [3, 250, 300])
def test_products_of_activations_equal_int64(length: int) -> None:
    """Below and beyond the bound length * 255^2 < 2^24, which length 258 crosses."""
    a, b = codes((2, 1, 5, length), 250, 255, 1), codes((3, length, 4), 250, 255, 2)

    found = matmul_codes(a, 0, b, 1, 255.0 * 255)

    assert torch.equal(found.long(), a.long() @ (b.long() - 1))
    assert found.dtype == (torch.float64 if length > 258 else torch.float32)


@given(st.data())
def test_no_run_can_reach_two_to_the_24(data: st.DataObject) -> None:
    """In every run every output's sum of |w| * largest stays below 2^24, and one more channel would not fit."""
    outputs, channels = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 12))
    largest = data.draw(st.sampled_from((1, 255, 4095, 65535, 2**17)))
    flat = data.draw(st.lists(st.integers(-127, 127), min_size=outputs * channels, max_size=outputs * channels))
    weight = torch.tensor(flat, dtype=torch.float32).reshape(outputs, channels)
    ends = exact_chunks(weight, largest)

    sums = weight.abs().long() * largest
    if not ends:
        assert int(sums.max()) >= 2**24
        return
    starts = [0, *ends[:-1]]
    assert ends[-1] == channels
    assert all(a < b for a, b in zip(starts, ends, strict=True))
    assert all(int(sums[:, a:b].sum(1).max()) < 2**24 for a, b in zip(starts, ends, strict=True))
    assert all(int(sums[:, a : b + 1].sum(1).max()) >= 2**24 for a, b in zip(starts[:-1], ends[:-1], strict=True))


def test_the_bound_is_sharp() -> None:
    """2^24 - 1 is one run; 2^24 in one channel is none; 2^24 in two channels is two."""
    one, two = torch.tensor([[1.0]]), torch.tensor([[1.0, 1.0]])

    assert exact_chunks(one, 2**24 - 1) == [1]
    assert exact_chunks(one, 2**24) == []
    assert exact_chunks(two, 2**23) == [1, 2]
    assert exact_chunks(two, 2**23 - 1) == [2]


@pytest.mark.parametrize("keepdim", [True, False])
def test_global_average_equals_the_oracle(keepdim: bool) -> None:
    """M = float32(s_x / float32(s_y * n)), the sum exact."""
    x, s_x, s_y = codes((2, 3, 7, 9), 0, 255, 5), float(torch.tensor(0.0731)), float(torch.tensor(0.0417))
    m = oracle.float32(Fraction(s_x) / oracle.float32(Fraction(s_y) * 63))

    found = integer.global_average_codes(x, 131, s_x, s_y, 77, 0, 255, "half_even", keepdim)

    sums = (x.long() - 131).sum((2, 3)).flatten().tolist()
    assert found.flatten().tolist() == [integer_oracle.requantize(a, m, 77, 0, 255) for a in sums]
    assert found.shape == ((2, 3, 1, 1) if keepdim else (2, 3))


@pytest.mark.parametrize("include_pad", [True, False])
@pytest.mark.parametrize("ceil_mode", [True, False])
@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding"),
    [
        ((9,), (3,), (2,), (1,)),
        ((7, 11), (3, 2), (2, 3), (1, 0)),
        ((5, 6), (2, 2), (1, 1), (0, 0)),
        ((4, 5, 6), (2, 3, 2), (2, 2, 1), (1, 1, 0)),
    ],
)  # fmt: skip
def test_average_pools_sum_in_window_order(
    size: tuple[int, ...],
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    ceil_mode: bool,
    include_pad: bool,
) -> None:
    """Against a scalar loop over windows in float32; elsewhere torch's own pooling up to its summation order.

    Window order is what the runtime does: with mixed magnitudes another order gives other bits.
    """
    x = torch.randn((2, 2, *size), generator=torch.Generator().manual_seed(3)) * 10.0 ** codes((2, 2, *size), -3, 3, 4)

    found = integer.average_pool_real(x, kernel, stride, padding, ceil_mode, include_pad)

    assert torch.equal(found, loop_over_windows(x, kernel, stride, padding, tuple(found.shape[2:]), include_pad))
    if len(size) == 2 and not (ceil_mode and include_pad):  # torch clips the count of windows that hang over
        theirs = F.avg_pool2d(x.double(), kernel, stride, padding, ceil_mode, include_pad)
        # n terms in float32: n * 2^-24 of the sum of magnitudes, which is at most the largest value.
        assert found.shape == theirs.shape
        assert (found - theirs).abs().max() <= 6 * 2.0**-23 * x.abs().max()


def loop_over_windows(
    x: Tensor,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    out: tuple[int, ...],
    include_pad: bool,
) -> Tensor:
    result, ranges = torch.empty(*x.shape[:2], *out), [range(k) for k in kernel]
    for place in torch.cartesian_prod(*[torch.arange(n) for n in out]).reshape(-1, len(out)).tolist():
        total, count = torch.zeros(x.shape[:2]), 0
        for offset in torch.cartesian_prod(*[torch.arange(len(r)) for r in ranges]).reshape(-1, len(out)).tolist():
            at = [p * s + o - pad for p, s, o, pad in zip(place, stride, offset, padding, strict=True)]
            if all(0 <= i < n for i, n in zip(at, x.shape[2:], strict=True)):
                total, count = total + x[(..., *at)], count + 1
        result[(..., *place)] = total / float(torch.tensor(kernel).prod() if include_pad else count)
    return result
