"""Every op that TOSA has on codes, as Hypothesis draws it: the emulation is what the reference model computes.

    QFUNC_EXAMPLES=1000 python -m pytest -n 0 -s tests/lowering/tosa/test_tosa_ops.py

draws so many examples of up to eight ops, others every time, and prints how many were compared.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import nn

from qfunc import targets
from qfunc.targets.runtimes import TosaRunner
from tests.conformance.modules import Apply
from tests.lowering import drawn_ops as ops
from tests.lowering.drawn_law import held_against, held_at_ties
from tests.lowering.drawn_ops import Drawn, Shape
from tests.lowering.tie_ops import every, few_steps

needs_tosa = pytest.mark.skipif(
    importlib.util.find_spec("tosa_reference_model") is None, reason="tosa-tools is not installed"
)  # fmt: skip


@st.composite
def curve(draw: Any, shape: Shape) -> Drawn:
    """A function of each entry."""
    slope = draw(st.sampled_from((0.01, 0.125, 0.3, 0.9)))
    made = {
        "sigmoid": nn.Sigmoid(), "tanh": nn.Tanh(), "hardswish": nn.Hardswish(), "leaky_relu": nn.LeakyReLU(slope),
        "gelu": nn.GELU(), "gelu, tanh": nn.GELU("tanh"), "elu": nn.ELU(slope), "hardsigmoid": nn.Hardsigmoid(),
        "softplus": nn.Softplus(), "silu": nn.SiLU(),
        "mish": nn.Mish(), "relu": nn.ReLU(), "relu6": nn.ReLU6(), "clip": nn.Hardtanh(-slope, 0.8),
    }  # fmt: skip
    kind = draw(st.sampled_from(sorted(made)))
    return kind, made[kind]


@st.composite
def moved(draw: Any, shape: Shape) -> Drawn:
    """Slices in steps, borders, repetitions."""
    layer = draw(ops.weighted(nn.Conv2d, shape[1], shape[1], 1))
    kind, (by, n) = draw(st.sampled_from(("slice", "reflect", "pad", "expand"))), draw(st.tuples(*[st.integers(1, 3)] * 2))
    calls = {
        "slice": lambda y: y[:, :, n::by, ::n], "reflect": lambda y: F.pad(y, (by, n, n, by), "reflect"),
        "pad": lambda y: F.pad(y, (by, n, 0, by)), "expand": lambda y: y[:, :, :1].expand(-1, -1, by, -1),
    }  # fmt: skip
    return kind, Apply(_after(calls[kind]), layer)


FORMULAS = {
    "y + c": lambda y, c: y + c, "c - y": lambda y, c: c - y, "y * c": lambda y, c: y * c, "y / c": lambda y, c: y / c,
    "bounded": lambda y, c: F.relu6(y * 3 + c), "y ** 2": lambda y, c: y**2, "y ** 3": lambda y, c: y**3,
    "c ** y": lambda y, c: c**y, "-y": lambda y, c: -y, "abs": lambda y, c: y.abs(), "square": lambda y, c: y.square(),
    "guard": lambda y, c: torch.sqrt(y.abs() + 1e-5), "floor": lambda y, c: torch.floor(y / c),
    "ceil": lambda y, c: torch.ceil(y / c), "round": lambda y, c: torch.round(y / c), "sign": lambda y, c: y.sign(),
    "threshold": lambda y, c: F.threshold(y, c, -c), "trunc": lambda y, c: torch.trunc(y / c),
    "frac": lambda y, c: torch.frac(y / c), "exp": lambda y, c: torch.exp(y), "exp2": lambda y, c: torch.exp2(y),
    "expm1": lambda y, c: torch.expm1(y), "log": lambda y, c: torch.log(y.abs() + c),
    "log1p": lambda y, c: torch.log1p(y.abs()), "log2": lambda y, c: torch.log2(y.abs() + c),
    "log10": lambda y, c: torch.log10(y.abs() + c), "rsqrt": lambda y, c: torch.rsqrt(y.abs() + c),
    "reciprocal": lambda y, c: torch.reciprocal(y.abs() + c), "erf": lambda y, c: torch.erf(y),
    "erfc": lambda y, c: torch.erfc(y), "sin": lambda y, c: torch.sin(y), "cos": lambda y, c: torch.cos(y),
    "tan": lambda y, c: torch.tan(y.clamp(-1, 1)), "asin": lambda y, c: torch.asin(torch.tanh(y)),
    "acos": lambda y, c: torch.acos(torch.tanh(y)), "atan": lambda y, c: torch.atan(y), "sinh": lambda y, c: torch.sinh(y),
    "cosh": lambda y, c: torch.cosh(y), "asinh": lambda y, c: torch.asinh(y), "acosh": lambda y, c: torch.acosh(y.abs() + 1.5),
    "atanh": lambda y, c: torch.atanh(y.clamp(-0.5, 0.5)), "celu": lambda y, c: F.celu(y, c), "selu": lambda y, c: F.selu(y),
    "softsign": lambda y, c: F.softsign(y), "softshrink": lambda y, c: F.softshrink(y, c),
    "hardshrink": lambda y, c: F.hardshrink(y, c), "tanhshrink": lambda y, c: F.tanhshrink(y),
    "log_sigmoid": lambda y, c: F.logsigmoid(y),
}  # fmt: skip
"""Functions of each entry that are one TABLE."""
PARTIAL = ("guard", "log", "log1p", "log2", "log10", "rsqrt", "asin", "acos", "acosh", "atanh")
"""Those that are not defined for all numbers."""
SHUFFLES = {
    "repeat": lambda y, n: y.repeat(1, n, 1, 2), "tile": lambda y, n: torch.tile(y, (1, n, 1)),
    "interleave": lambda y, n: y.repeat_interleave(n, 1), "take": lambda y, n: y[:, [0, 0]], "flip": lambda y, n: y.flip(-1, 1),
    "roll": lambda y, n: torch.roll(y, (1, -1), (1, 2)), "one roll": lambda y, n: torch.roll(y, 1, -1),
    "pixel_shuffle": lambda y, n: F.pixel_shuffle(y.repeat(1, 4, 1, 1), 2),
    "pixel_unshuffle": lambda y, n: F.pixel_unshuffle(y.repeat(1, 1, 2, 2), 2),
    "channel_shuffle": lambda y, n: torch.channel_shuffle(y.repeat(1, 2, 1, 1), 2), "amax": lambda y, n: y.amax(1),
    "amin": lambda y, n: y.amin((-1, 1), keepdim=True), "max": lambda y, n: y.max(-1)[0], "unbind": lambda y, n: y.unbind(1)[0],
    "adaptive": lambda y, n: F.adaptive_max_pool2d(y, 1), "stack": lambda y, n: torch.stack([y, y * 0.3], n),
    "maximum": lambda y, n: torch.maximum(y, -y), "minimum": lambda y, n: torch.minimum(y.mean(1, keepdim=True), y),
    "backwards": lambda y, n: y[:, ::2].flip(1),
}  # fmt: skip


def computed(number: float, names: Any = FORMULAS) -> list[Drawn]:
    """The functions, of a convolution's output."""
    return [(n, Apply(_with(FORMULAS[n], number), ops_layer(i))) for i, n in enumerate(names)]


def ops_layer(seed: int) -> nn.Module:
    """A convolution with weights of few steps."""
    return few_steps(nn.Conv2d(10, 10, 1), seed)


def _with(call: Any, number: Any) -> Any:
    return lambda x, inner: call(inner(x), number)


@st.composite
def formula(draw: Any, shape: Shape) -> Drawn:
    """A function with a number, or a move of elements."""
    layer = draw(ops.weighted(nn.Conv2d, shape[1], shape[1], 1))
    if draw(st.booleans()):
        kind = draw(st.sampled_from(sorted(SHUFFLES)))
        return kind, Apply(_with(SHUFFLES[kind], draw(st.integers(1, 3))), layer)
    kind = draw(st.sampled_from(sorted(FORMULAS)))
    return kind, Apply(_with(FORMULAS[kind], draw(st.sampled_from((0.5, 0.1, 2.0, 0.7)))), layer)


def _after(call: Any) -> Any:
    return lambda x, inner: call(inner(x))


KINDS = (
    ops.convolution, ops.convolution, ops.transposed, ops.linear, ops.pair, ops.pair, ops.pool, ops.mean,
    ops.concat, ops.resized, curve, moved, ops.product, formula,
)  # fmt: skip


# Ratios of scales that no calibration gives, which a RESCALE or a sum of 32 bits does not take.
REFUSED = {"sums of int32, below 2^(shift - 1)", "a sum of 32 bits"}


@needs_tosa
def test_drawn_ops_are_what_the_reference_model_computes():
    print(f"\ntosa: {held_against(TosaRunner().run, targets.tosa, REFUSED, KINDS)}")


CURVES = (
    "sigmoid", "tanh", "hardswish", "leaky", "generic leaky", "gelu", "gelu, tanh", "elu", "hardsigmoid", "silu", "softplus",
    "mish", "relu", "relu6", "clip",
)  # fmt: skip


@needs_tosa
def test_halves_become_the_codes_that_the_reference_model_computes():
    print(f"\ntosa: {held_at_ties(TosaRunner().run, targets.tosa, every(*CURVES))}")


@needs_tosa
def test_functions_and_moves_at_halves_are_what_the_reference_model_computes():
    moved = [(n, Apply(_with(call, 2), ops_layer(i))) for i, (n, call) in enumerate(SHUFFLES.items())]
    made = [
        *computed(0.5, [n for n in FORMULAS if n not in PARTIAL]),
        *computed(0.1, ("y + c", "c - y", "y * c", "y / c", "bounded", "celu", "threshold")),
        *moved,
    ]
    print(f"\ntosa: {held_at_ties(TosaRunner().run, targets.tosa, made)}")
