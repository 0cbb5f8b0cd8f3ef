"""The steps from accumulators to codes against exact rational arithmetic, one rounding at a time."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

from qfunc.numerics.kernels import addition, pooling, requantize
from qfunc.testing import integer_oracle as exact
from qfunc.testing.oracle import clamp, float32, rounded

WIDE = 2**24
ACCS = [*range(-40, 40), *(7919 * k for k in range(-60, 60)), *range(WIDE - 400, WIDE)]
"""Small accumulators, and large ones, whose products have no bits behind the point: a second rounding shows."""

M, STEEP, OFFSET, SCALE = (float(np.float32(v)) for v in (0.3017, 0.9017, 0.4999, 0.0437))


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("place", ["before", "after"])
def test_a_float_bias_is_added_before_rounding(place: str, fused: bool) -> None:
    """acc * M + b with one rounding or two, z in b or after R; the codes are wide enough to show the last bit."""
    zero = 5

    def code(acc: int, one: bool) -> int:
        b = float32(Fraction(OFFSET) + zero) if place == "before" else Fraction(OFFSET)
        v = exact.fma(acc, STEEP, b) if one else float32(float32(Fraction(acc) * Fraction(STEEP)) + b)
        return clamp(rounded(v, "half_even") + (0 if place == "before" else zero), -WIDE, WIDE)

    acc = torch.tensor([float(a) for a in ACCS])
    found = requantize.requantize_offset(
        acc, torch.tensor(STEEP), torch.tensor(OFFSET), zero, -WIDE, WIDE, "half_even", place, fused
    )
    assert found.tolist() == [code(a, fused) for a in ACCS]
    assert [code(a, True) for a in ACCS] != [code(a, False) for a in ACCS]


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("division", [True, False])
def test_through_real_is_quantize_of_the_real_value(fused: bool, division: bool) -> None:
    """v = acc * M + b in real units, then R(v / s) or R(v * (1/s)), then z."""

    def code(acc: int) -> int:
        v = exact.fma(acc, M, OFFSET) if fused else float32(float32(Fraction(acc) * Fraction(M)) + Fraction(OFFSET))
        real = float32(v / Fraction(SCALE)) if division else float32(v * float32(1 / Fraction(SCALE)))
        return clamp(rounded(real, "half_away") + 3, 0, 255)

    accs = list(range(-8, 60))
    found = requantize.requantize_through_real(
        torch.tensor(accs).float(), torch.tensor(M), torch.tensor(OFFSET), SCALE, 3, 0, 255, "half_away", fused, division
    )
    assert found.tolist() == [code(a) for a in accs]


def test_through_real_adds_what_is_fused_in_real_units() -> None:
    """v = min(max(acc * M + b, 0), 6) + y, each step rounded to float32, then R(v / s): no rounding to codes before the sum."""
    other = float(np.float32(-0.7131))

    def code(acc: int) -> int:
        v = float32(float32(Fraction(acc) * Fraction(M)) + Fraction(OFFSET))
        v = float32(min(max(v, Fraction(0)), Fraction(6)) + Fraction(other))
        return clamp(rounded(float32(v / Fraction(SCALE)), "half_even") - 2, -128, 127)

    accs = list(range(-8, 60))
    found = requantize.requantize_through_real(
        torch.tensor(accs).float(), torch.tensor(M), torch.tensor(OFFSET), SCALE, -2, -128, 127, "half_even", False, True,
        [(0.0, None), (None, 6.0)], torch.full((68,), other),
    )  # fmt: skip
    wanted = [code(a) for a in accs]
    assert found.tolist() == wanted
    assert len(set(wanted)) < len(wanted) - 40  # both bounds show


@pytest.mark.parametrize("rounding", ["half_up", "floor", "half_even"])
def test_shifts_go_both_ways(rounding: str) -> None:
    """acc * 2^-k for positive, zero and negative k, saturated."""
    accs = list(range(-50, 50))
    for k in (-2, 0, 3):
        found = requantize.requantize_shift(torch.tensor(accs).float(), torch.tensor(k), 1, -100, 100, rounding)
        assert found.tolist() == [clamp(rounded(Fraction(a) / Fraction(2) ** k, rounding) + 1, -100, 100) for a in accs]


@pytest.mark.parametrize("steps", [("srdhm", "half_away"), ("half_up",)])
def test_fixed_point_units_saturate(steps: tuple[str, ...]) -> None:
    """steps(acc * m * 2^-e) + z at both ends of the codes and between."""
    m, e = exact.fixed_multiplier(0.0371)
    accs = [*range(-9000, 9000, 77)]
    found = requantize.requantize_fixed(
        torch.tensor(accs).float(), torch.tensor(m), torch.tensor(e), list(steps), -3, -128, 127
    )
    wanted = [clamp(exact.scale_fixed(a, m, e, steps) - 3, -128, 127) for a in accs]
    assert found.tolist() == wanted
    assert {-128, 127} < set(wanted)


def test_shifted_sums_equal_integers() -> None:
    """TFLite's Add: both terms shifted left by 20, rescaled, summed, rescaled to the output."""
    steps, zeros = ("srdhm", "half_away"), (3, -7)
    pairs = [exact.fixed_multiplier(v) for v in (0.41, 0.5, 1.7 / 2**20)]
    a, b = list(range(-128, 128)), [(37 * k) % 256 - 128 for k in range(256)]

    def code(p: int, q: int) -> int:
        terms = [exact.scale_fixed((v - z) << 20, *pair, steps) for v, z, pair in zip((p, q), zeros, pairs, strict=False)]
        return clamp(exact.scale_fixed(sum(terms), *pairs[2], steps) + 11, -128, 127)

    found = addition.add_shifted(torch.tensor(a).float(), torch.tensor(b).float(), zeros, pairs, 20, list(steps), 11, -128, 127)
    assert found.tolist() == [code(p, q) for p, q in zip(a, b, strict=True)]


@pytest.mark.parametrize("place", ["before", "after"])
def test_interior_before_is_not_after(place: str) -> None:
    """R(v/s + z) or R(v/s) + z: with an odd z and half to even every tie moves."""
    values = [k / 8 for k in range(-40, 40)]
    found = pooling.quantize_interior(torch.tensor(values), 0.25, 101, 0, 255, "half_even", True, place)
    quotients = [Fraction(v) * 4 for v in values]
    after = [rounded(q, "half_even") + 101 for q in quotients]
    before = [rounded(q + 101, "half_even") for q in quotients]
    assert found.tolist() == (before if place == "before" else after)
    assert before != after
