"""Stochastic rounding: its mean is x, exactly; its values, gradients and deployed codes."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from math import sqrt
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from qfunc.errors import SpecError
from qfunc.functions import AdaRound, Fixed, Stochastic
from qfunc.numerics import Affine, fake_quantize
from qfunc.numerics.noise import uniform
from qfunc.specs import Float, Int, Levels, Log, PerBlock, PerChannel, Scale, Scheme, ZeroPoint
from qfunc.specs.formats import E4M3FN
from qfunc.testing import oracle, strategies

LAST = 1 - 2.0**-24  # the largest noise
GRID = torch.arange(256) / 256
S4, U4 = Scheme(Int(4)), Scheme(Int(4, signed=False), zero_point=ZeroPoint())
HALF = Affine(torch.tensor(0.5), torch.tensor(0.0))


def averaged(scheme: Scheme, params: Affine, x: Tensor) -> Tensor:
    # The mean of relax over noise 0, 1/256, ..., 255/256, in float64.
    values = [Stochastic().relax(params, x, scheme, torch.full_like(x, float(u))).double() for u in GRID]
    return torch.stack(values).mean(0)


@pytest.mark.parametrize(("scheme", "zero"), [(S4, 0.0), (U4, 6.0), (Scheme(Int(4), division=False), 0.0)])
def test_the_mean_over_noise_is_x(scheme: Scheme, zero: float) -> None:
    """Exactly: x/s has 8 binary digits behind the point and the noise takes each of 256 values once."""
    params = Affine(torch.tensor(0.5), torch.tensor(zero))
    fmt = scheme.format
    assert isinstance(fmt, Int)
    low, high = (fmt.qmin - zero) / 2, (fmt.qmax - zero) / 2
    x = torch.arange(low - 1, high + 1, 2.0**-9)

    assert torch.equal(averaged(scheme, params, x), x.double().clamp(low, high))


@pytest.mark.parametrize("fmt", [E4M3FN, Float(2, 1, max=6.0), Float(3, 2, max=28.0)])
def test_the_mean_of_small_floats_is_x(fmt: Float) -> None:
    """Between the neighbours of a float, in every binade and in the subnormals."""
    smallest = 2.0 ** (2 - (1 << fmt.exponent - 1) - fmt.mantissa)
    x = torch.cat([torch.arange(-512, 513) * smallest / 256, torch.arange(-512.0, 513) * 2.0**-8])

    assert torch.equal(averaged(Scheme(fmt), Affine(torch.tensor(1.0), torch.tensor(0.0)), x), x.double())


@given(st.data())
def test_codes_are_floors_of_exact_sums(data: st.DataObject) -> None:
    """clamp(floor(x/s + u) + z) in rational arithmetic, where x/s and its fraction are exact floats."""
    scheme = data.draw(strategies.schemes(max_bits=8, division=True))
    params = data.draw(strategies.qparams(scheme=scheme, tiny=False, huge=False))
    params = params._replace(scale=torch.exp2(torch.floor(torch.log2(params.scale))))
    x = data.draw(st.integers(-(2**20), 2**20)) * 2.0**-12 * float(params.scale)
    u = data.draw(st.sampled_from((0.0, LAST, 0.5, 2.0**-24)) | st.integers(0, 2**24 - 1).map(lambda k: k / 2**24))
    found = Stochastic().relax(params, torch.tensor(x), scheme, torch.tensor(u))

    fmt, z = scheme.format, int(params.zero_point)
    assert isinstance(fmt, Int)
    code = oracle.clamp(math.floor(Fraction(x) / Fraction(float(params.scale)) + Fraction(u)) + z, fmt.qmin, fmt.qmax)
    assert float(found) == (code - z) * float(params.scale)


@pytest.mark.parametrize("u", [0.0, 0.5, LAST])
def test_values_of_the_grid_stay(u: float) -> None:
    """Also where x/s + u would round up to the next integer in float32."""
    x = torch.arange(-128.0, 128.0) * 0.37
    params = Affine(torch.tensor(0.37), torch.tensor(0.0))
    on_grid = fake_quantize(x, params, Scheme())
    ratio = on_grid / params.scale  # within an ulp of an integer; exactly one almost everywhere
    exact = ratio == ratio.round()
    found = Stochastic().relax(params, on_grid, Scheme(), torch.full_like(x, u))

    assert exact.float().mean() > 0.8
    assert torch.equal(found[exact], on_grid[exact])


@pytest.mark.parametrize("shared", [PerChannel(0), PerBlock(-1, 4)])
def test_noise_from_the_generator_gives_the_mean(shared: Any) -> None:
    """10,000 draws of each element: within 5 standard deviations, at most s/2 / 100 each."""
    scheme = Scheme(Int(4), Scale(shared), ZeroPoint())
    scale = torch.tensor([0.25, 0.5, 1.0]).reshape(3, 1) if isinstance(shared, PerChannel) else torch.full((3, 2), 0.5)
    params = Affine(scale, torch.ones_like(scale))
    x = torch.linspace(-1.5, 1.5, 24).reshape(3, 8)
    noise = uniform((10_000, 3, 8), torch.tensor(3), torch.tensor(0))
    found = torch.func.vmap(lambda u: Stochastic().relax(params, x, scheme, u))(noise).double().mean(0)

    spread = scale if isinstance(shared, PerChannel) else scale.repeat_interleave(4, 1)
    assert ((found - x).abs() <= 5 * spread / 2 / sqrt(10_000)).all()


def test_deployed_values_and_all_gradients_are_those_of_the_inner_function() -> None:
    """apply and export are Fixed's; relax has Fixed's gradient whatever the noise."""
    x = torch.linspace(-6, 6, 301).requires_grad_()
    function, upstream, noise = Stochastic(), torch.arange(301.0), torch.rand(301)
    params = function.init(HALF, x, S4)
    fixed = Fixed().apply(HALF, x, S4)
    (wanted,) = torch.autograd.grad(fixed, x, upstream)

    assert params is HALF
    assert torch.equal(function.apply(params, x, S4), fixed)
    assert torch.equal(function.export(params, x, S4)[0], Fixed().export(HALF, x, S4)[0])
    for value in (function.apply(params, x, S4), function.relax(params, x, S4, noise)):
        assert torch.equal(torch.autograd.grad(value, x, upstream)[0], wanted)


def test_not_numbers_and_infinities() -> None:
    """NaN stays, infinities saturate."""
    x = torch.tensor([torch.nan, torch.inf, -torch.inf])
    assert Stochastic().relax(HALF, x, S4, torch.full((3,), 0.3)).nan_to_num(99).tolist() == [99.0, 3.5, -4.0]


FORMATS = [Log(), Levels((-1.0, 0.0, 1.0))]


@pytest.mark.parametrize("fmt", FORMATS)
def test_formats_without_neighbours_are_refused(fmt: Log | Levels) -> None:
    """Their values are no grid."""
    wanted = f"Stochastic: found {fmt!r}, wanted an Int or a Float format. Use Fixed() for this format."
    with pytest.raises(SpecError, match=f"^{re.escape(wanted)}$"):
        Stochastic().init(HALF, torch.ones(3), Scheme(fmt))


def test_a_surrogate_inside_is_refused() -> None:
    """Two surrogates have no common meaning."""
    wanted = (
        "Stochastic.inner: found AdaRound(inner=Fixed(), zeta=1.1, gamma=-0.1), wanted a function that trains with "
        "`apply`, without a `relax`. Wrap its inner function instead."
    )
    with pytest.raises(SpecError, match=f"^{re.escape(wanted)}$"):
        Stochastic(AdaRound())
