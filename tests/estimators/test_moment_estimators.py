"""StdClip, LsqInit and LsqPlusInit against their equations in exact or float64 arithmetic, block by block."""

from __future__ import annotations

import math
import statistics
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from qfunc.errors import SpecError
from qfunc.estimators import LsqInit, LsqPlusInit, StdClip
from qfunc.estimators.moments import Moments, mean_and_std, merged, moments, no_moments
from qfunc.numerics import from_range
from qfunc.specs import Int, Levels, Log, PerBlock, PerChannel, PerTensor, PerToken, Scale, Scheme, ZeroPoint
from qfunc.specs.formats import E2M1, E4M3FN

SHAPE = (2, 3, 10)
VALUES = st.lists(st.floats(-(2.0**20), 2.0**20, width=32), min_size=1, max_size=8)
BATCHES = st.lists(VALUES, min_size=1, max_size=4)
NEAR = 2.0**-20
"""Relative to the largest magnitude: ten float32 additions and the rounding of the ratio, 2^-24 each."""


def fold(estimator: Any, batches: Any, scheme: Scheme) -> Any:
    state = estimator.init(scheme, torch.as_tensor(batches[0]))
    for batch in batches:
        state = estimator.update(state, torch.as_tensor(batch), scheme)
    return state


def exact_moments(values: list[float]) -> tuple[Fraction, Fraction]:
    """(mean, sum of squared deviations)."""
    mean = Fraction(sum(map(Fraction, values)), len(values))
    return mean, sum((Fraction(v) - mean) ** 2 for v in values) + Fraction(0)


@settings(max_examples=300)
@given(BATCHES, st.integers(-100, 100))
def test_moments_are_those_of_all_values(batches: list[list[float]], exponent: int) -> None:
    """Mean and std against exact fractions, also where squares leave float32; merging parts changes nothing."""
    batches = [[torch.tensor(v * 2.0**exponent).item() for v in batch] for batch in batches]
    parts = [moments(torch.tensor(batch), Scheme()) for batch in batches]
    state = parts[0]
    for part in parts[1:]:
        state = merged(state, part)
    everything = [v for batch in batches for v in batch]
    mean, squares = exact_moments(everything)
    std = math.sqrt(squares / max(len(everything) - 1, 1)) if squares else 0.0
    largest = max(map(abs, everything))

    found_mean, found_std = (t.item() for t in mean_and_std(state))
    assert int(state.number) == len(everything)
    assert (state.low.item(), state.high.item()) == (min(everything), max(everything))
    # A ratio to the unit below 2^-126 becomes a float32 subnormal, far below the bound.
    assert abs(found_mean - mean) <= NEAR * largest
    # The squares lose ten roundings of themselves, and the error of the mean once.
    assert abs(found_std - std) <= NEAR * largest


def test_a_mean_far_from_zero_keeps_the_deviations() -> None:
    """Where the mean of squares minus the square of the mean has no digit left."""
    x = torch.tensor([4096.0, 4096.25, 4096.5, 4096.75])
    for parts in ([x], [x[:1], x[1:]], [x[:3], x[3:]]):
        state = no_moments(Scheme(), x)
        for part in parts:
            state = merged(state, moments(part, Scheme()))
        assert mean_and_std(state)[1].item() == pytest.approx(math.sqrt(0.3125 / 3), rel=1e-12)  # all sums are exact


def test_nothing_is_the_identity() -> None:
    state, nothing = moments(torch.tensor([1.0, 5.0]), Scheme()), no_moments(Scheme(), torch.empty(0))

    assert merged(state, nothing) == merged(nothing, state) == state
    assert [t.item() for t in merged(nothing, nothing)] == [0, 0.0, 0.0, math.inf, -math.inf]
    assert isinstance(state, Moments)


def pieces(xs: list[Tensor], shared: Any) -> dict[tuple[int, ...], list[float]]:
    """Index of each block in the qparams -> all its values, by a loop."""
    made: dict[tuple[int, ...], list[float]] = {}
    for x in xs:
        for i, j, k in torch.cartesian_prod(*[torch.arange(n) for n in SHAPE]).tolist():
            table = {PerTensor(): (), PerChannel(0): (i, 0, 0), PerChannel(-1): (0, 0, k), PerToken(): (i, j, 0)}
            made.setdefault(table.get(shared, (i, j, k // 5)), []).append(x[i, j, k].item())
    return made


def clip_range(values: list[float], k: float) -> tuple[float, float]:
    mean = statistics.fmean(values)
    reach = k * statistics.stdev(values) if len(values) > 1 else 0.0
    return max(min(values), mean - reach), min(max(values), mean + reach)


@pytest.mark.parametrize("shared", [PerTensor(), PerChannel(0), PerChannel(-1), PerBlock(2, 5), PerToken()])
@pytest.mark.parametrize("k", [0.5, 2.6])
def test_std_clip_is_its_equation_in_every_block(shared: Any, k: float) -> None:
    """max(min, mean - k std), min(max, mean + k std) by the standard library's statistics."""
    scheme = Scheme(Int(8, signed=False), Scale(shared), ZeroPoint())
    xs = [torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed)) ** 3 + seed for seed in range(3)]
    low, high = StdClip(k).range(fold(StdClip(k), xs, scheme), scheme)
    expected = {key: clip_range(values, k) for key, values in pieces(xs, shared).items()}
    for key, (first, last) in expected.items():
        assert low[key].item() == pytest.approx(first, abs=NEAR * 40)  # values reach 40
        assert high[key].item() == pytest.approx(last, abs=NEAR * 40)
    assert len(expected) == low.numel() == high.numel()
    wanted = from_range(low, high, scheme)
    found = StdClip(k).finalize(fold(StdClip(k), xs, scheme), scheme)
    assert torch.equal(found.scale, wanted.scale)
    assert torch.equal(found.zero_point, wanted.zero_point)


def test_std_clip_clips_an_outlier_and_never_widens() -> None:
    """The data of MQBench's defect: max 100, where mean + 2.6 std is far below."""
    x = torch.cat([torch.randn(10_000, generator=torch.Generator().manual_seed(1)), torch.tensor([100.0])])
    low, high = StdClip().range(fold(StdClip(), [x], Scheme()), Scheme())

    assert 3 < high.item() < 5
    two = torch.tensor([-1.0, 1.0])  # mean + 2.6 std is 3.7, beyond the data
    assert [t.item() for t in StdClip().range(fold(StdClip(), [two], Scheme()), Scheme())] == [-1.0, 1.0]
    assert low.item() > x.min().item()


@settings(max_examples=200)
@given(
    BATCHES,
    st.sampled_from([Int(8), Int(2), Int(8, signed=False), Int(8, low=-64, high=63), E4M3FN, E2M1, Levels((-2.0, 0.0, 1.0))]),
)
def test_lsq_init_is_its_equation(batches: list[list[float]], fmt: Any) -> None:
    """s = 2 mean|x| / sqrt(Q_p) over all values, in exact fractions but for the root."""
    top = {Int(8): 127, Int(2): 1, Int(8, signed=False): 255, Int(8, low=-64, high=63): 63, E4M3FN: 448, E2M1: 6}.get(fmt, 2)
    everything = [abs(Fraction(v)) for batch in batches for v in batch]
    wanted = 2 * float(sum(everything) / len(everything)) / math.sqrt(top)

    found = LsqInit().finalize(fold(LsqInit(), [torch.tensor(b) for b in batches], Scheme(fmt)), Scheme(fmt))

    if wanted < 2.0**-125:
        return  # where 1 stands for a scale without an inverse
    assert found.scale.item() == pytest.approx(wanted, rel=NEAR)
    assert found.zero_point.item() == 0


AFFINE = st.sampled_from([Int(8), Int(8, signed=False), Int(4, low=-3, high=6), Int(3, signed=False), Int(2)])


@settings(max_examples=60)
@given(BATCHES, AFFINE)
def test_lsq_init_divides_the_codes_between_the_signs(batches: list[list[float]], fmt: Int) -> None:
    """z = qmin + R(min(-low/s, r W)), in exact fractions with the scale as float32 holds it: W = qmax - qmin = Q_p."""
    scheme = Scheme(fmt, zero_point=ZeroPoint())
    values, width = [Fraction(v) for batch in batches for v in batch], fmt.qmax - fmt.qmin
    total, low = sum(map(abs, values)), min(0, *values)
    wanted = 2 * float(total / len(values)) / math.sqrt(width)
    found = LsqInit().finalize(fold(LsqInit(), [torch.tensor(b) for b in batches], scheme), scheme)
    scale, zero = found.scale.item(), found.zero_point.item()
    if wanted < 2.0**-125:
        return  # where 1 stands for a scale without an inverse
    assert scale == pytest.approx(wanted, rel=NEAR)

    below = min(-low / Fraction(scale), -sum((v for v in values if v < 0), Fraction(0)) / total * width)
    # The sums of up to 32 values lose 2^-20 of the total, and the share is multiplied by at most 255.
    assert zero in {fmt.qmin + round(below + side * Fraction(1, 2**11)) for side in (-1, 0, 1)}
    # Both signs have a code if they have more than half a step of the codes, unless 0 is the nearest code anyway.
    assert fmt.qmin < zero or below <= Fraction(1, 2) + Fraction(1, 2**11)
    assert zero < fmt.qmax or width - below <= Fraction(1, 2) + Fraction(1, 2**11)


def shapes() -> dict[str, Tensor]:
    normal = torch.randn(4000, generator=torch.Generator().manual_seed(0))
    two = torch.tensor([100.0, -100.0])
    return {
        "normal": normal, "shifted up": normal + 1, "shifted down": normal - 1, "tanh": normal.tanh(),
        "heavy tails": normal.sign() * normal.square(), "one outlier above": torch.cat([normal, two[:1]]),
        "one outlier below": torch.cat([normal, two[1:]]), "gelu": torch.nn.functional.gelu(normal), "relu": normal.relu(),
        "negative relu": -normal.relu(), "leaky relu": torch.nn.functional.leaky_relu(normal, 0.1),
    }  # fmt: skip


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("bits", [2, 3, 4])
@pytest.mark.parametrize("shape", shapes())
def test_no_zero_point_of_lsq_has_half_the_error(shape: str, bits: int, signed: bool) -> None:
    """All zero points are tried at the scale of the start.  A zero point at an end of the codes has 4 to 40 times the error."""
    x, fmt = shapes()[shape], Int(bits, signed=signed)
    scheme = Scheme(fmt, zero_point=ZeroPoint())
    found = LsqInit().finalize(fold(LsqInit(), [x], scheme), scheme)
    wide, scale = x.double(), found.scale.double()

    def error(zero: float) -> float:
        codes = (torch.round(wide / scale) + zero).clamp(fmt.qmin, fmt.qmax)
        return ((codes - zero) * scale - wide).square().sum().item()

    best = min(map(error, range(fmt.qmin, fmt.qmax + 1)))
    assert error(found.zero_point.item()) < 2 * best


@settings(max_examples=40)
@given(BATCHES, st.integers(2, 8))
def test_lsq_init_is_the_same_for_codes_with_other_names(batches: list[list[float]], bits: int) -> None:
    """Signed and unsigned codes with a zero point are the same values: q and q + 2^(b-1); so is a fixed one in the middle."""
    half = 1 << bits - 1

    def made(scheme: Scheme) -> tuple[float, float]:
        found = LsqInit().finalize(fold(LsqInit(), [torch.tensor(b) for b in batches], scheme), scheme)
        return found.scale.item(), found.zero_point.item()

    signed, unsigned = (made(Scheme(Int(bits, signed=s), zero_point=ZeroPoint())) for s in (True, False))
    middle = made(Scheme(Int(bits, signed=False), zero_point=ZeroPoint(value=half)))
    assert (signed[0], signed[1] + half) == unsigned
    assert middle == (made(Scheme(Int(bits)))[0], half)


@pytest.mark.parametrize("shared", [PerTensor(), PerChannel(0), PerChannel(-1), PerBlock(2, 5), PerToken()])
def test_lsq_plus_init_is_its_equation_in_every_block(shared: Any) -> None:
    """Weights: max(|mean - 3 std|, |mean + 3 std|) / 2^(b-1).  Activations: (max - min) / (p - n), beta = min - n s."""
    xs = [torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed)) + 0.5 for seed in range(2)]
    weights, activations = Scheme(Int(4), Scale(shared)), Scheme(Int(4, signed=False), Scale(shared), ZeroPoint())
    symmetric = LsqPlusInit().finalize(fold(LsqPlusInit(), xs, weights), weights)
    affine = LsqPlusInit().finalize(fold(LsqPlusInit(), xs, activations), activations)
    expected = pieces(xs, shared)
    for key, values in expected.items():
        mean, std = statistics.fmean(values), statistics.stdev(values)
        assert symmetric.scale[key].item() == pytest.approx(max(abs(mean - 3 * std), abs(mean + 3 * std)) / 8, rel=NEAR)
        low, high = min(0.0, *values), max(0.0, *values)  # zero has a code
        scale = (high - low) / 15
        assert affine.scale[key].item() == pytest.approx(scale, rel=2.0**-22)  # one rounding
        assert affine.zero_point[key].item() == round(-low / scale)
    assert len(expected) == symmetric.scale.numel()
    assert not symmetric.zero_point.any()


@pytest.mark.parametrize(
    ("fmt", "side"),
    [
        (Int(8), 128),
        (Int(8, low=-127), 128),
        (Int(8, low=-64, high=63), 64),
        (Int(8, signed=False), 256),
        (Int(2), 2),
        (E2M1, 6),
    ],
)
def test_lsq_plus_divides_by_the_codes_of_one_side(fmt: Any, side: int) -> None:
    """2^(b-1) of the width that the codes use; MQBench divides by 2^b."""
    x = torch.tensor([-1.0, 1.0])
    found = LsqPlusInit().finalize(fold(LsqPlusInit(), [x], Scheme(fmt)), Scheme(fmt))

    assert found.scale.item() == pytest.approx(3 * math.sqrt(2) / side, rel=NEAR)


@pytest.mark.parametrize("estimator", [LsqInit(), LsqPlusInit()])
def test_direct_scales_are_ones_that_the_hardware_takes(estimator: Any) -> None:
    """Powers of two, bounds, steps of a logarithm, a fixed zero point, and a scale beyond float32."""
    x = torch.tensor([-1.0, 3.0, 0.25])

    def made(scheme: Scheme, x: Tensor = x) -> Any:
        return estimator.finalize(fold(estimator, [x], scheme), scheme)

    free = made(Scheme()).scale.item()
    assert made(Scheme(scale=Scale(power_of_two=True))).scale.item() == 2.0 ** math.ceil(math.log2(free))
    assert made(Scheme(scale=Scale(low=8.0))).scale.item() == 8.0
    assert made(Scheme(Int(8), zero_point=ZeroPoint(value=3))).zero_point.item() == 3.0
    exponent = 16 * math.log2(made(Scheme(Log())).scale.item())
    assert exponent == pytest.approx(round(exponent), abs=1e-4)
    assert made(Scheme(Int(2)), torch.full((3,), torch.finfo(torch.float32).max)).scale.isfinite()


@pytest.mark.parametrize("estimator", [StdClip(), LsqInit(), LsqPlusInit()])
def test_constants_and_zeros_have_qparams(estimator: Any) -> None:
    """A constant has std 0; zeros have scale 1."""
    for value in (0.1, -0.1, 2.0**-149, 1e38):
        scale = estimator.finalize(fold(estimator, [torch.full((7,), value)], Scheme()), Scheme()).scale.item()
        assert 0 < scale < math.inf
    assert estimator.finalize(fold(estimator, [torch.zeros(7)], Scheme()), Scheme()).scale.item() == 1.0
    low, high = StdClip().range(fold(StdClip(), [torch.full((7,), 0.1)], Scheme()), Scheme())
    assert low.item() == high.item() == torch.tensor(0.1).item()


@pytest.mark.parametrize("k", [0, -1.0, float("nan"), float("inf"), "2.6", True])
def test_k_outside_its_range_is_refused(k: Any) -> None:
    """The whole message."""
    with pytest.raises(SpecError) as caught:
        StdClip(k)
    assert str(caught.value) == f"StdClip.k: found {k!r}, wanted a finite number above 0. Give such a number."
