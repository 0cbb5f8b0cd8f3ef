"""Compensation: the value of the inner function at x + d, for every granularity; scaling; what it refuses."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qfunc.errors import SpecError
from qfunc.functions import AdaRound, Compensation, Lsq
from qfunc.numerics.affine import dequantize, spread
from qfunc.numerics.qparams import of_tensor
from qfunc.specs import Int, PerBlock, PerChannel, PerTensor, Scale, Scheme, ZeroPoint

GRANULARITIES = (PerTensor(), PerChannel(0), PerBlock(1, 4), PerBlock(0, 3))


@given(st.integers(0, 10**6), st.sampled_from(GRANULARITIES), st.sampled_from([2, 4]), st.booleans())
@settings(max_examples=60, deadline=None)
def test_it_stores_any_codes(seed: int, shared: object, bits: int, affine: bool) -> None:
    """With d = v - x for values v of the format, x_hat = v: what gptq stores."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(6, 8, generator=generator)
    scheme = Scheme(Int(bits, signed=not affine), Scale(shared), ZeroPoint() if affine else None)  # type: ignore[arg-type]
    qparams, function = of_tensor(x, scheme), Compensation()
    codes = torch.randint(scheme.format.qmin, scheme.format.qmax + 1, (6, 8), generator=generator).float()  # type: ignore[union-attr]
    value = dequantize(codes, qparams, scheme)
    params = function.init(qparams, x, scheme)._replace(shift=value - x)
    assert torch.equal(function.export(params, x, scheme)[0], codes)
    assert torch.equal(function.apply(params, x, scheme), value)


@pytest.mark.parametrize("shared", GRANULARITIES)
def test_scaled_parameters_scale_the_values(shared: object) -> None:
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    scheme, function = Scheme(Int(4), Scale(shared)), Compensation()  # type: ignore[arg-type]
    params = function.init(of_tensor(x, scheme), x, scheme)
    params = params._replace(shift=x.flip(0) / 3)
    factor = torch.full_like(params.inner.scale, 2.0).cumsum(0).log2().floor().exp2()  # powers of two: exact
    scaled = function.scaled(params, factor)
    assert scaled is not None
    each = spread(factor, x, scheme)
    assert torch.equal(function.apply(scaled, x * each, scheme), each * function.apply(params, x, scheme))


def test_halves_keep_their_dtype_and_inner_functions_train() -> None:
    x, scheme = torch.tensor([0.3, 0.7], dtype=torch.bfloat16), Scheme(Int(4))
    function = Compensation(Lsq())
    params = function.init(of_tensor(x, scheme), x, scheme)
    assert function.apply(params, x, scheme).dtype == torch.bfloat16
    assert function.learned(scheme) == ("inner_scale",)


def test_what_it_refuses() -> None:
    with pytest.raises(SpecError) as e:
        Compensation(AdaRound())
    assert "wanted a function that trains with `apply`, without a `relax`" in str(e.value)
    with pytest.raises(SpecError) as e:
        AdaRound(Compensation())
    assert str(e.value) == (
        "AdaRound.inner: found Compensation(inner=Fixed()), wanted a function that quantizes x itself. "
        "Use Fixed() or Lsq() inside."
    )
    with pytest.raises(SpecError) as e:
        Compensation().init(of_tensor(torch.ones(()), Scheme()), torch.ones(()), Scheme())
    assert str(e.value) == (
        "Compensation: found a tensor of shape (), wanted a weight, whose elements can be shifted. Use Compensation for "
        "weights, another function for activations."
    )
