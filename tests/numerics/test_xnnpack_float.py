"""XNNPACK's ops of real tensors: curves within a few units of their values, and sums in their order, in exact rationals."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor

from qfunc.targets.executorch import elementary as curves
from qfunc.targets.executorch import logistic as logistics
from qfunc.targets.executorch import rows

UNIT = 2.0**-23


def nearest(x: Fraction) -> Fraction:
    """The float32 nearest to a number of float32's normal range, ties to even."""
    if x == 0:
        return x
    exponent = math.frexp(float(abs(x)))[1]
    step = Fraction(2) ** (exponent - 24)
    return round(x / step) * step


@pytest.mark.parametrize(
    ("form", "wanted", "low", "high", "units"),
    [
        # The quotient of two polynomials of Horner's form: each step rounds by half a unit, and x log2(e) by |x| 2^-24.
        (curves.exp, torch.exp, -1.0, 1.0, 4),
        (curves.exp, torch.exp, -87.0, 88.0, 70),
        (curves.log, torch.log, 2.0, 1e30, 4),
        (curves.sqrt, torch.sqrt, 1e-30, 1e30, 1),
        (curves.rsqrt, torch.rsqrt, 1e-30, 1e30, 1.5),
        (curves.sin, torch.sin, -1.5, 1.5, 4),
        (curves.tanh, torch.tanh, -9.0, 9.0, 4),
        (logistics.sigmoid, torch.sigmoid, -1.0, 90.0, 4),
        (logistics.sigmoid_of_degree_five, torch.sigmoid, -1.0, 80.0, 4),
        (logistics.silu, torch.nn.functional.silu, -1.0, 90.0, 4),
        (curves.gelu, torch.nn.functional.gelu, 0.0, 9.0, 4),
    ],
)
def test_a_curve_is_near_its_value(
    form: Callable[[Tensor], Tensor], wanted: Callable[[Tensor], Tensor], low: float, high: float, units: float
) -> None:
    x = torch.linspace(low, high, 20_001) if low <= 0 else torch.logspace(math.log10(low), math.log10(high), 20_001)
    exact = wanted(x.double())
    assert float(((form(x) - exact).abs() / (exact.abs() + 2.0**-126)).max()) <= units * UNIT


def test_angles_are_within_three_units_of_one() -> None:
    x = torch.arange(8192.0)
    for form, wanted in ((curves.sin, torch.sin), (curves.cos, torch.cos)):
        # Both parts of 2 pi lack 1e-10 of it, a unit of 1304 turns; two more are those of the curve and of pi / 2.
        assert float((form(x) - wanted(x.double())).abs().max()) <= 3 * UNIT


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-40])
def test_roots_of_nothing(value: float) -> None:
    assert curves.sqrt(torch.tensor(value)) == 0
    assert curves.rsqrt(torch.tensor(value)) == torch.inf


def test_a_mean_is_a_sum_in_order_times_a_reciprocal() -> None:
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(60, 77)).astype(np.float32))
    found = rows.mean(x, -1)
    for row, value in zip(x.tolist(), found.tolist(), strict=True):
        total = Fraction(0)
        for entry in row:
            total = nearest(total + Fraction(entry))
        assert Fraction(value) == nearest(total * nearest(Fraction(1, 77)))


@pytest.mark.parametrize("biased", [False, True])
def test_products_are_fused_one_after_the_other(biased: bool) -> None:
    random = np.random.default_rng(1)
    a, b, c = (torch.from_numpy(random.normal(size=s).astype(np.float32)) for s in ((3, 40), (40, 2), (2,)))
    found = rows.linear(a, b.T, c) if biased else rows.product(a, b)
    for m, n in np.ndindex(3, 2):
        total = Fraction(c[n].item()) if biased else Fraction(0)
        for k in range(40):
            total = nearest(total + Fraction(a[m, k].item()) * Fraction(b[k, n].item()))
        assert Fraction(found[m, n].item()) == total


def test_results_that_vanish_are_nothing() -> None:
    tiny = torch.tensor([[2.0**-70, 2.0**-60]])
    assert rows.product(tiny, tiny.T).item() == 2.0**-120
    assert rows.product(tiny[:, :1], tiny[:, :1].T).item() == 0
    assert rows.mean(torch.tensor([[2.0**-126, 0.0]]), -1).item() == 0
    assert rows.softmax(torch.tensor([[0.0, -87.4]]), -1).tolist() == [[1.0, 0.0]]


def test_probabilities_have_the_sum_one() -> None:
    x = torch.from_numpy(np.random.default_rng(2).normal(size=(9, 200)).astype(np.float32)) * 4
    found, exact = rows.softmax(x, -1), torch.softmax(x.double(), -1)
    # Five steps of the exponential, 2 + log2(16) + 200 / 32 of the sum, its reciprocal and the product, half a unit each.
    assert float(((found - exact).abs() / exact).max()) <= 10 * UNIT
