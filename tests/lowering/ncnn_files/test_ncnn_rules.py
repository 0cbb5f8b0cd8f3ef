"""ncnn's arithmetic without ncnn: the emulation against its formulas, written out in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import qfunc
from qfunc import targets
from qfunc.graph.interpreter import ObservingInterpreter
from qfunc.graph.sites import quantizer_nodes
from qfunc.specs import edit
from qfunc.targets.ncnn import functions as ncnn_real

f32 = np.float32


def _codes(x, scale):
    v = (x * (f32(1) / f32(scale))).astype(f32)
    return np.clip(np.trunc(v.astype(np.float64) + np.copysign(0.5, v)), -127, 127)


def _case(layer: nn.Module, *shape: int, target=targets.ncnn):
    torch.manual_seed(1)
    x = torch.randn(shape)
    model = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(layer.eval()))
    found = {s.module.site.slot: s for s in quantizer_nodes(model)}
    s_x, s_w = f32(found["input"].module.scale), found["weight"].module.scale.detach().numpy().astype(f32).ravel()
    weight = found["weight"].module.export(layer.weight.detach())[0].double().numpy()
    m = f32(1) / ((f32(1) / s_x) * (f32(1) / s_w))
    return model, 1.3 * x, _codes(1.3 * x.numpy(), s_x), weight, m.astype(f32)


@pytest.mark.parametrize(
    ("cpu", "groups", "fused"),
    [
        ("x86-64-vnni", 1, True), ("x86-64-vnni", 6, True), ("x86-64-avx2", 1, True), ("x86-64-avx2", 6, False),
        ("x86-64-sse4", 1, False), ("x86-64-sse4", 6, False),
    ],
)  # fmt: skip
def test_convolutions_round_once_or_twice(cpu, groups, fused):
    """640 elements; of the other rule at least 5 in 100 differ, so that it cannot pass."""
    layer, target = nn.Conv2d(6, 6, 3, groups=groups), edit.cpu(cpu)(targets.ncnn)
    model, x, codes, weight, m = _case(layer, 2, 6, 10, 9, target=target)
    acc = F.conv2d(torch.from_numpy(codes), torch.from_numpy(weight), groups=groups).numpy().astype(f32)
    bias, m = layer.bias.detach().numpy()[:, None, None], m[:, None, None]
    once = (acc.astype(np.longdouble) * m + bias).astype(f32)  # 64 bits hold the product, and the sum but for its last bits
    twice = (acc * m).astype(f32) + bias
    right, wrong = (once, twice) if fused else (twice, once)
    found = qfunc.emulate(target)(model)(x).detach().numpy()
    assert np.array_equal(found, right)
    assert (right != wrong).mean() > 0.05


def test_linear_layers_round_twice_and_the_next_ones_codes_are_of_what_they_make():
    net = nn.Sequential(nn.Linear(20, 12), nn.ReLU())
    model, x, codes, weight, m = _case(net[0], 30, 20)
    value = ((codes @ weight.T).astype(f32) * m).astype(f32) + net[0].bias.detach().numpy()
    assert np.array_equal(qfunc.emulate(targets.ncnn)(model)(x).detach().numpy(), value)


def test_codes_between_convolutions_are_rounded_half_away_by_the_reciprocal():
    torch.manual_seed(2)
    net = nn.Sequential(nn.Conv2d(2, 3, 1, bias=False), nn.ReLU(), nn.Conv2d(3, 2, 1))
    model = qfunc.calibrate([torch.randn(2, 2, 5, 5)], progress=False)(qfunc.quantize(targets.ncnn)(net))
    for seat in quantizer_nodes(model):
        seat.module.scale.fill_(0.5 if seat.module.site.constant or seat.tensor == "input_1" else 0.375)
    x, seen = torch.arange(-25, 25.0).reshape(1, 2, 5, 5) / 4, {}
    ObservingInterpreter(qfunc.emulate(targets.ncnn)(model), seen.__setitem__).run(x, enable_io_processing=False)
    s_x, s_y = (f32(s.module.scale.item()) for s in quantizer_nodes(model) if not s.module.site.constant)
    weight = next(s.module for s in quantizer_nodes(model) if s.module.site.name == "0.weight")
    codes = weight.export(net[0].weight.detach())[0].double()
    acc = F.conv2d(torch.from_numpy(_codes(x.numpy(), s_x)), codes).numpy().astype(f32)
    m = f32(1) / (f32(1) / s_x * (f32(1) / f32(0.5)))
    assert np.array_equal(seen["_1"].numpy(), _codes(np.maximum(acc * m, 0), s_y))


def test_a_global_average_is_four_sums_then_the_rest_times_the_reciprocal():
    x = np.random.default_rng(3).normal(size=(4, 5, 3, 9)).astype(f32)
    flat = x.reshape(4, 5, 27)
    want = np.zeros((4, 5), f32)
    for n, c in np.ndindex(4, 5):
        sums = [f32(0)] * 4
        for i in range(24):
            sums[i % 4] = f32(sums[i % 4] + flat[n, c, i])
        total = f32(f32(sums[0] + sums[2]) + f32(sums[1] + sums[3]))
        for i in range(24, 27):
            total = f32(total + flat[n, c, i])
        want[n, c] = total * (f32(1) / f32(27))
    found = ncnn_real.mean_of_image(torch.from_numpy(x), False).numpy()
    assert np.array_equal(found, want)
    assert np.array_equal(ncnn_real.average_to(torch.from_numpy(x), 1).numpy()[..., 0, 0], want)
    assert not np.array_equal(found, x.mean((2, 3)))


@pytest.mark.parametrize("counts", [False, True])
def test_an_average_is_in_window_order_and_where_padding_counts_times_the_reciprocal(counts):
    x = np.random.default_rng(4).normal(size=(2, 3, 7, 8)).astype(f32)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    found = ncnn_real.average(torch.from_numpy(x), 3, 2, 1, False, counts).numpy()
    want = np.zeros_like(found)
    for n, c, i, j in np.ndindex(*found.shape):
        total, inside = f32(0), 0
        for a in range(2 * i, 2 * i + 3):
            for b in range(2 * j, 2 * j + 3):
                total = f32(total + padded[n, c, a, b])
                inside += 0 < a < 8 and 0 < b < 9
        want[n, c, i, j] = total * (f32(1) / f32(9)) if counts else total / f32(inside)
    assert np.array_equal(found, want)


@pytest.mark.parametrize("size", [5, 6, 7, 8])
def test_an_average_with_ceil_mode_counts_the_padding_only(size):
    """Not the entries that ceil_mode adds: PyTorch's average in float64, within 9 roundings of float32."""
    x = torch.randn(1, 2, size, size + 1, generator=torch.Generator().manual_seed(size))
    for kernel, stride in ((2, 2), (3, 2), (3, 3)):
        found, want = (f(v, kernel, stride, 1, True) for f, v in ((ncnn_real.average, x), (F.avg_pool2d, x.double())))
        assert found.shape == want.shape
        assert float((found - want).abs().max()) < 1e-6


@pytest.mark.parametrize("size", [3, 4, 7])
def test_windows_of_an_adaptive_average_may_overlap(size):
    x = torch.randn(1, 2, 5, 5, generator=torch.Generator().manual_seed(size))
    found, want = ncnn_real.average_to(x, size), F.adaptive_avg_pool2d(x.double(), size)
    assert found.shape == want.shape
    assert float((found - want).abs().max()) < 1e-6


def test_exponentials_are_near_and_hard_curves_round_once():
    x = np.linspace(-20, 20, 4001, dtype=f32)
    found = ncnn_real.exp(torch.from_numpy(x)).numpy()
    # The polynomial's own error is 1e-7 of the value (Cephes expf); the last step rounds by 6e-8 more.
    assert np.allclose(found, np.exp(x.astype(np.float64)), rtol=2e-7, atol=0)
    assert ncnn_real.exp(torch.tensor([200.0, -200.0])).isfinite().all()
    third = np.clip((x.astype(np.longdouble) * f32(1 / 6) + 0.5).astype(f32), 0, 1)
    assert np.array_equal(ncnn_real.hard_sigmoid(torch.from_numpy(x)).numpy(), third)
    assert np.array_equal(ncnn_real.hard_swish(torch.from_numpy(x)).numpy(), x * third)
    assert np.array_equal(ncnn_real.elu(torch.from_numpy(x), 0.5).numpy(), np.where(x > 0, x, (found - 1) * f32(0.5)))
