"""Division and multiplication by a reciprocal, each with its own roundings, where the two give other codes."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import torch

from qfunc.numerics import Affine, quantize
from qfunc.specs import Int, Scheme
from qfunc.testing import oracle

SCALES = [float(np.float32(k / 97)) for k in range(1, 60, 2)]


def ties(scale: float) -> list[float]:
    """float32 values next to ties of the quotient."""
    return [float(np.float32((n + 0.5) * scale)) for n in range(-100, 100)]


def by_division(x: float, scale: float) -> int:
    return oracle.rounded(oracle.float32(Fraction(x) / Fraction(scale)), "half_even")


def by_reciprocal(x: float, scale: float) -> int:
    return oracle.rounded(oracle.float32(Fraction(x) * oracle.float32(1 / Fraction(scale))), "half_even")


def codes(x: list[float], scale: float, division: bool) -> list[float]:
    qparams = Affine(torch.tensor(scale), torch.tensor(0.0))
    return quantize(torch.tensor(x), qparams, Scheme(Int(8), division=division)).tolist()


def test_a_division_rounds_once() -> None:
    """R(float32(x / s)): no other rounding before R."""
    for scale in SCALES:
        assert codes(ties(scale), scale, True) == [by_division(x, scale) for x in ties(scale)]


def test_a_reciprocal_rounds_twice() -> None:
    """R(float32(x * float32(1 / s))), which is another code than that of the division for some x."""
    for scale in SCALES:
        assert codes(ties(scale), scale, False) == [by_reciprocal(x, scale) for x in ties(scale)]
    assert any(by_division(x, s) != by_reciprocal(x, s) for s in SCALES for x in ties(s))
