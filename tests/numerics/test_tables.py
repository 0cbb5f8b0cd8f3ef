"""Softmax by table, the logistic polynomial and look-up tables against independent references."""

from __future__ import annotations

from fractions import Fraction
from functools import partial

import numpy as np
import pytest
import torch

from qfunc.numerics.kernels import integer
from qfunc.testing import integer_oracle as exact
from qfunc.testing import oracle

F32 = np.float32


def softmax_row(row: list[int], scale_in: float, scale: float, zero: int, high: int, saturates: bool) -> list[int]:
    # The equations of the docstring, one number at a time, in numpy's float32; the sum with the zero point is one of uint32.
    room = max(0.0, float(np.log(F32(np.finfo(F32).max) / F32(len(row)))) - 5.0)
    table = [F32(np.exp((i - 255 + room / scale_in) * scale_in)) for i in range(256)]
    terms = [table[q - max(row) + 255] for q in row]
    total = F32(0)
    for term in terms:
        total = F32(total + term)
    with np.errstate(over="ignore"):
        quotients = [F32(F32(t * np.floor(F32(1) / F32(scale))) / total) for t in terms]
    infinite = 2**32 - 1 if saturates else 0
    rounded = [infinite if np.isinf(v) else oracle.rounded(Fraction(float(v)), "half_even") for v in quotients]
    return [min((r + zero) % 2**32, high) for r in rounded]


@pytest.mark.parametrize("length", [1, 2, 7, 50, 300])
@pytest.mark.parametrize(("scale", "zero"), [(1 / 256, 0), (0.013, 9), (1 / 255, 255), (1e-6, 3), (1e-6, 0)])
@pytest.mark.parametrize("saturates", [False, True])
def test_softmax_equals_the_equations(length: int, scale: float, zero: int, saturates: bool) -> None:
    """Spread and saturated rows, several input scales, along the last and an inner axis; the overflow trap included."""
    scale, random = float(F32(scale)), np.random.default_rng(length)
    for scale_in in (0.25, float(F32(0.011)), 3.0):
        rows = random.integers(0, 256, (6, length)) if scale_in < 1 else random.choice([0, 254, 255], (6, length))
        expected = torch.tensor([softmax_row(row.tolist(), scale_in, scale, zero, 255, saturates) for row in rows]).float()
        x = torch.tensor(rows).float()

        call = partial(integer.softmax_codes, scale_in=scale_in, scale=scale, zero_point=zero, high=255, saturates=saturates)
        along_last, inner = call(x, -1), call(x.reshape(2, 3, length).movedim(-1, 1), 1)

        assert torch.equal(along_last, expected)
        assert torch.equal(inner.movedim(1, -1).reshape(6, length), expected)


def test_softmax_ignores_a_shift_of_all_codes() -> None:
    """Only differences from the largest code count."""
    x = torch.tensor([[3.0, 7.0, 100.0, 95.0]])

    a, b = (integer.softmax_codes(x + k, 1, 0.07, 1 / 256, 0, 255) for k in (0, 150))

    assert torch.equal(a, b)


def test_logistic_is_the_fused_polynomial() -> None:
    """Horner with fused steps, every one rounded once by the oracle: all bits equal."""
    alpha = (4.37031012579801e-11, 1.15627324459942e-07, 6.08574864600143e-05, 8.51377133304701e-03, 2.48287947061529e-01)
    beta = (6.10247389755681e-13, 5.76102136993427e-09, 6.29106785017040e-06, 1.70198817374094e-03, 1.16817656904453e-01,
            9.93151921023180e-01)  # fmt: skip
    x = torch.cat([torch.linspace(-20, 20, 161), torch.tensor([1e-6, -1e-6, 18.0, -18.0, 17.999998])])

    def horner(coefficients: tuple[float, ...], square: Fraction) -> Fraction:
        value = oracle.float32(coefficients[0])
        for c in coefficients[1:]:
            value = exact.fma(value, square, oracle.float32(c))
        return value

    expected = []
    for v in x.tolist():
        clipped = Fraction(max(-18.0, min(v, 18.0)))
        square = oracle.float32(clipped * clipped)
        ratio = oracle.float32(oracle.float32(clipped * horner(alpha, square)) / horner(beta, square))
        expected.append(max(oracle.float32(ratio + Fraction(1, 2)), Fraction(0)))
    found = integer.logistic(x)

    assert [Fraction(v) for v in found.tolist()] == expected
    # Against the true function: the polynomial's own error, measured below 2 units of 2^-24.
    assert (found.double() - torch.sigmoid(x.double())).abs().max() < 2 * 2.0**-24
