"""AdaRound against its equations: a loop over numbers, exact rationals, autograd of the plain formula."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Any, NamedTuple

import pytest
import torch
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from qfunc.errors import SpecError
from qfunc.functions import AdaRound, DoReFa, Fixed, QDrop
from qfunc.numerics import Affine, dequantize, fake_quantize, quantize
from qfunc.specs import Int, PerChannel, Scale, Scheme, ZeroPoint
from qfunc.specs.formats import E4M3FN
from qfunc.testing import oracle, strategies

S4, U4 = Scheme(Int(4)), Scheme(Int(4, signed=False), zero_point=ZeroPoint())
PARAMS = Affine(torch.tensor(0.37), torch.tensor(0.0)), Affine(torch.tensor(0.37), torch.tensor(6.0))
BOTH = [(S4, PARAMS[0]), (U4, PARAMS[1])]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def by_hand(x: float, v: float, s: float, z: int, low: int, high: int, zeta: float = 1.1, gamma: float = -0.1) -> float:
    # Equations 22 and 23 of the paper, one number at a time, in float64.
    h = min(max(1 / (1 + math.exp(-v)) * (zeta - gamma) + gamma, 0), 1)
    return s * (min(max(math.floor(x / s) + h + z, low), high) - z)


@pytest.mark.parametrize(("scheme", "qparams"), BOTH)
@pytest.mark.parametrize("zeta", [1.1, 1.5])
def test_the_soft_value_is_that_of_the_equations(scheme: Scheme, qparams: Affine, zeta: float) -> None:
    """For any v, saturated ones too."""
    x, v = random(5, 7, 3), random(5, 7, 3, seed=1) * 4
    function = AdaRound(zeta=zeta, gamma=1 - zeta)
    params = function.init(qparams, x, scheme)._replace(v=v)
    z, fmt = int(qparams.zero_point), scheme.format
    wanted = [
        by_hand(a, b, float(qparams.scale), z, fmt.qmin, fmt.qmax, zeta, 1 - zeta)  # type: ignore[union-attr]
        for a, b in zip(x.flatten().tolist(), v.flatten().tolist(), strict=True)
    ]

    found = function.relax(params, x, scheme).flatten().double()
    # x/s lies far enough from integers for this seed; then h, the sum with at most 4 bits of code, and the
    # product are rounded to float32: 4 roundings of numbers below 16 * 0.37.
    assert (found - torch.tensor(wanted, dtype=torch.float64)).abs().max() < 4 * 2.0**-24 * 16 * 0.37


@pytest.mark.parametrize(("scheme", "qparams"), BOTH)
def test_gradients_are_those_of_the_plain_formula(scheme: Scheme, qparams: Affine) -> None:
    """To v by autograd of equation 22 in float64; to x straight through inside the range; to the scale none."""
    x, v = random(5, 7, 3, seed=2) * 2, random(5, 7, 3, seed=3) * 3
    upstream = random(5, 7, 3, seed=4)
    function, fmt = AdaRound(), scheme.format
    leaves = [x.clone().requires_grad_(), v.clone().requires_grad_(), qparams.scale.clone().requires_grad_()]
    params = function.init(qparams, x, scheme)._replace(v=leaves[1], inner=qparams._replace(scale=leaves[2]))
    to_x, to_v, to_scale = torch.autograd.grad(function.relax(params, leaves[0], scheme), leaves, upstream, allow_unused=True)

    s, z, plain = qparams.scale.double(), qparams.zero_point.double(), v.double().requires_grad_()
    h = (torch.sigmoid(plain) * 1.2 - 0.1).clip(0, 1)
    formula = s * (torch.clip(torch.floor(x.double() / s) + h + z, fmt.qmin, fmt.qmax) - z)  # type: ignore[union-attr]
    (wanted,) = torch.autograd.grad(formula, plain, upstream.double())
    # A product of five float32 numbers, each rounded: 8 ulp of the largest.
    assert (to_v.double() - wanted).abs().max() <= 8 * 2.0**-24 * wanted.abs().max()
    assert (to_v == 0).sum() > 10  # saturated h and clipped codes do occur
    code = torch.round(x / qparams.scale) + qparams.zero_point
    assert torch.equal(to_x, upstream * ((code >= fmt.qmin) & (code <= fmt.qmax)))  # type: ignore[union-attr]
    assert to_scale is None


@given(st.data())
def test_before_training_hard_is_nearest_with_ties_up(data: st.DataObject) -> None:
    """In exact rational arithmetic, on ties and beside them; v is 0 at a tie, negative below it."""
    scheme = data.draw(strategies.schemes(max_bits=8, division=True))
    drawn = data.draw(strategies.qparams(scheme=scheme, tiny=False, huge=False))
    # Powers of two make x/s exact, so that a tie of the reals is one of the floats.
    qparams = drawn._replace(scale=torch.exp2(torch.floor(torch.log2(drawn.scale))))
    near = strategies.values_near_ties(scheme=Scheme(scheme.format, zero_point=scheme.zero_point), qparams=qparams)
    x = torch.tensor(data.draw(st.lists(near, min_size=1, max_size=9)))
    function, fmt = AdaRound(), scheme.format
    params = function.init(qparams, x, scheme)
    codes, _ = function.export(params, x, scheme)

    assert isinstance(fmt, Int)
    real = [Fraction(a) / Fraction(float(qparams.scale)) for a in x.tolist()]
    z = int(qparams.zero_point)
    assert codes.tolist() == [oracle.clamp(oracle.rounded(r, "half_up") + z, fmt.qmin, fmt.qmax) for r in real]
    for v, r in zip(params.v.tolist(), real, strict=True):
        above = r - math.floor(r) - Fraction(1, 2)
        if abs(r) >= 2.0**-126:  # a quotient below underflows to 0, of the same code
            assert v == 0 if above == 0 else v >= 0 if above > 0 else v < 0


@pytest.mark.parametrize(("scheme", "qparams"), BOTH)
def test_training_begins_where_the_soft_value_is_x(scheme: Scheme, qparams: Affine) -> None:
    """Inside the range; v is the paper's -ln((zeta - gamma) / (r - gamma) - 1)."""
    x = torch.linspace(-2.2, 2.55, 997).reshape(997, 1)
    params = AdaRound().init(qparams, x, scheme)
    rest = (x.double() / qparams.scale.double()) % 1

    # h is a float32 in [0, 1] after sigmoid, product and sum: 4 roundings of at most 1.2; s and x add theirs.
    assert (AdaRound().relax(params, x, scheme) - x).abs().max() < 0.37 * 6 * 2.0**-23 + 2 * 2.55 * 2.0**-23
    paper = -torch.log(1.2 / (rest + 0.1) - 1)
    # r is rounded to 2^-22 at 7 = |x/s| and v moves by at most 1.2 / (0.1 * 1.1) = 11 times that; 997 values avoid wrap.
    assert (params.v - paper).abs().max() < 11 * 2.0**-22 + 3 * 2.0**-23


def test_hard_follows_v_alone() -> None:
    """floor(x/s) + 1[v >= 0], clamped: also where v contradicts x."""
    x, v = random(6, 5, seed=5), random(6, 5, seed=6)
    v[0, 0] = 0.0
    params = AdaRound().init(PARAMS[0], x, S4)._replace(v=v)
    codes, qparams = AdaRound().export(params, x, S4)

    wanted = (torch.floor(x / 0.37) + (v >= 0)).clamp(-8, 7)
    assert torch.equal(codes, wanted)
    assert codes[0, 0] == math.floor(float(x[0, 0]) / 0.37) + 1
    assert torch.equal(AdaRound().apply(params, x, S4), dequantize(wanted, qparams, S4))


def test_harden_makes_soft_and_hard_one() -> None:
    """Bit for bit, for every stretch; nothing trains any more; the old parameters stay."""
    x, v = random(6, 5, 4, seed=7), random(6, 5, 4, seed=8)
    for zeta in (1.0001, 1.1, 3.0):
        function = AdaRound(zeta=zeta, gamma=1 - zeta)
        params = function.init(PARAMS[1], x, U4)._replace(v=v.clone())
        hard = function.harden(params)
        leaf = hard.v.requires_grad_()
        value = function.relax(hard, x, U4)

        assert torch.equal(value, function.apply(params, x, U4))
        assert torch.equal(function.apply(hard, x, U4), function.apply(params, x, U4))
        assert torch.autograd.grad(value.sum(), leaf)[0].any() == False  # noqa: E712
        assert function.regulariser(hard, 2.0) == 0
        assert torch.equal(params.v, v)


@pytest.mark.parametrize("beta", [20.0, 2.0, 3.5])
def test_the_regulariser_is_equation_24(beta: float) -> None:
    """sum 1 - |2h - 1|^beta in float64, with a finite gradient also at h = 1/2."""
    v = torch.cat([random(30, seed=9) * 3, torch.zeros(2)]).requires_grad_()
    params = AdaRound().init(PARAMS[0], torch.ones(32), S4)._replace(v=v)
    found = AdaRound().regulariser(params, beta)
    h = [min(max(1 / (1 + math.exp(-a)) * 1.2 - 0.1, 0), 1) for a in v.tolist()]

    # 32 terms of at most 1, each with a relative error of beta * 4 * 2^-24 and less.
    assert abs(float(found.detach()) - sum(1 - abs(2 * a - 1) ** beta for a in h)) < 32 * 4 * beta * 2.0**-24
    assert torch.autograd.grad(found, v)[0].isfinite().all()


def test_learning_beats_nearest_rounding() -> None:
    """A layer's output error falls below that of nearest rounding, and the soft value ends hard."""
    weight, scheme = random(4, 16, seed=10) * 0.5, Scheme(Int(3), Scale(PerChannel(0)))
    inputs = random(256, 6, seed=11) @ random(6, 16, seed=12)  # correlated, as activations are
    scale = weight.abs().amax(1, keepdim=True) / 3
    qparams, function = Affine(scale, torch.zeros_like(scale)), AdaRound()
    params = function.init(qparams, weight, scheme)
    v = params.v.clone().requires_grad_()
    optimizer = torch.optim.Adam([v], lr=0.05)

    def error(w: Tensor) -> Tensor:
        return ((w - weight) @ inputs.T).square().mean()

    for i in range(600):
        now = params._replace(v=v)
        loss = error(function.relax(now, weight, scheme)) + 0.01 * function.regulariser(now, 20 - 18 * i / 600) * (i > 120)
        v.grad = torch.autograd.grad(loss, v)[0]
        optimizer.step()
    learned = params._replace(v=v.detach())

    nearest = error(fake_quantize(weight, qparams, scheme))
    assert error(function.apply(learned, weight, scheme)) < 0.5 * nearest
    # 58 or 59 of the 64 are hard, whatever the order of float sums.
    assert ((function.soft(learned) - 0.5).abs() > 0.49).float().mean() > 0.8


class Trainable(NamedTuple):
    """One scale that trains."""

    scale: Tensor
    zero_point: Tensor


@frozen
class TrainsScale:
    """d x_hat / d s = q, nothing finer."""

    def init(self, qparams: Affine, x: Tensor, scheme: Scheme) -> Trainable:
        return Trainable(qparams.scale, qparams.zero_point)

    def learned(self, scheme: Scheme) -> tuple[str, ...]:
        return ("scale",)

    def apply(self, params: Trainable, x: Tensor, scheme: Scheme) -> Tensor:
        return quantize(x.detach(), Affine(*params), scheme).detach() * params.scale

    def export(self, params: Trainable, x: Tensor, scheme: Scheme) -> tuple[Tensor, Affine]:
        return quantize(x, Affine(*params), scheme), Affine(*params)


def test_an_inner_function_keeps_its_parameters_and_gradients() -> None:
    """Its learned names are prefixed; its scale gets its own gradient beside v's."""
    function, x = AdaRound(TrainsScale()), random(6, 5, seed=13)
    params = function.init(PARAMS[0], x, S4)
    scale, v = params.inner.scale.clone().requires_grad_(), params.v.clone().requires_grad_()
    value = function.relax(params._replace(inner=params.inner._replace(scale=scale), v=v), x, S4)
    to_scale, to_v = torch.autograd.grad(value.sum(), (scale, v))

    assert function.learned(S4) == ("v", "inner_scale")
    assert AdaRound().learned(S4) == ("v",)
    assert torch.equal(to_scale, quantize(x, PARAMS[0], S4).sum())
    assert to_v.any()


@frozen
class QuantizesTanh:
    """Another tensor than x."""

    def init(self, qparams: Affine, x: Tensor, scheme: Scheme) -> Affine:
        return qparams

    def apply(self, params: Affine, x: Tensor, scheme: Scheme) -> Tensor:
        return Fixed().apply(params, torch.tanh(x), scheme)

    def export(self, params: Affine, x: Tensor, scheme: Scheme) -> tuple[Tensor, Affine]:
        return quantize(torch.tanh(x), params, scheme), params


X = torch.linspace(-2, 2, 9)
ACTIVATION = "Use AdaRound for weights, another function for activations."
REFUSED = [
    (AdaRound(), X, Scheme(E4M3FN), f"AdaRound: found {E4M3FN!r}, wanted an Int format. Use Fixed() for this format."),
    (
        AdaRound(), X[0], S4,
        f"AdaRound: found a tensor of shape (), wanted a weight, whose rounding can be learned. {ACTIVATION}",
    ),
    (
        AdaRound(), X[:0], S4,
        f"AdaRound: found a tensor of shape (0,), wanted a weight, whose rounding can be learned. {ACTIVATION}",
    ),
    (
        AdaRound(QuantizesTanh()), X, S4,
        "AdaRound.inner: found QuantizesTanh(), wanted a function that quantizes x itself. Use Fixed() or Lsq() inside.",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("function", "x", "scheme", "message"), REFUSED, ids=["format", "scalar", "empty", "inner"])
def test_init_refuses_what_has_no_rounding_to_learn(function: AdaRound, x: Tensor, scheme: Scheme, message: str) -> None:
    """By name, with the cure."""
    with pytest.raises(SpecError, match=f"^{re.escape(message)}$"):
        function.init(PARAMS[0], x, scheme)


STRETCH = "AdaRound.zeta, gamma: found {}, wanted gamma < 0 and zeta = 1 - gamma. Use the paper's 1.1 and -0.1."
FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"zeta": 1.2}, STRETCH.format((1.2, -0.1))),
    ({"zeta": 1, "gamma": 0}, STRETCH.format((1, 0))),
    ({"zeta": "1.1"}, "AdaRound.zeta: found '1.1', wanted a finite number. Give such a number."),
    (
        {"inner": QDrop()},
        "AdaRound.inner: found QDrop(inner=Fixed(), p=0.5), wanted a function that trains with `apply`, "
        "without a `relax`. Wrap its inner function instead.",
    ),
    (
        {"inner": DoReFa()},
        "AdaRound.inner: found DoReFa(largest=1.0), wanted a function that quantizes x itself. Use Fixed() or Lsq() inside.",
    ),
    (
        {"inner": Fixed},
        "AdaRound.inner: found <class 'qfunc.functions.fixed.Fixed'>, wanted a frozen value with the methods init, apply, "
        "export. Call it: Fixed().",
    ),
]


@pytest.mark.parametrize(("fields", "message"), FIELDS)
def test_bad_fields_are_refused(fields: dict[str, Any], message: str) -> None:
    """At construction."""
    with pytest.raises(SpecError, match=f"^{re.escape(message)}$"):
        AdaRound(**fields)
