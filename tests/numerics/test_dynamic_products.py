"""Products quantized at run time, against the equation of `DynamicProduct` computed one number at a time in rationals."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import qfunc
from qfunc.errors import SpecError
from qfunc.estimators import MinMax
from qfunc.functions import Fixed
from qfunc.graph.sites import quantizer_nodes
from qfunc.numerics.sums.dynamic import weight_sums
from qfunc.specs import (
    BFLOAT16, FLOAT16, FLOAT32, Algorithm, DynamicProduct, Int, Kernel, Lanes, Op, PerBlock, PerToken, Rule, Scale, Scheme,
    Target, WeightSums, ZeroPoint,
)  # fmt: skip
from qfunc.specs.formats import E8M0

NEAREST = Scheme(Int(8), Scale(PerToken(), dynamic=True), ZeroPoint(nudge="nearest"), division=False)
TOKEN = Scheme(Int(8, signed=False), Scale(PerToken(), dynamic=True), ZeroPoint(), division=False)
Q8_0 = Scheme(Int(8, low=-127), Scale(PerBlock(-1, 4), format=FLOAT16, dynamic=True), rounding="half_away", division=False)
BLOCKS = Scheme(Int(8), Scale(PerBlock(-1, 8), dynamic=True), ZeroPoint(), division=False)
TINY = Fraction(2) ** -126
PRODUCTS = (
    DynamicProduct(NEAREST, zero_point=WeightSums(2, offset=128), denormals=False, clamps=True),
    DynamicProduct(TOKEN, zero_point=WeightSums(16), fma=False),
    DynamicProduct(NEAREST, zero_point=WeightSums(8), lanes=Lanes(4, 2, "pairs"), fused_bias=True),
    DynamicProduct(TOKEN, multiplier="last", lanes=Lanes(2, 1)),
    DynamicProduct(evolve(TOKEN, format=Int(8)), multiplier="both", scales="inside", fma=False, denormals=False),
    DynamicProduct(Q8_0, multiplier="both", scales="inside", lanes=Lanes(4, 2)),
    DynamicProduct(Q8_0, multiplier="last", scales="inside", lanes=Lanes(2, 4), fma=False),
    DynamicProduct(BLOCKS, multiplier="first", scales="inside", lanes=Lanes(8, 1)),
    DynamicProduct(evolve(Q8_0, scale=evolve(Q8_0.scale, format=BFLOAT16)), scales="inside"),
)


def rounded(x: Fraction, dtype: Any = np.float32) -> Fraction:
    """The nearest float32 or float16 of a rational, ties to even: the nearest of three neighbours of its float64."""
    if dtype == "bfloat16":
        bits = int(np.float32(float(rounded(x))).view(np.uint32))
        return Fraction(float(np.uint32((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).view(np.float32)))
    near = dtype(float(x))
    options = {v for v in (np.nextafter(near, dtype(-np.inf)), near, np.nextafter(near, dtype(np.inf))) if np.isfinite(v)}
    width = np.uint32 if dtype is np.float32 else np.uint16
    best = min(options, key=lambda v: (abs(Fraction(float(v)) - x), int(v.view(width)) & 1))
    return Fraction(float(best))


def reference(product: DynamicProduct, x: np.ndarray, weight: np.ndarray, s_w: np.ndarray, bias: np.ndarray | None) -> list:
    """The outputs of one token: `weight` [O, K], `s_w` [O, K / block]."""

    def f(value: Fraction) -> Fraction:
        value = rounded(value)
        return Fraction(0) if not product.denormals and abs(value) < TINY else value

    scheme, size = product.input, x.size
    group = scheme.scale.shared.size if isinstance(scheme.scale.shared, PerBlock) else size
    low, high = scheme.format.qmin, scheme.format.qmax
    values = [f(Fraction(float(v))) for v in x]
    codes, scales, zeros = [], [], []
    for start in range(0, size, group):
        part = values[start : start + group]
        least, most = min(*part, Fraction(0)), max(*part, Fraction(0))
        span = max(-least, most) if scheme.symmetric else f(most - least)
        n = Fraction(high) if scheme.symmetric else Fraction(high - low)
        r = s = Fraction(1)
        if span:
            s = f(span / n)
            r = f(1 / s) if product.multiplier == "last" else f(n / span)
            s = f(1 / r) if product.multiplier == "first" else s
        s = rounded(s, {FLOAT16: np.float16, BFLOAT16: "bfloat16"}.get(scheme.scale.format, np.float32))
        z = rounded(low - f(least * r))
        if scheme.zero_point is not None and scheme.zero_point.nudge == "nearest":
            errors = rounded(rounded(low + f(least * r)) + rounded(high + f(most * r)))
            z = z if errors > 0 else rounded(high - f(most * r))
        z = 0 if scheme.symmetric else round(min(max(z, Fraction(low)), Fraction(high)))
        for v in part:
            real = f(v * r)
            q = round(real) if scheme.rounding == "half_even" else int(abs(real) + Fraction(1, 2)) * (1 if real > 0 else -1)
            codes.append(min(max(q + z, low), high))
        scales.append(s)
        zeros.append(z)
    return [
        _output(product, f, codes, scales, zeros, weight[o], s_w[o], None if bias is None else bias[o])
        for o in range(len(weight))
    ]


def _output(product, f, codes, scales, zeros, row, s_row, bias) -> float:
    size, lanes, sums = len(codes), product.lanes, product.zero_point
    block, group = size // len(s_row), size // len(scales)
    v = [Fraction(0)] * lanes.count
    if sums is not None:
        k = Fraction(0)
        for start in range(0, size, sums.run):
            c = Fraction(int(row[start : start + sums.run].sum()))
            k = rounded(k - rounded(c * Fraction(float(s_row[start // block]))))
        codes, zeros = [q + sums.offset for q in codes], [z + sums.offset for z in zeros]
        v[0] = f(f(k) * zeros[0])
    width = min(block, group)
    for start in range(0, size, width):
        m = Fraction(float(s_row[start // block]))
        m = f(m * scales[start // group]) if product.scales == "inside" else m
        z = 0 if sums is not None else zeros[start // group]
        for i in range(lanes.count):
            inside = [k for k in range(start, start + width) if k // lanes.run % lanes.count == i]
            if not inside:
                continue
            acc = rounded(Fraction(sum((codes[k] - z) * int(row[k]) for k in inside)))
            v[i] = f(v[i] + acc * m) if product.fma else f(v[i] + f(acc * m))
    while len(v) > 1:
        half = len(v) // 2
        sides = (v[:half], v[half:]) if lanes.order == "halves" else (v[::2], v[1::2])
        v = [f(a + b) for a, b in zip(*sides, strict=True)]
    if product.fused_bias and bias is not None:
        return float(f(v[0] * scales[0] + f(Fraction(float(bias)))))
    y = f(v[0] * scales[0]) if product.scales == "after" else v[0]
    return float(y if bias is None else f(y + f(Fraction(float(bias)))))


def emulated(
    product: DynamicProduct, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, block: int,
    scheme: Scheme | None = None,
):  # fmt: skip
    """The emulation of one linear layer, and the weight's codes and scales; `scheme` is the input's, if not the kernel's."""
    blocks = Scheme(Int(4), Scale(PerBlock(-1, block), format=BFLOAT16, divisor="half_range"))
    formats = (("input", (FLOAT32,)), ("weight", (Int(4),)), ("output", (FLOAT32,)))
    fixed = Algorithm(MinMax(), Fixed())
    target = Target(
        name="chip", rules=(Rule(Op("linear"), input=scheme or product.input, weight=blocks),), source=("none",),
        kernels=(Kernel(Op("linear"), product, formats=formats),), weight=fixed, activation=fixed,
    )  # fmt: skip
    model = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    model.weight.data = weight
    if bias is not None:
        model.bias.data = bias
    calibrated = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(model))
    module = next(q.module for q in quantizer_nodes(calibrated) if q.module.site.slot == "weight")
    codes, qparams = module.export(weight)
    with torch.no_grad():
        return qfunc.emulate(target)(calibrated)(x), codes.numpy(), qparams.scale.numpy()


@pytest.mark.thorough
@settings(max_examples=40, deadline=None)
@given(st.sampled_from(PRODUCTS), st.integers(0, 2**16), st.sampled_from((4, 8, 16)), st.integers(1, 3), st.booleans())
def test_it_is_the_equation(product, seed, block, blocks, biased):
    generator = torch.Generator().manual_seed(seed)
    size, outputs = 16 * blocks, 3
    x = torch.randn(2, size, generator=generator) * 2.0 ** torch.randint(-3, 4, (2, 1), generator=generator)
    x = x + torch.randint(-2, 3, (2, 1), generator=generator)
    x[1, : size // 2] = 0.0
    spread = 2.0 ** torch.randint(-9, 9, (outputs, size // block), generator=generator)
    weight = torch.randn(outputs, size, generator=generator) * spread.repeat_interleave(block, 1)
    bias = torch.randn(outputs, generator=generator) if biased else None
    found, codes, scale = emulated(product, x, weight, bias, block)
    wanted = [reference(product, row.numpy(), codes, scale, None if bias is None else bias.numpy()) for row in x]
    assert torch.equal(found, torch.tensor(wanted)), (found - torch.tensor(wanted)).abs().max()


@pytest.mark.parametrize("scale", [2.0**-126, 2.0**-120, 2.0**-117, 2.0**100, 1e38])
@pytest.mark.parametrize("product", PRODUCTS[:5], ids=["weights", "no fma", "pairs", "last", "both"])
def test_subnormal_and_huge_inputs(product, scale):
    generator = torch.Generator().manual_seed(3)
    x, weight = torch.randn(2, 16, generator=generator), torch.randn(3, 16, generator=generator)
    x = x / x.abs().max() * scale
    found, codes, s_w = emulated(product, x, weight, None, 8)
    if bool(found.isfinite().all()) and float(1 / torch.tensor(255.0 / (2 * scale))) > 0:
        assert found.tolist() == [reference(product, row.numpy(), codes, s_w, None) for row in x]


def test_sums_of_the_weight_are_added_run_by_run():
    weight, scale = torch.tensor([[4.0, 0.0, 1.0, 1.0]]), torch.tensor([[2.0**22, 1.0]])
    assert weight_sums(weight, scale, 1).item() == -(2.0**24)  # 2^24 + 1 is no float32
    assert weight_sums(weight, scale, 2).item() == -(2.0**24) - 2


def test_a_row_of_zeros_has_the_highest_zero_point():
    generator = torch.Generator().manual_seed(3)
    x, weight = torch.zeros(1, 16), torch.randn(3, 16, generator=generator) * 2.0 ** torch.arange(16)
    found, codes, scale = emulated(PRODUCTS[0], x, weight, None, 4)
    assert found.tolist() == [reference(PRODUCTS[0], x[0].numpy(), codes, scale, None)]
    assert found.any()  # v_0 and the blocks round apart
    assert not emulated(PRODUCTS[1], x, weight, None, 4)[0].any()


def test_a_span_beyond_float32_has_the_lower_bound():
    x, weight = torch.tensor([[3e38, -3e38, 1.0, 0.0]]), torch.eye(4)[:2]
    assert emulated(PRODUCTS[0], x, weight, None, 4)[0].tolist() == [[-torch.inf, -torch.inf]]
    assert emulated(PRODUCTS[1], x, weight, None, 4)[0].isnan().all()


def test_a_kernel_takes_the_scheme_that_it_computes():
    rounding = evolve(PRODUCTS[0].input, rounding="floor")
    x, weight = torch.randn(2, 16), torch.randn(3, 16)
    with pytest.raises(SpecError, match="with a dynamic scale PerToken"):
        emulated(PRODUCTS[0], x, weight, None, 8, scheme=rounding)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input": Scheme()}, "DynamicProduct.input: found Scheme(), wanted integers with dynamic scales"),
        ({"input": evolve(TOKEN, division=True)}, "wanted no division"),
        ({"input": evolve(TOKEN, scale=Scale(PerToken(), dynamic=True, format=E8M0))}, "of 16 or 32 bits"),
        ({"input": Q8_0}, "wanted scales of tokens, because the blocks of a sum have several scales"),
        ({"scales": "inside", "zero_point": WeightSums(16)}, 'wanted None with scales="inside"'),
        ({"multiplier": "none"}, "wanted one of 'first', 'last', 'both'"),
    ],
)  # fmt: skip
def test_what_no_kernel_computes_is_refused(change, message):
    with pytest.raises(SpecError) as error:
        DynamicProduct(**{"input": TOKEN, **change})
    assert message in str(error.value)


def test_lanes_are_a_power_of_two():
    with pytest.raises(SpecError, match="a power of two"):
        Lanes(3)
