"""The gradients of the learned functions, each held against its paper's formula, one element at a time in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from qfunc.functions import DoReFa, Dsq, Lsq, LsqPlus, Pact, Tqt
from qfunc.functions.dsq import Staircase
from qfunc.functions.lsq import Learned
from qfunc.functions.lsq_plus import Offset
from qfunc.functions.pact import Clipping
from qfunc.functions.tqt import Threshold
from qfunc.numerics import Affine
from qfunc.numerics.qparams import blocks, qparams_shape
from qfunc.specs import Float, Int, Levels, PerBlock, PerChannel, PerTensor, PerToken, Scale, Scheme, ZeroPoint
from qfunc.specs.formats import E2M1, E4M3FN
from qfunc.testing import oracle, strategies

S4, U4 = Int(4), Int(4, signed=False)
# Ties, both ends and their neighbours, far outside; in steps.
GRID = sorted({*(k / 4 for k in range(-72, 73)), -1e4, 1e4, 7.001, -8.001, 6.999, -7.999})


def trained(function: Any, params: Any, x: Tensor, scheme: Scheme, weight: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """(d/dx, d/d each learned parameter) of sum(weight * x_hat)."""
    names = function.learned(scheme) if hasattr(function, "learned") else ()
    leaves = {n: getattr(params, n).detach().clone().requires_grad_() for n in names}
    x = x.detach().clone().requires_grad_()
    value = function.apply(params._replace(**leaves), x, scheme)
    found = torch.autograd.grad((value * weight).sum(), (x, *leaves.values()))
    return found[0], dict(zip(leaves, found[1:], strict=True))


def weights(x: Tensor) -> Tensor:
    return torch.linspace(-1, 2, x.numel(), dtype=x.dtype).reshape(x.shape)


@pytest.mark.parametrize("rounding", oracle.MODES)
@pytest.mark.parametrize(("fmt", "zero"), [(S4, None), (U4, 0), (U4, 5), (S4, -3), (Int(4, low=-7), None)])
def test_lsq_is_equations_3_and_5(fmt: Int, zero: int | None, rounding: str) -> None:
    """d/ds = R(v) - v inside, Q_n below, Q_p above; d/dx = 1 inside and at 0; v on an end is outside, as in the paper."""
    scheme = Scheme(fmt, zero_point=None if zero is None else ZeroPoint(), rounding=rounding)
    z, s = zero or 0, 0.25  # a power of two: x / s is exact
    x = torch.tensor(GRID, dtype=torch.float64) * s
    weight = weights(x)

    dx, found = trained(Lsq(gradient_scale=False), Learned(torch.tensor(s), torch.tensor(float(z))), x, scheme, weight)

    low, high, total, passed = fmt.qmin - z, fmt.qmax - z, 0.0, []
    for v, w in zip(GRID, weight.tolist(), strict=True):
        inside = low < v < high
        total += w * ((oracle.rounded(v, rounding, fmt.qmin - z) - v) if inside else low if v <= low else high)
        passed.append(w * (inside or v == 0))  # 0 has a code
    assert dx.tolist() == passed
    # The sum of 300 terms below 40 in float64, rounded to the float32 of the scale.
    assert found["scale"].item() == pytest.approx(total, rel=2**-23)


@pytest.mark.parametrize("fmt", [Int(8), Int(8, signed=False), E4M3FN, Levels((-1.0, -0.25, 0.0, 0.5, 1.5))])
@pytest.mark.parametrize("given_scale", [True, False, 0.125])
def test_the_gradient_of_the_scale_is_multiplied(fmt: Any, given_scale: bool | float) -> None:
    """g = 1 / sqrt(N Q_p) with N the elements that share the scale; or the number that is given."""
    scheme = Scheme(fmt, Scale(PerChannel(1)))
    x = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(1))
    params = Learned(torch.full((1, 4, 1), 0.3), torch.zeros(1, 4, 1))
    top = {Int(8): 127, Int(8, signed=False): 255, E4M3FN: 448}.get(fmt, 1.5)
    g = {True: 1 / math.sqrt(15 * top), False: 1.0}.get(given_scale, 0.125)

    _, plain = trained(Lsq(gradient_scale=False), params, x, scheme, weights(x))
    _, found = trained(Lsq(gradient_scale=given_scale), params, x, scheme, weights(x))

    torch.testing.assert_close(found["scale"], plain["scale"] * g, rtol=2**-22, atol=0)  # two roundings in float32


@pytest.mark.parametrize("function", [Lsq, LsqPlus])
@pytest.mark.parametrize(("per", "count"), [(PerTensor(), 20), (PerChannel(1), 5), (PerChannel(0), 20)])
def test_an_activations_gradient_is_scaled_by_one_example(function: Any, per: Any, count: int) -> None:
    """The paper's N_F: of x [6, 4, 5] the features that share a scale, so that parts of a batch have the same factor."""
    scheme = Scheme(U4, Scale(per))
    x = torch.randn(6, 4, 5, generator=torch.Generator().manual_seed(1))
    held = qparams_shape(scheme, x.shape)
    params = function().init(Affine(torch.full(held, 0.3), torch.zeros(held)), x, scheme)

    _, plain = trained(function(gradient_scale=False), params, x, scheme, weights(x))
    for found in (trained(function(batch_axis=axis), params, x, scheme, weights(x))[1] for axis in (0, -3)):
        torch.testing.assert_close(found["scale"], plain["scale"] * (count * 15) ** -0.5, rtol=2**-22, atol=0)  # two roundings


@pytest.mark.parametrize("fmt", [E2M1, E4M3FN, Float(3, 2), Levels((-1.0, -0.25, 0.0, 0.5, 1.5))])
def test_lsq_on_formats_without_integers(fmt: Any) -> None:
    """The same equation with R the nearest value of the format; the oracle searches all values."""
    values = fmt.values if isinstance(fmt, Levels) else every_value(fmt)
    x = torch.linspace(-1.3, 1.4, 91, dtype=torch.float64) * values[-1] * 0.5 + 1e-3  # no ties
    weight = weights(x)

    dx, found = trained(Lsq(False), Learned(torch.tensor(0.5), torch.tensor(0.0)), x, Scheme(fmt), weight)

    total, passed = 0.0, []
    for v, w in zip((x / 0.5).tolist(), weight.tolist(), strict=True):
        inside = values[0] < v < values[-1]
        nearest = min(values, key=lambda level: abs(level - v))
        total += w * (nearest - v if inside else nearest)
        passed.append(w * inside)
    assert dx.tolist() == passed
    assert found["scale"].item() == pytest.approx(total, rel=2**-22)  # the float32 of the scale


def every_value(fmt: Float) -> list[float]:
    bias = (1 << fmt.exponent - 1) - 1
    positive = {m * 2.0 ** (1 - bias - fmt.mantissa) for m in range(1 << fmt.mantissa)}
    for e in range(1, 1 << fmt.exponent):
        positive |= {(1 + m / (1 << fmt.mantissa)) * 2.0 ** (e - bias) for m in range(1 << fmt.mantissa)}
    top = fmt.max if fmt.max is not None else (2 - 2.0**-fmt.mantissa) * 2.0 ** ((1 << fmt.exponent) - 2 - bias)
    return sorted({sign * v for v in positive if v <= top for sign in (-1, 1)})


@pytest.mark.parametrize("scale", [-0.25, 0.0, -1e-45])
def test_a_scale_that_training_drove_below_zero_counts_by_its_magnitude(scale: float) -> None:
    """|s|, at least 2^-126; its gradient turns with the sign, and at 0 it is that of a positive scale."""
    x = torch.tensor([0.3, 0.4, -9.0])
    held = max(abs(scale), 2.0**-126)
    params = Learned(torch.tensor(scale), torch.tensor(0.0))

    _, found = trained(Lsq(False), params, x, Scheme(S4), torch.ones(3))
    _, positive = trained(Lsq(False), params._replace(scale=torch.tensor(held)), x, Scheme(S4), torch.ones(3))

    assert Lsq().export(params, x, Scheme(S4))[1].scale.item() == held
    assert found["scale"].item() == positive["scale"].item() * (-1 if scale < 0 else 1) != 0


def test_a_negative_scale_stays_where_the_hardware_has_one() -> None:
    """Scale.signed: x_hat = R(x/s) s with s < 0, whose derivative to s is R(v) - v all the same."""
    scheme = Scheme(S4, Scale(divisor="-qmin", signed=True))
    x = torch.tensor([0.3, -1.9, 2.1])
    params = Learned(torch.tensor(-0.25), torch.tensor(0.0))

    dx, found = trained(Lsq(False), params, x, scheme, torch.ones(3))

    assert Lsq().apply(params, x, scheme).tolist() == [0.25, -1.75, 2.0]
    assert dx.tolist() == [1, 0, 0]  # -1.2 inside; 7.6 and -8.4 outside
    assert found["scale"].item() == pytest.approx((-1 + 1.2) + 7 - 8, rel=1e-6)


@pytest.mark.parametrize("rounding", ["half_even", "half_away", "floor"])
@pytest.mark.parametrize(("fmt", "beta"), [(U4, 0.0), (U4, -1.25), (S4, 0.75), (U4, -1.3), (U4, 2.0)])
def test_lsq_plus_is_the_papers_with_the_integer_offset(fmt: Int, beta: float, rounding: str) -> None:
    """d/ds = n or p outside, d/d beta = 1 outside and 0 inside, at v = x/s + R(-beta/s)."""
    scheme, s = Scheme(fmt, zero_point=ZeroPoint(), rounding=rounding), 0.25
    z = min(max(oracle.rounded(-torch.tensor(beta).item() / s, "half_even"), fmt.qmin), fmt.qmax)
    x = torch.tensor(GRID, dtype=torch.float64) * s
    weight = weights(x)

    dx, found = trained(LsqPlus(False), Offset(torch.tensor(s), torch.tensor(beta)), x, scheme, weight)

    d_s, d_beta, passed = 0.0, 0.0, []
    for u, w in zip(GRID, weight.tolist(), strict=True):
        v = u + z
        inside = fmt.qmin < v < fmt.qmax
        d_s += w * ((oracle.rounded(u, rounding) - u) if inside else fmt.qmin if v <= fmt.qmin else fmt.qmax)
        d_beta += w * (not inside)
        passed.append(w * (inside or u == 0))
    assert dx.tolist() == passed
    assert found["scale"].item() == pytest.approx(d_s, rel=2**-23, abs=1e-6)  # float32 of the parameters
    assert found["beta"].item() == pytest.approx(d_beta, rel=2**-23)


@pytest.mark.parametrize("zero_point", [None, ZeroPoint(value=0), ZeroPoint(value=3)])
def test_lsq_plus_without_a_free_zero_point_is_lsq(zero_point: ZeroPoint | None) -> None:
    """Only the scale trains, by LSQ's own gradient."""
    scheme, z = Scheme(S4, zero_point=zero_point), float(zero_point.value or 0) if zero_point else 0.0
    x, qparams = torch.linspace(-4, 4, 77), Affine(torch.tensor(0.3), torch.tensor(z))
    plus, lsq = LsqPlus(), Lsq()

    assert plus.learned(scheme) == ("scale",)
    dx, found = trained(plus, plus.init(qparams, x, scheme), x, scheme, weights(x))
    dx_lsq, found_lsq = trained(lsq, lsq.init(qparams, x, scheme), x, scheme, weights(x))
    assert torch.equal(dx, dx_lsq)
    assert torch.equal(found["scale"], found_lsq["scale"])


@pytest.mark.parametrize("alpha", [1.75, -1.75])
@pytest.mark.parametrize(
    ("fmt", "zero", "low"), [(U4, None, 0.0), (S4, None, 0.0), (U4, ZeroPoint(), -2.0), (U4, ZeroPoint(), 0.0)]
)
def test_pact_is_equation_3(fmt: Int, zero: ZeroPoint | None, low: float, alpha: float) -> None:
    """d/d alpha = 1[x >= alpha], d/dx = 1[low <= x < alpha]; the lower tail goes to low, or to -alpha."""
    scheme, signed = Scheme(fmt, zero_point=zero), zero is None and fmt.signed
    bottom, top = -abs(alpha) if signed else low, abs(alpha)
    x = torch.tensor([*(k / 8 for k in range(-24, 25)), 1e4, -1e4, 1.7499999, -1.7499999], dtype=torch.float64)
    weight = weights(x)

    dx, found = trained(Pact(), Clipping(torch.tensor(alpha), torch.tensor(low)), x, scheme, weight)

    d_alpha, d_low, passed = 0.0, 0.0, []
    for v, w in zip(x.tolist(), weight.tolist(), strict=True):
        d_alpha += w * ((v >= top) - (v < bottom) * signed)
        d_low += w * (v < bottom)
        passed.append(w * (bottom <= v < top))
    assert dx.tolist() == passed
    assert found["alpha"].item() == pytest.approx(math.copysign(1, alpha) * d_alpha, rel=2**-23)
    if zero is not None:
        assert found["low"].item() == pytest.approx(d_low, rel=2**-23)


def test_pact_of_what_is_never_negative_keeps_its_lower_bound() -> None:
    """After a ReLU the bound 0 gets no gradient, however many zeros there are."""
    scheme = Scheme(U4, zero_point=ZeroPoint())
    x = torch.randn(200, generator=torch.Generator().manual_seed(0)).relu()
    params = Pact(6.0).init(Affine(torch.tensor(0.1), torch.tensor(0.0)), x, scheme)

    assert params == (6.0, 0.0)
    assert trained(Pact(), params, x, scheme, torch.ones_like(x))[1]["low"].item() == 0


@pytest.mark.parametrize("rounding", ["half_even", "half_away", "negative_ceil_else_half_even"])
@pytest.mark.parametrize(("fmt", "log2_t"), [(S4, 1.0), (S4, 0.3), (U4, 1.99), (Int(4, low=-7), -2.5)])
def test_tqt_is_equations_7_and_8(fmt: Int, log2_t: float, rounding: str) -> None:
    """s = 2^ceil(log2 t) / 2^(b-1), mask and value by R(x/s), both ends included."""
    scheme = Scheme(fmt, rounding=rounding)
    s = 2.0 ** (math.ceil(log2_t) - (3 if fmt.signed else 4))
    x = torch.tensor(GRID, dtype=torch.float64) * s
    weight = weights(x)

    dx, found = trained(Tqt(), Threshold(torch.tensor(log2_t), torch.tensor(0.0)), x, scheme, weight)

    total, passed = 0.0, []
    for v, w in zip(GRID, weight.tolist(), strict=True):
        code = oracle.rounded(v, rounding)
        inside = fmt.qmin <= code <= fmt.qmax
        total += w * s * math.log(2) * (code - v if inside else fmt.qmin if code < fmt.qmin else fmt.qmax)
        passed.append(w * inside)
    assert dx.tolist() == passed
    assert found["log2_t"].item() == pytest.approx(total, rel=2**-21)  # a few float32 roundings of the sum


def soft(x: float, low: float, step: float, count: int, alpha: float) -> float:
    """Q_S of equations 3 to 6, for one number."""
    if x <= low or x >= low + count * step:
        return low if x <= low else low + count * step
    i = min(math.floor((x - low) / step), count - 1)
    s, k = 1 / (1 - alpha), math.log(2 / alpha - 1) / step
    phi = s * math.tanh(k * (x - (low + (i + 0.5) * step)))
    return low + step * (i + (phi + 1) / 2)


def slope(f: Any, at: float) -> float:
    h = 1e-6
    return float((f(at + h) - f(at - h)) / (2 * h))


@pytest.mark.parametrize("alpha", [0.4, 0.2, 0.05])
def test_dsq_differentiates_the_soft_staircase(alpha: float) -> None:
    """Against numeric slopes of Q_S to x, l, u and alpha, off the seams of the intervals."""
    scheme = Scheme(U4, zero_point=ZeroPoint())
    low, high = -1.25, 2.5  # step 0.25, zero point 5: the hardware holds these bounds exactly
    x = torch.tensor([-3.0, -1.2, -0.61, -0.1, 0.01, 0.3, 0.33, 1.13, 2.2, 2.49, 7.0], dtype=torch.float64)
    weight = weights(x)
    params = Staircase(torch.tensor(low), torch.tensor(high), None, None, torch.tensor(alpha))

    dx, found = trained(Dsq(), params, x, scheme, weight)

    alpha = torch.tensor(alpha).item()  # as float32 holds it
    pairs = list(zip(x.tolist(), weight.tolist(), strict=True))
    slopes = [w * slope(lambda t: soft(t, low, 0.25, 15, alpha), v) for v, w in pairs]
    # Truncation h^2 f'''/6 with f''' up to 1e6 (0.05), and the float32 of alpha: 1e-6; then float32 parameters.
    assert dx.tolist() == pytest.approx(slopes, rel=1e-5, abs=1e-5)
    for name, f in {
        "low": lambda t, v: soft(v, t, (high - t) / 15, 15, alpha),
        "high": lambda t, v: soft(v, low, (t - low) / 15, 15, alpha),
        "alpha": lambda t, v: soft(v, low, 0.25, 15, t),
    }.items():
        expected = sum(
            w * slope(lambda t, f=f, v=v: f(t, v), {"low": low, "high": high, "alpha": alpha}[name]) for v, w in pairs
        )
        assert found[name].item() == pytest.approx(expected, rel=1e-4, abs=1e-4), name


def test_dsq_without_a_zero_point_trains_its_width() -> None:
    """l = qmin D and u = qmax D move with u - l = 15 D."""
    x = torch.tensor([-3.0, -1.2, -0.61, 0.01, 0.3, 1.13, 1.7, 1.9], dtype=torch.float64)
    weight = weights(x)
    params = Dsq(trains_alpha=False).init(Affine(torch.tensor(0.25), torch.tensor(0.0)), x, Scheme(S4))

    dx, found = trained(Dsq(trains_alpha=False), params, x, Scheme(S4), weight)

    alpha = torch.tensor(0.4).item()
    assert set(found) == {"width"}
    assert params.width == 15 * 0.25
    pairs = list(zip(x.tolist(), weight.tolist(), strict=True))
    expected = sum(w * slope(lambda t, v=v: soft(v, -8 / 15 * t, t / 15, 15, alpha), 3.75) for v, w in pairs)
    assert found["width"].item() == pytest.approx(expected, rel=1e-5)  # float32, and truncation as above
    assert dx.tolist() == pytest.approx([w * slope(lambda t: soft(t, -2.0, 0.25, 15, alpha), v) for v, w in pairs], abs=1e-6)


@pytest.mark.parametrize("alpha", [-3.0, 0.0005, 0.7])
def test_dsq_holds_alpha_in_its_range(alpha: float) -> None:
    """The nearest number in [0.001, 0.499], without cutting its gradient off."""
    x = torch.linspace(-1, 1, 50)
    params = Dsq().init(Affine(torch.tensor(0.25), torch.tensor(0.0)), x, Scheme(S4))
    near = params._replace(alpha=torch.tensor(min(max(alpha, 0.001), 0.499)))

    found = trained(Dsq(), params._replace(alpha=torch.tensor(alpha)), x, Scheme(S4), weights(x))
    expected = trained(Dsq(), near, x, Scheme(S4), weights(x))

    assert torch.equal(found[0], expected[0])
    assert found[1]["alpha"] == expected[1]["alpha"] != 0


@pytest.mark.parametrize("shared", [None, PerChannel(0)])
@pytest.mark.parametrize(
    "scheme", [Scheme(S4), Scheme(U4, zero_point=ZeroPoint()), Scheme(Int(2), Scale(divisor="half_range"))]
)
def test_dorefa_differentiates_tanh_and_the_maximum(scheme: Scheme, shared: Any) -> None:
    """Numeric slopes of sum(weight * tanh(w) / max|tanh(w)|): nothing but the rounding is straight through."""
    w = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    weight = weights(w)
    if shared:
        scheme = Scheme(scheme.format, Scale(shared, divisor=scheme.scale.divisor), scheme.zero_point)
    shape = (3, 1) if shared else ()
    params = DoReFa().init(Affine(torch.ones(shape), torch.zeros(shape)), w, scheme)

    dx, _ = trained(DoReFa(), params, w, scheme, weight)

    def transformed(values: list[float]) -> float:
        top = max(abs(math.tanh(v)) for v in values)
        return sum(g * math.tanh(v) / top for v, g in zip(values, weight.flatten().tolist(), strict=True))

    flat, h, expected = w.flatten().tolist(), 1e-6, []
    for i in range(len(flat)):
        up, down = ([v + d * (j == i) for j, v in enumerate(flat)] for d in (h, -h))
        expected.append((transformed(up) - transformed(down)) / (2 * h))
    assert dx.flatten().tolist() == pytest.approx(expected, abs=1e-8)  # central difference: 1e-16 / 1e-6 and h^2


@pytest.mark.parametrize("shared", [None, PerChannel(0)])
def test_dorefa_differentiates_the_magnitude_that_it_keeps(shared: Any) -> None:
    """Numeric slopes of sum(weight * m tanh(w) / tanh(m)), m = max|w|, of all or of each channel."""
    w = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    weight, function = weights(w), DoReFa(largest=None)
    scheme = Scheme(S4, Scale(shared)) if shared else Scheme(S4)
    shape = (3, 1) if shared else ()

    dx, _ = trained(function, function.init(Affine(torch.ones(shape), torch.zeros(shape)), w, scheme), w, scheme, weight)

    def transformed(values: list[float]) -> float:
        size = 4 if shared else 12
        parts = [(values[i : i + size], weight.flatten().tolist()[i : i + size]) for i in range(0, 12, size)]
        tops = [max(map(abs, part)) for part, _ in parts]
        return sum(
            g * m * math.tanh(v) / math.tanh(m)
            for (p, gs), m in zip(parts, tops, strict=True)
            for v, g in zip(p, gs, strict=True)
        )

    flat, h, expected = w.flatten().tolist(), 1e-6, []
    for i in range(len(flat)):
        up, down = ([v + d * (j == i) for j, v in enumerate(flat)] for d in (h, -h))
        expected.append((transformed(up) - transformed(down)) / (2 * h))
    assert dx.flatten().tolist() == pytest.approx(expected, abs=1e-8)  # central difference: 1e-16 / 1e-6 and h^2


def test_dorefa_holds_activations_in_the_estimated_range() -> None:
    """4 bits of s = 0.2: the value of the hardware, and the gradient where codes do not saturate."""
    scheme, x = Scheme(U4), torch.tensor([-0.5, -0.11, -0.09, 0.0, 0.26, 3.09, 3.11, 9.0])
    function, qparams = DoReFa(largest=None), Affine(torch.tensor(0.2), torch.tensor(0.0))

    dx, _ = trained(function, function.init(qparams, torch.zeros(()), scheme), x, scheme, torch.ones(8))

    assert dx.tolist() == [0, 0, 1, 1, 1, 1, 0, 0]
    expected = [oracle.clamp(oracle.rounded(v / 0.2, "half_even"), 0, 15) * 0.2 for v in x.tolist()]
    assert function.apply(qparams, x, scheme).tolist() == pytest.approx(expected, rel=2**-22)  # 0.2 in float32


def test_dorefa_clips_activations_to_0_1() -> None:
    """h(x) = clip(x, 0, 1) and the straight-through rounding of k bits: gradient 1 in [0, 1]."""
    scheme, x = Scheme(U4), torch.tensor([-0.5, -1e-6, 0.0, 0.26, 1.0, 1.0001, 3.0])
    params = DoReFa().init(Affine(torch.tensor(9.0), torch.tensor(0.0)), torch.zeros(()), scheme)

    dx, _ = trained(DoReFa(), params, x, scheme, torch.ones(7))

    assert dx.tolist() == [0, 0, 1, 1, 1, 0, 0]
    expected = [oracle.clamp(oracle.rounded(v * 15, "half_even"), 0, 15) / 15 for v in x.tolist()]
    assert DoReFa().apply(params, x, scheme).tolist() == pytest.approx(expected, rel=2**-22)  # 1/15 in float32


@settings(deadline=None, max_examples=30)
@given(st.data(), strategies.granularities(shape=(2, 3, 10)))
def test_gradients_of_shared_parameters_are_those_of_the_blocks(data: st.DataObject, shared: Any) -> None:
    """Each scale gets what a function of its own elements alone gives it; per token, channel and block alike."""
    function = data.draw(st.sampled_from((Lsq(False), LsqPlus(False), Tqt(), Pact(), Dsq())))
    zero_point = data.draw(st.sampled_from((None, ZeroPoint())))
    scheme, alone = Scheme(U4, Scale(shared), zero_point), Scheme(U4, zero_point=zero_point)
    x = torch.randn(2, 3, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(data.draw(st.integers(0, 99))))
    index = torch.arange(60).reshape(x.shape)
    shape = qparams_shape(scheme, tuple(x.shape))
    count = torch.Size(shape).numel()
    scale = torch.linspace(0.1, 0.3, count).reshape(shape)
    qparams = Affine(scale, torch.full(shape, 4.0 if zero_point else 0.0))
    split, axes = blocks(index + 1, scheme)
    groups = split if not shape else split.movedim(axes, tuple(range(-len(axes), 0)))
    groups = groups.reshape(count, -1)

    dx, found = trained(function, function.init(qparams, x, scheme), x, scheme, weights(x))

    alphas = 0.0
    for i, filled in enumerate(groups):
        group = filled[filled > 0] - 1  # a partial block is filled with zeros
        one = Affine(scale.flatten()[i], qparams.zero_point.flatten()[i])
        member, weight = x.flatten()[group], weights(x).flatten()[group]
        dx_i, found_i = trained(function, function.init(one, member, alone), member, alone, weight)
        assert torch.equal(dx.flatten()[group], dx_i)
        for name in found.keys() - {"alpha"} if isinstance(function, Dsq) else found:
            torch.testing.assert_close(found[name].flatten()[i], found_i[name], rtol=2**-20, atol=1e-6)  # order of the sum
        alphas += found_i["alpha"].item() if isinstance(function, Dsq) else 0.0
    if isinstance(function, Dsq):
        assert found["alpha"].item() == pytest.approx(alphas, rel=1e-5, abs=1e-5)  # order of the sum, float32


@pytest.mark.parametrize(
    ("scheme", "shape"),
    [
        (Scheme(), ()),
        (Scheme(Int(8, signed=False), zero_point=ZeroPoint()), ()),
        (Scheme(scale=Scale(PerChannel(0))), (70, 1, 1)),
        (Scheme(scale=Scale(PerToken())), (70, 64, 1)),
        (Scheme(scale=Scale(PerBlock(1, 32))), (70, 2, 65)),
    ],
)
@pytest.mark.parametrize("function", [Lsq(False), LsqPlus(False), Tqt()])
def test_large_tensors_are_gone_through_in_parts(function: Any, scheme: Scheme, shape: tuple[int, ...]) -> None:
    """The same gradient to x, bit for bit, and the same sums, as of float64 in one piece (a transposed view)."""
    x = torch.randn(70, 64, 65, generator=torch.Generator().manual_seed(3)) * 9
    params = function.init(Affine(torch.full(shape, 0.125), torch.full(shape, 100.0 if scheme.zero_point else 0.0)), x, scheme)
    weight = weights(x)
    turned = torch.empty(70, 65, 64, dtype=torch.float64).transpose(1, 2).copy_(x)

    dx, found = trained(function, params, x, scheme, weight)
    dx_one, found_one = trained(function, params, turned, scheme, weight.double())

    assert torch.equal(dx, dx_one.float())
    for name in found:
        # Float32 sums of n terms: n up to 3e5 of size 128, pairwise, so 2^-24 * 18 of the sum of magnitudes.
        torch.testing.assert_close(found[name], found_one[name], rtol=1e-5, atol=1.0 if not shape else 0.01)
