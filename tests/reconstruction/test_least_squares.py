"""The solver of gptq against exact rationals, and against solutions by numpy of the definition."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from qfunc.numerics.moments import damped, matching_weight, mixed_moments, second_moments
from qfunc.reconstruction.hessian.solver import descend, error_of_rows, inverse_factor, round_in_order

STEP, LOW, HIGH = 0.25, -4, 3
"""A grid of eight values, all exact in binary."""


def to_grid(values: Tensor, column: int) -> Tensor:
    return (values / STEP).round().clamp(LOW, HIGH) * STEP


@st.composite
def layers(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """A weight of sixteenths [out, in], and a Hessian of integers: X^T X + 1."""
    seed, inputs, outputs = draw(st.integers(0, 10**6)), draw(st.integers(1, 6)), draw(st.integers(1, 3))
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(-4, 5, (draw(st.integers(1, 8)), inputs), generator=generator).double()
    weight = torch.randint(-24, 25, (outputs, inputs), generator=generator).double() / 16 + 1 / 64  # no ties at first
    return weight, x.T @ x + torch.eye(inputs).double()


def solved(matrix: list[list[Fraction]], right: list[Fraction]) -> list[Fraction]:
    """The solution of a positive definite system, by elimination."""
    rows = [[*row, r] for row, r in zip(matrix, right, strict=True)]
    for i in range(len(rows)):
        rows[i] = [v / rows[i][i] for v in rows[i]]
        for j in range(len(rows)):
            if j != i:
                rows[j] = [a - rows[j][i] * b for a, b in zip(rows[j], rows[i], strict=True)]
    return [row[-1] for row in rows]


def exact(weight: list[Fraction], hessian: list[list[Fraction]]) -> list[Fraction] | None:
    """Round one row in the order of the diagonal; before each step the rest is the exact optimum.  None after a tie."""
    order = sorted(range(len(weight)), key=lambda i: -hessian[i][i])
    best, rounded = list(weight), dict[int, Fraction]()
    for place, i in enumerate(order):
        code = best[i] / Fraction(STEP)
        if abs(code - code.__floor__() - Fraction(1, 2)) < Fraction(1, 10**9):
            return None
        rounded[i] = min(max(Fraction(round(code)), Fraction(LOW)), Fraction(HIGH)) * Fraction(STEP)
        rest = order[place + 1 :]
        # The least error over the real values of the rest:  H_rr (v - w)_r = -H_rk (v - w)_k.
        right = [-sum((hessian[r][k] * (v - weight[k]) for k, v in rounded.items()), Fraction(0)) for r in rest]
        for r, change in zip(rest, solved([[hessian[r][c] for c in rest] for r in rest], right), strict=True):
            best[r] = weight[r] + change
    return [rounded[i] for i in range(len(weight))]


@given(layers())
@settings(max_examples=150, deadline=None)
def test_the_codes_are_those_of_exact_least_squares(layer: tuple[Tensor, Tensor]) -> None:
    weight, hessian = layer
    found = round_in_order(weight, hessian, to_grid)
    rational = [[Fraction(v) for v in row] for row in hessian.tolist()]
    for row, values in zip(weight.tolist(), found.tolist(), strict=True):
        wanted = exact([Fraction(v) for v in row], rational)
        assert wanted is None or [Fraction(v) for v in values] == wanted


def test_more_columns_than_are_updated_together() -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(n, 300, generator=generator).double() for n in (400, 5))
    hessian = x.T @ x
    found, best = round_in_order(weight, hessian, to_grid), weight.clone()
    order = hessian.diagonal().argsort(descending=True)
    for place, i in enumerate(order.tolist()):  # by the normal equations of the docstring, one column at a time
        best[:, i] = to_grid(best[:, i], i)
        done, rest = order[: place + 1], order[place + 1 :]
        moved = torch.linalg.solve(hessian[rest][:, rest], hessian[rest][:, done] @ (best - weight)[:, done].T)
        best[:, rest] = weight[:, rest] - moved.T
    assert torch.equal(found, best)


def test_the_factor_is_that_of_the_inverse() -> None:
    x = torch.randn(9, 5, generator=torch.Generator().manual_seed(0)).double()
    factor = inverse_factor(x.T @ x)
    assert torch.equal(factor, factor.triu())
    # Two triangular solves of a matrix with a condition number below 1e3: their errors are below 1e3 roundings.
    np.testing.assert_allclose(factor.T @ factor, np.linalg.inv((x.T @ x).numpy()), rtol=1e3 * 2.0**-52)


@given(layers())
@settings(max_examples=100, deadline=None)
def test_a_pass_takes_the_best_code_of_each_column_in_turn(layer: tuple[Tensor, Tensor]) -> None:
    weight, hessian = layer
    start = to_grid(weight, 0)
    found, wanted = descend(weight, start, hessian, to_grid), start.clone()
    codes = torch.arange(LOW, HIGH + 1).double() * STEP
    for j in range(weight.shape[1]):
        trials = wanted.repeat(len(codes), 1, 1)
        trials[:, :, j] = codes[:, None]
        errors = torch.stack([error_of_rows(weight, t, hessian) for t in trials])
        wanted[:, j] = codes[errors.argmin(0)]
        taken = wanted.clone()
        taken[:, j] = found[:, j]
        # Sixteenths and integers: the errors are exact, and only ties may be decided in the other direction.
        assert torch.equal(error_of_rows(weight, taken, hessian), errors.amin(0))
        wanted = taken
    assert (error_of_rows(weight, found, hessian) <= error_of_rows(weight, start, hessian)).all()


def test_the_moments_are_those_of_all_vectors() -> None:
    x = torch.randn(2, 20, 21, generator=torch.Generator().manual_seed(0))
    found = damped(second_moments([x[:1], x[1, :7], x[1, 7:]]), 0.01)
    rows = x.reshape(-1, 21).double().numpy()
    wanted = rows.T @ rows
    wanted += 0.01 * np.diag(wanted).mean() * np.eye(21)
    # At most 20 float32 products and sums a batch, of magnitudes whose sum is below that of the diagonal.
    np.testing.assert_allclose(found.numpy(), wanted, atol=20 * 2.0**-24 * np.diag(wanted).max())


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 10**6), inputs=st.integers(1, 5), vectors=st.integers(1, 8))
def test_the_matching_weight_is_the_exact_optimum(seed: int, inputs: int, vectors: int) -> None:
    """Of  sum |w y - v x|^2 + |w - v|^2  over real v: its gradient is 0 at  v (X^T X + 1) = w (Y^T X + 1)."""
    generator = torch.Generator().manual_seed(seed)
    x, y = (torch.randint(-4, 5, (vectors, inputs), generator=generator).double() for _ in "xy")
    weight = torch.randint(-24, 25, (2, inputs), generator=generator).double() / 16
    hessian, mixed = second_moments([x]) + torch.eye(inputs), mixed_moments([(y, x)])
    found = matching_weight(weight, hessian, mixed)
    for row, value in zip(weight, found, strict=True):
        right = [Fraction(float(r)) for r in (y.T @ x + torch.eye(inputs)).T.double() @ row]  # integers over 16: exact
        wanted = solved([[Fraction(int(h)) for h in line] for line in hessian.tolist()], right)
        # H >= 1 and its entries are at most 129, so that its condition is below 1000; a solution in float64 is off by
        # 2^-53 times that and a few operations.
        size = max(1.0, *(abs(float(w)) for w in wanted))
        assert all(abs(float(w) - float(v)) < 2**-36 * size for w, v in zip(wanted, value, strict=True))
