"""Codebooks against exact rationals."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qfunc.numerics import dequantize, fake_quantize, quantize
from qfunc.numerics.codebook import index, values
from qfunc.numerics.qparams import Affine, of_tensor, spread
from qfunc.specs import Levels, PerBlock, PerChannel, PerTensor, PerToken, Scale, Scheme

NF4 = Levels((
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
))  # fmt: skip
"""QLoRA's 4-bit NormalFloat, arXiv:2305.14314, appendix E."""


def nearest_level(x: float, levels: list[float]) -> int:
    """argmin |x - v|, exact; of two equally near levels the one of even index."""
    distances = [(abs(Fraction(x) - Fraction(v)), i % 2, i) for i, v in enumerate(levels)]
    return min(distances)[2]


def around(levels: list[float], dtype: type) -> list[float]:
    """Levels, the dtype's numbers at and on both sides of every middle, and beyond the ends."""
    middles = [dtype((Fraction(a) + Fraction(b)) / 2) for a, b in itertools.pairwise(levels)]
    near = [float(np.nextafter(m, dtype(s))) for m in middles for s in (-math.inf, m, math.inf)]
    return [*near, *levels, levels[0] - 1, levels[-1] + 1, 0.0, -0.0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@given(levels=st.lists(st.floats(-100, 100, width=32), min_size=2, max_size=9, unique=True))
def test_the_nearest_level_is_found_and_ties_are_even(dtype: type, levels: list[float]) -> None:
    """On middles, one number beside them, and beyond: the rational argmin."""
    levels = sorted({v + 0.0 for v in levels})
    if len(levels) < 2:
        return
    x = around(levels, dtype)

    found = index(torch.tensor(np.array(x, dtype)), Levels(tuple(levels)))

    assert found.tolist() == [nearest_level(v, levels) for v in x]


@pytest.mark.parametrize("levels", [(1.0, 1.0 + 2.0**-23, 2.0), (2.0**-60, 1.0, 2.0), (-(2.0**-149), 0.0, 2.0**-149)])
def test_middles_that_the_dtype_cannot_hold(levels: tuple[float, ...]) -> None:
    """Neighbouring float32, a middle of 1/2 + 2^-61, subnormals."""
    x = [float(np.nextafter(np.float32(v), np.float32(s))) for v in (*levels, 0.5, 1.5) for s in (-9, v, 9)]

    found = index(torch.tensor(x), Levels(levels))

    assert found.tolist() == [nearest_level(v, list(levels)) for v in x]


def test_nan_stays_and_infinities_take_the_ends() -> None:
    """Also through the values; an empty tensor stays empty."""
    x = torch.tensor([math.nan, math.inf, -math.inf])

    codes = index(x, NF4)

    assert codes[0].isnan()
    assert codes[1:].tolist() == [15.0, 0.0]
    assert values(codes, NF4)[0].isnan()
    assert values(codes, NF4)[1:].tolist() == [1.0, -1.0]
    assert index(torch.zeros(0, 3), NF4).shape == (0, 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shared", [PerTensor(), PerChannel(1), PerToken(), PerBlock(2, 4), PerBlock(0, 3)])
def test_a_codebook_serves_every_granularity(shared: PerTensor, dtype: torch.dtype) -> None:
    """NF4 with absmax scales: each element is the nearest level times its scale, by a loop."""
    x = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(1)).to(dtype)
    scheme = Scheme(NF4, Scale(shared))
    qparams = of_tensor(x, scheme)
    scale = spread(qparams.scale, x, scheme).expand(x.shape).flatten().tolist()

    codes = quantize(x, qparams, scheme).flatten()

    wide = x.double().flatten() if dtype == torch.float64 else x.float().flatten()
    levels = NF4.values if dtype == torch.float64 else [float(np.float32(v)) for v in NF4.values]
    ratio = wide / torch.tensor(scale, dtype=wide.dtype)
    assert codes.tolist() == [nearest_level(v, list(levels)) for v in ratio.tolist()]
    again = fake_quantize(x, qparams, scheme)
    assert again.dtype == dtype
    shaped = codes.reshape(x.shape)
    assert torch.equal(again, dequantize(shaped, qparams, scheme).to(dtype))


def test_rounding_is_idempotent_and_exact_on_levels() -> None:
    """A level is its own nearest, whatever the spacing."""
    levels = torch.tensor(NF4.values)

    assert index(levels, NF4).tolist() == list(range(16))
    assert torch.equal(values(index(levels, NF4), NF4), levels)


def test_it_compiles_whole_and_maps() -> None:
    """torch.compile without graph breaks; vmap over scales."""
    x, scales = torch.tensor(around(list(NF4.values), np.float32)), torch.tensor([0.5, 1.0, 3.0])
    scheme = Scheme(NF4)

    def run(scale: torch.Tensor) -> torch.Tensor:
        return quantize(x, Affine(scale, torch.zeros_like(scale)), scheme)

    torch.compiler.reset()
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(scales[0]), run(scales[0]))
    assert torch.equal(torch.func.vmap(run)(scales), torch.stack([run(s) for s in scales]))
