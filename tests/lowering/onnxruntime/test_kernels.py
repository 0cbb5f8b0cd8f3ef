"""ONNX Runtime itself against `qfunc.numerics.kernels.integer`, kernel by kernel: not one code may differ.

Scales are powers of two, k/64 and ratios on a rounding tie or one ulp beside it; zero points are extreme or
random; each test also asserts that the optimised graph holds the integer kernel and no float op.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from qfunc.numerics.kernels import addition, integer
from qfunc.numerics.kernels.accumulators import conv_codes, exact_chunks, linear_codes, matmul_codes
from tests.lowering.onnxruntime.single_op import Codes, Draw, Model, tensor


def missing_instructions() -> str | None:
    if platform.machine() not in ("x86_64", "AMD64"):
        return f"the kernels' arithmetic is that of x86-64, this is {platform.machine()}"
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    return None if "avx512_vnni" in flags or "avx_vnni" in flags else "without VNNI, AVX2 saturates sums of products to int16"


REASON = missing_instructions()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))


def sized(s_x: float, s_w: Codes, length: int) -> float:
    # An output scale that keeps most sums of `length` random products inside the codes.
    return float(np.float32(s_x * s_w.max() * 70 * 70 * length**0.5 / 128))


# name, input and output channels, groups, kernel, input size
CONVS = [
    ("dense", 17, 33, 1, (3, 3), (15, 13)),
    ("pointwise", 40, 37, 1, (1, 1), (16, 11)),
    ("depthwise", 31, 31, 31, (3, 3), (16, 17)),
    ("grouped", 12, 20, 4, (3, 3), (15, 14)),
    ("1d", 20, 30, 1, (5,), (99,)),
    ("3d", 5, 7, 1, (3, 2, 3), (9, 10, 8)),
    ("beyond 2^24", 512, 8, 1, (3, 3), (10, 11)),
]


@pytest.mark.parametrize("kind", CONVS, ids=lambda k: k[0])
def test_conv(kind: tuple[Any, ...], tmp_path: Path) -> None:
    """Strides, dilations, padding with the zero point, bias or none; sums that float32 has to round."""
    name, cin, cout, groups, kernel, size = kind
    seen = inside = 0
    for seed in range(40):
        d = Draw(seed)
        x, w, b = d.codes(3, cin, *size), d.weights(cout, cin // groups, *kernel), d.random.integers(-20000, 20000, cout)
        if name.startswith("beyond"):
            x, w, b = x | 192, np.abs(w) | 64, d.random.integers(-(2**27), 2**27, cout)
        s_x, z_x, s_w, zero = d.scale(), d.zero(), d.scales(cout), d.zero()
        z_x = z_x // 4 if name.startswith("beyond") else z_x
        s_y = sized(s_x, s_w, w[0].size) * (300 if name.startswith("beyond") else 1)
        s_y, stride, dilation = float(np.float32(s_y)), int(d.random.integers(1, 3)), int(d.random.integers(1, 3))
        pad = int(d.random.integers(0, 3))
        m = Model()
        inputs = [m.real(x, s_x, z_x), m.held(w, s_w)]
        bias = b if seed % 3 else None
        if bias is not None:
            inputs.append(m.held(bias.astype(np.int32), np.float32(s_x) * s_w))
        n = len(kernel)
        shape = {"strides": [stride] * n, "dilations": [dilation] * n, "pads": [pad] * 2 * n, "group": groups}
        found = m.run(m.node("Conv", inputs, kernel_shape=kernel, **shape), s_y, zero, "QLinearConv", tmp_path)

        weight, largest = torch.tensor(w).float(), max(z_x, 255 - z_x)
        acc = conv_codes(
            tensor(x), z_x, weight, None if bias is None else torch.tensor(bias).double(), stride, pad, dilation, groups,
            exact_chunks(weight, largest),
        )  # fmt: skip
        along = (torch.tensor(s_w) * torch.tensor(s_x) / torch.tensor(s_y)).reshape(-1, *[1] * n)
        expected = integer.requantize(acc, along, zero, 0, 255, "half_even", "after")
        assert int((found != expected).sum()) == 0
        seen += found.numel()
        assert not name.startswith("beyond") or int(acc.abs().max()) >= 2**24
        inside += int(((found > 0) & (found < 255)).sum())
    assert inside > seen / 4
    assert seen > (50_000 if name.startswith("beyond") else 100_000)


@pytest.mark.parametrize("kernel", ["QGemm", "QLinearMatMul"])
def test_matrix_products(kernel: str, tmp_path: Path) -> None:
    """Gemm with bias and scales per channel; MatMul of two activations."""
    seen = 0
    for seed in range(40):
        d = Draw(seed)
        rows, length, columns = 61, int(d.random.integers(1, 500)), 47
        s_a, z_a, s_w, zero = d.scale(), d.zero(), d.scales(columns), d.zero()
        m, a = Model(), d.codes(rows, length)
        if kernel == "QGemm":
            w, b, s_y = (
                d.weights(columns, length),
                d.random.integers(-9999, 9999, columns).astype(np.int32),
                sized(s_a, s_w, length),
            )
            out = m.node("Gemm", [m.real(a, s_a, z_a), m.held(w, s_w), m.held(b, np.float32(s_a) * s_w)], transB=1)
            weight = torch.tensor(w).float()
            acc = linear_codes(tensor(a), z_a, weight, torch.tensor(b).double(), exact_chunks(weight, 255))
            multiplier = torch.tensor(s_a) * torch.tensor(s_w) / torch.tensor(s_y)
        else:
            a, b, s_b, z_b = d.codes(2, rows, length), d.codes(2, length, columns), d.scale(), d.zero()
            s_y = sized(s_a, np.array([s_b]), length)
            out = m.node("MatMul", [m.real(a, s_a, z_a), m.real(b, s_b, z_b)])
            acc = matmul_codes(tensor(a), z_a, tensor(b), z_b, 255.0 * 255)
            multiplier = torch.tensor(s_a) * torch.tensor(s_b) / torch.tensor(s_y)
        found = m.run(out, s_y, zero, kernel, tmp_path)

        assert int((found != integer.requantize(acc, multiplier, zero, 0, 255, "half_even", "after")).sum()) == 0
        seen += found.numel()
    assert seen > 100_000


def add(a: Codes, s_a: float, z_a: int, b: Codes, s_b: float, z_b: int, s: float, z: int) -> Tensor:
    return addition.add_codes(tensor(a), s_a, z_a, tensor(b), s_b, z_b, s, z, 0, 255, "half_even")


def mul(a: Codes, s_a: float, z_a: int, b: Codes, s_b: float, z_b: int, s: float, z: int) -> Tensor:
    m = torch.tensor(s_a) * torch.tensor(s_b) / torch.tensor(s)
    return integer.requantize((tensor(a) - z_a) * (tensor(b) - z_b), m, z, 0, 255, "half_even", "before")


@pytest.mark.parametrize(("op", "function"), [("Add", add), ("Mul", mul)])
def test_sums_and_products(op: str, function: Callable[..., Tensor], tmp_path: Path) -> None:
    """All 65536 pairs of codes; broadcasts, where the runtime swaps operands that are constant along the last axis."""
    every, other = (v.astype(np.uint8) for v in np.meshgrid(np.arange(256), np.arange(256)))
    shapes = [((3, 9, 40), (9, 1)), ((9, 1), (3, 9, 40)), ((1, 1), (7, 300)), ((7, 300), ()), ((), (7, 300)), ((40,), (9, 40))]
    inside = 0
    for seed in range(24):
        d = Draw(seed)
        s = d.scale()
        s_a, s_b = (d.near_tie(s), d.near_tie(s)) if seed % 2 else (d.scale(), d.scale())
        z_a, z_b, zero = d.zero(), d.zero(), d.zero()
        for a, b in [(every, other), *((d.codes(*p), d.codes(*q)) for p, q in shapes)]:
            a, b, m = np.asarray(a), np.asarray(b), Model()
            found = m.run(m.node(op, [m.real(a, s_a, z_a), m.real(b, s_b, z_b)]), s, zero, f"QLinear{op}", tmp_path)
            assert int((found != function(a, s_a, z_a, b, s_b, z_b, s, zero)).sum()) == 0
            inside += int(((found > 0) & (found < 255)).sum())
    assert inside > 200_000


IMAGE = (2, 9, 7, 5)


@pytest.mark.parametrize(("left", "right"), [((2, 1, 7, 5), IMAGE), (IMAGE, (2, 1, 7, 5)), ((2, 9, 1, 1), IMAGE)])
def test_sums_between_convolutions_run_with_channels_last(
    left: tuple[int, ...], right: tuple[int, ...], tmp_path: Path
) -> None:
    """Between convolutions the layout is NHWC, and that decides which operand is constant along the last axis."""
    other_order = 0
    for seed in range(40):
        d, m = Draw(seed), Model()
        s, zero = d.scale(), d.zero()
        terms = [(d.codes(*shape), d.near_tie(s), d.zero()) for shape in (left, right)]

        def same(real: str, scale: float, zero: int, m: Model = m) -> str:  # a quantizer on the way, as fusing needs
            held = m.node("QuantizeLinear", [real, m.constant(np.float32(scale)), m.constant(np.uint8(zero))])
            return m.node("DequantizeLinear", [held, m.constant(np.float32(scale)), m.constant(np.uint8(zero))])

        def identity(real: str, channels: int, m: Model = m) -> str:
            weight = np.eye(channels, dtype=np.int8).reshape(channels, channels, 1, 1)
            return m.node("Conv", [real, m.held(weight, np.ones(channels))], kernel_shape=[1, 1])

        reals = [same(identity(m.real(*t), t[0].shape[1]), *t[1:]) for t in terms]
        out = identity(same(m.node("Add", reals), s, zero), 9)
        found = m.run(out, s, zero, "QLinearAdd", tmp_path)

        (a, s_a, z_a), (b, s_b, z_b) = terms
        arguments = (tensor(a), s_a, z_a, tensor(b), s_b, z_b, s, zero, 0, 255, "half_even")
        assert int((found != addition.add_codes(*arguments, channels_last=True)).sum()) == 0
        other_order += int((found != addition.add_codes(*arguments, channels_last=False)).sum())
    assert (other_order > 0) == (left != IMAGE)


@pytest.mark.parametrize("include_pad", [True, False])
@pytest.mark.parametrize("ceil_mode", [True, False])
def test_average_pool(ceil_mode: bool, include_pad: bool, tmp_path: Path) -> None:
    """Float sums in window order, zero point before rounding."""
    seen = 0
    for seed in range(12):
        d = Draw(seed)
        x, s_x, z_x, zero = d.codes(2, 37, 17, 19), d.scale(), d.zero(), d.zero()
        s = float(np.float32(s_x * d.random.choice([0.5, 1, 1.7, 0.3])))
        k, stride = tuple(d.random.integers(2, 4, 2).tolist()), tuple(d.random.integers(1, 3, 2).tolist())
        pad = tuple(d.random.integers(0, 2, 2).tolist())
        m = Model()
        made = {
            "kernel_shape": k,
            "strides": stride,
            "pads": [*pad, *pad],
            "count_include_pad": include_pad,
            "ceil_mode": ceil_mode,
        }
        found = m.run(m.node("AveragePool", [m.real(x, s_x, z_x)], **made), s, zero, "QLinearAveragePool", tmp_path)

        real = integer.dequantize_codes(tensor(x), s_x, z_x)
        mean = integer.average_pool_real(real, k, stride, pad, ceil_mode, include_pad)
        expected = (mean / torch.tensor(s) + zero).round().clamp(0, 255)
        assert found.shape == expected.shape
        assert int((found != expected).sum()) == 0
        seen += found.numel()
    assert seen > 50_000


def test_global_average_pool(tmp_path: Path) -> None:
    """Also what an average pool over the whole input becomes."""
    for seed in range(24):
        d = Draw(seed)
        x, s_x, z_x, s, zero = d.codes(9, 500, int(d.random.integers(2, 8)), 5), d.scale(), d.zero(), d.scale(), d.zero()
        m = Model()
        found = m.run(m.node("GlobalAveragePool", [m.real(x, s_x, z_x)]), s, zero, "QLinearGlobalAveragePool", tmp_path)

        assert int((found != integer.global_average_codes(tensor(x), z_x, s_x, s, zero, 0, 255, "half_even", True)).sum()) == 0


def leaky(v: Tensor) -> Tensor:
    return torch.nn.functional.leaky_relu(v, 0.1)


@pytest.mark.parametrize(
    ("op", "function", "options"), [("Sigmoid", integer.logistic, {}), ("LeakyRelu", leaky, {"alpha": 0.1})]
)
def test_tables(op: str, function: Callable[[Tensor], Tensor], options: dict[str, float], tmp_path: Path) -> None:
    """Every code under 400 pairs of qparams."""
    codes = np.arange(256, dtype=np.uint8)
    for seed in range(400):
        d = Draw(seed)
        s_x, z_x, zero = d.scale(), d.zero(), d.zero()
        s = (
            (1 / 256 if seed % 2 else d.scale())
            if op == "Sigmoid"
            else float(np.float32(s_x * d.random.choice([0.5, 1, 1.3, 0.77])))
        )
        m = Model()
        found = m.run(m.node(op, [m.real(codes, s_x, z_x)], **options), s, zero, f"QLinear{op}", tmp_path)

        real = function(integer.dequantize_codes(tensor(codes), s_x, z_x))
        assert int((found != integer.quantize_codes(real, s, zero, 0, 255)).sum()) == 0


def test_concat(tmp_path: Path) -> None:
    """Every input is requantized on its own; equal qparams copy."""
    codes = np.arange(256, dtype=np.uint8).reshape(1, 4, 64)
    for seed in range(200):
        d = Draw(seed)
        s, zero = d.scale(), d.zero()
        parts = [(d.near_tie(s), d.zero()), (s, zero) if seed % 3 == 0 else (d.scale(), d.zero())]
        m = Model()
        out = m.node("Concat", [m.real(codes, *part) for part in parts], axis=1)
        found = m.run(out, s, zero, "QLinearConcat", tmp_path)

        each = [integer.quantize_codes(integer.dequantize_codes(tensor(codes), *part), s, zero, 0, 255) for part in parts]
        assert int((found != torch.cat(each, 1)).sum()) == 0


def test_softmax(tmp_path: Path) -> None:
    """1/256 with zero point 0 as targets fix it, and any other output; last and inner axes."""
    seen = 0
    for seed in range(60):
        d = Draw(seed)
        length, s_x, z_x = int(d.random.choice([2, 3, 10, 64, 197, 500])), d.scale(), d.zero()
        x = np.clip(d.random.normal(120, d.random.choice([2, 10, 60]), (7, 5, length)).round(), 0, 255).astype(np.uint8)
        s, zero = (1 / 256, 0) if seed % 2 else (d.scale(), d.zero())
        for axis in (-1, 1):
            m = Model()
            found = m.run(m.node("Softmax", [m.real(x, s_x, z_x)], axis=axis), s, zero, "QLinearSoftmax", tmp_path)
            assert int((found != integer.softmax_codes(tensor(x), axis, s_x, s, zero, 255)).sum()) == 0
            seen += found.numel()
    assert seen > 100_000
