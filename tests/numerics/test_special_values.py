"""Fake quantization of every dtype, and of values that are no ordinary numbers, against exact rationals."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from qfunc import estimators
from qfunc.numerics import Affine, fake_quantize, quantize
from qfunc.specs import Int, Scheme, ZeroPoint
from qfunc.testing import oracle

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
SCHEMES = [
    Scheme(Int(4)),
    Scheme(Int(8, signed=False), zero_point=ZeroPoint()),
    Scheme(Int(4), zero_point=ZeroPoint(added="before")),
    Scheme(Int(8), division=False),
]
SCALE = 0.25  # a power of two: every quotient is exact, so that one oracle serves all dtypes


def qparams_for(scheme: Scheme) -> Affine:
    return Affine(torch.tensor(SCALE), torch.tensor(0.0 if scheme.symmetric else 3.0))


def expected(x: float, scheme: Scheme) -> tuple[float, float]:
    """(x_hat, its slope) by the definition."""
    fmt, zero = scheme.format, 0 if scheme.symmetric else 3
    assert isinstance(fmt, Int)
    if math.isnan(x):
        return x, 0.0
    if math.isinf(x):
        return float(oracle.dequantize(fmt.qmax if x > 0 else fmt.qmin, SCALE, zero)), 0.0
    before = scheme.zero_point is not None and scheme.zero_point.added == "before"
    unclamped = oracle.rounded(Fraction(x) / Fraction(SCALE) + zero * before, "half_even") + zero * (not before)
    code = oracle.clamp(unclamped, fmt.qmin, fmt.qmax)
    return float(oracle.dequantize(code, SCALE, zero)), float(code == unclamped)


@pytest.mark.parametrize("scheme", SCHEMES, ids=["symmetric", "affine", "added before", "reciprocal"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_special_values_and_their_gradients(dtype: torch.dtype, scheme: Scheme) -> None:
    """NaN stays and infinities saturate, both with gradient 0; huge values saturate; denormals round to 0."""
    info = torch.finfo(dtype)
    special = [math.nan, math.inf, -math.inf, info.max, -info.max, info.tiny, info.tiny / 2, -info.tiny / 2, 0.0, -0.0]
    x = torch.tensor([*special, 0.375, -0.625, 1.0, 100.0], dtype=torch.float64).to(dtype).requires_grad_()
    assert 0 < x[6] < info.tiny  # denormal

    value = fake_quantize(x, qparams_for(scheme), scheme)
    (slope,) = torch.autograd.grad(value.sum(), x)

    wanted = [expected(v, scheme) for v in x.tolist()]
    assert value.dtype == slope.dtype == dtype
    assert torch.equal(value.nan_to_num(99.0), torch.tensor([v for v, _ in wanted], dtype=dtype).nan_to_num(99.0))
    assert slope.tolist() == [s for _, s in wanted]
    with torch.no_grad():
        assert torch.equal(fake_quantize(x, qparams_for(scheme), scheme).nan_to_num(99.0), value.nan_to_num(99.0))


@pytest.mark.parametrize("shape", [(), (1,), (0,), (2, 0, 3), (5,)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_shapes_without_variety(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Scalar, single, empty and constant tensors: shape and dtype stay, each element is 0.75 held exactly."""
    x = torch.full(shape, 0.8, dtype=dtype).requires_grad_()
    value = fake_quantize(x, qparams_for(SCHEMES[1]), SCHEMES[1])
    value.sum().backward()

    assert value.shape == shape
    assert value.dtype == dtype
    assert x.grad is not None
    assert torch.equal(value.detach(), torch.full(shape, 0.75, dtype=dtype))
    assert torch.equal(x.grad, torch.ones(shape, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bit_floats_are_computed_in_float32(dtype: torch.dtype) -> None:
    """Each code is that of the float32 quotient, where bfloat16's own quotient would be one of 256 a binade."""
    scheme, scale = Scheme(Int(12)), 0.0123
    s = float(torch.tensor(scale))
    x = torch.linspace(-9, 9, 201).to(dtype)

    def code(v: float) -> int:
        return oracle.rounded(oracle.float32(Fraction(v) / Fraction(s)), "half_even")

    found: Tensor = quantize(x, Affine(torch.tensor(scale), torch.tensor(0.0)), scheme)

    assert found.dtype == torch.float32
    assert found.tolist() == [code(v) for v in x.tolist()]
    own = (x / torch.tensor(scale, dtype=dtype)).round()
    assert not torch.equal(own.float(), found)


def test_float64_is_computed_in_float64_with_float32_qparams() -> None:
    """A tie that float32 cannot tell from its neighbours: (n + 1/2) s and 2^-40 beside it."""
    s = float(torch.tensor(0.3))
    x = torch.tensor([(n + 0.5) * s * (1 + e) for n in range(6) for e in (-(2.0**-40), 2.0**-40)], dtype=torch.float64)

    found = quantize(x, Affine(torch.tensor(0.3), torch.tensor(0.0)), Scheme(Int(4)))

    assert found.dtype == torch.float64
    assert found.tolist() == [oracle.rounded(Fraction(v) / Fraction(s), "half_even") for v in x.tolist()]
    assert len(set(x.float().tolist())) < len(x)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", estimators.__all__)
def test_an_estimator_never_hides_what_is_not_finite(name: str, bad: float) -> None:
    """Of the signed symmetric scheme the scale is no number, whatever was seen before and after."""
    estimator, scheme = getattr(estimators, name)(), Scheme()
    state = estimator.init(scheme, torch.empty(5))
    for x in ([0.5, -1.0, 2.0, 0.0, 1.5], [0.5, bad, 0.25, 1.0, -2.0], [1.0, -1.0, 0.5, 0.5, 3.0]):
        state = estimator.update(state, torch.tensor(x), scheme)
    assert not estimator.finalize(state, scheme).scale.isfinite()
