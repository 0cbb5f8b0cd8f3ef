"""Affine quantization against the rational oracle, and its laws."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from qfunc.numerics import Affine, dequantize, fake_quantize, quantize
from qfunc.specs import Int, PerTensor, Scale, Scheme, ZeroPoint
from qfunc.testing import oracle, strategies

S4 = Scheme(Int(4))
AFFINE = Scheme(Int(8, signed=False), zero_point=ZeroPoint())


def near_ties(data: st.DataObject, scheme: Scheme, qparams: Affine, infinities: bool = False) -> Tensor:
    one = strategies.values_near_ties(scheme=scheme, qparams=qparams, infinities=infinities)
    return torch.tensor(data.draw(st.lists(one, min_size=1, max_size=12)))


def exact_code(x: float, qparams: Affine, scheme: Scheme) -> int:
    fmt = scheme.format
    assert isinstance(fmt, Int)
    return oracle.quantize(x, qparams.scale.item(), int(qparams.zero_point), fmt.qmin, fmt.qmax, scheme.rounding)


@pytest.mark.thorough
@settings(max_examples=400)
@given(st.data())
def test_codes_equal_the_exact_ones_or_the_float32_quotient_met_a_jump(data: st.DataObject) -> None:
    """Equal, or off by one and the exact quotient within one float32 ulp of a place where R jumps.

    One ulp: the division rounds once (half an ulp); on the index, the subtraction of its origin once more.
    A multiplication by the float32 reciprocal has two roundings of half an ulp each, and a reciprocal's
    relative error can cost a second ulp across a binade: two are allowed there.
    """
    scheme = data.draw(strategies.schemes(max_bits=10))
    fmt, qparams = scheme.format, data.draw(strategies.qparams(scheme=scheme))
    assert isinstance(fmt, Int)
    x = near_ties(data, scheme, qparams)
    for value, code in zip(x.tolist(), quantize(x, qparams, scheme).tolist(), strict=True):
        expected = exact_code(value, qparams, scheme)
        if code != expected:
            quotient = Fraction(value) / Fraction(qparams.scale.item())
            origin = 0 if not scheme.rounding.endswith("_on_index") else fmt.qmin - int(qparams.zero_point)
            reach = max(oracle.ulp32(quotient), oracle.ulp32(quotient - origin)) * (1 if scheme.division else 2)
            assert abs(code - expected) == 1
            assert oracle.step_distance(quotient, scheme.rounding) <= reach


@given(st.data())
def test_codes_are_exact_where_the_division_is(data: st.DataObject) -> None:
    """With a power of two as scale the quotient is exact, and so is every code.

    Not on the level index, whose origin is subtracted in float32: 0.49999997 + 3 is a tie there.
    """
    modes = [m for m in oracle.MODES if not m.endswith("_on_index")]
    scheme = data.draw(strategies.schemes(max_bits=12, roundings=modes))
    fmt, scale = scheme.format, 2.0 ** data.draw(st.integers(-20, 20))
    assert isinstance(fmt, Int)
    zero = 0 if scheme.symmetric else data.draw(strategies.zero_points(low=fmt.qmin, high=fmt.qmax))
    qparams = Affine(torch.tensor(scale), torch.tensor(float(zero)))
    x = near_ties(data, scheme, qparams)
    x = torch.where(x.abs() < 2.0**-100, 0.0, x)  # below 2^-126 a quotient loses bits

    assert quantize(x, qparams, scheme).tolist() == [exact_code(v, qparams, scheme) for v in x.tolist()]


@pytest.mark.parametrize("zero", [0, 1, 7])
@pytest.mark.parametrize("rounding", oracle.MODES)
def test_every_tie_goes_the_right_way(rounding: str, zero: int) -> None:
    """All ties of all codes, even and odd zero points: the level index counts from the lowest code."""
    scheme, qparams = (
        Scheme(Int(4), zero_point=ZeroPoint(), rounding=rounding),
        Affine(torch.tensor(0.25), torch.tensor(float(zero))),
    )
    x = (torch.arange(-20, 20) + 0.5) / 4

    assert quantize(x, qparams, scheme).tolist() == [exact_code(v, qparams, scheme) for v in x.tolist()]


@given(st.data())
def test_dequantize_is_the_exact_product_rounded_once(data: st.DataObject) -> None:
    """(q - z) * s: the difference of codes is exact in float32, the product rounds once."""
    scheme = data.draw(strategies.schemes(max_bits=12))
    fmt, qparams = scheme.format, data.draw(strategies.qparams(scheme=scheme))
    assert isinstance(fmt, Int)
    codes = [fmt.qmin, fmt.qmax, data.draw(st.integers(fmt.qmin, fmt.qmax))]

    found = dequantize(torch.tensor(codes, dtype=torch.float32), qparams, scheme)

    exact = [oracle.dequantize(q, qparams.scale.item(), int(qparams.zero_point)) for q in codes]
    assert [Fraction(v) for v in found.tolist()] == [oracle.float32(v) for v in exact]


@given(st.data())
def test_range_idempotence_monotony_and_zero(data: st.DataObject) -> None:
    """Codes stay in range; quantizing twice changes nothing; order is kept; 0 is held exactly.

    Idempotence needs (q - z) * s / s to round to q - z: true of nearest modes, where an error of one ulp is
    far from a tie, not of floor and trunc, which an ulp below an integer sends one code down.
    """
    scheme = data.draw(strategies.schemes(max_bits=8))
    fmt, qparams = scheme.format, data.draw(strategies.qparams(scheme=scheme))
    assert isinstance(fmt, Int)
    x = near_ties(data, scheme, qparams, infinities=True).sort().values
    codes = quantize(x, qparams, scheme)

    assert ((codes >= fmt.qmin) & (codes <= fmt.qmax) & (codes == codes.round())).all()
    assert (codes.diff() >= 0).all()
    if scheme.rounding not in ("floor", "trunc"):
        assert torch.equal(quantize(dequantize(codes, qparams, scheme), qparams, scheme), codes)
    if fmt.qmin <= int(qparams.zero_point) <= fmt.qmax:
        assert fake_quantize(torch.zeros(1), qparams, scheme).item() == 0.0


@pytest.mark.parametrize("rounding", oracle.MODES)
def test_nan_stays_and_infinities_saturate(rounding: str) -> None:
    """Infinities become the extreme codes in every rounding mode; NaN is never turned into a code."""
    scheme = Scheme(Int(8, signed=False), zero_point=ZeroPoint(), rounding=rounding)
    codes = quantize(
        torch.tensor([float("nan"), float("inf"), -float("inf")]), Affine(torch.tensor(0.3), torch.tensor(7.0)), scheme
    )

    assert codes[0].isnan()
    assert codes[1:].tolist() == [255.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_narrow_dtypes_are_computed_wide_and_returned_narrow(dtype: torch.dtype) -> None:
    """Codes of a bfloat16 tensor equal those of its float32 copy; fake_quantize keeps the dtype; float64 stays float64."""
    x = torch.linspace(-3, 3, 97).to(dtype)
    qparams = Affine(torch.tensor(0.0123), torch.tensor(131.0))

    codes, held = quantize(x, qparams, AFFINE), fake_quantize(x, qparams, AFFINE)

    assert codes.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert torch.equal(codes, quantize(x.to(codes.dtype), qparams, AFFINE))
    assert held.dtype == dtype
    assert torch.equal(held, dequantize(codes, qparams, AFFINE).to(dtype))
    assert fake_quantize(x.requires_grad_(), qparams, AFFINE).dtype == dtype


def test_32_bit_codes_are_exact() -> None:
    """Codes beyond 2^24 are computed in float64: the int32 bias keeps its last bit."""
    scheme = Scheme(Int(32))
    x = torch.tensor([2.0**30 + 2.0**7, -(2.0**31)])

    codes = quantize(x, Affine(torch.tensor(1.5), torch.tensor(0.0)), scheme)

    assert codes.tolist() == [oracle.quantize(v, 1.5, 0, -(2**31), 2**31 - 1) for v in x.tolist()]
    assert codes.dtype == torch.float64


@pytest.mark.parametrize("shape", [(0,), (2, 0, 3), ()])
def test_empty_and_scalar_tensors_keep_their_shape(shape: tuple[int, ...]) -> None:
    """No elements, no trouble."""
    x = torch.ones(shape)
    scheme = Scheme(Int(4), Scale(PerTensor()))

    assert quantize(x, Affine(torch.tensor(0.5), torch.tensor(0.0)), scheme).shape == shape
    assert fake_quantize(x.requires_grad_(), Affine(torch.tensor(0.5), torch.tensor(0.0)), scheme).shape == shape
