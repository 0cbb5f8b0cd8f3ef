"""Every op that TOSA has on codes, as Hypothesis draws it: the emulation is what the reference model computes.

    QFUNC_EXAMPLES=1000 python -m pytest -n 0 -s tests/lowering/tosa/test_tosa_ops.py

draws so many examples of up to eight ops, others every time, and prints how many were compared.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import nn

from qfunc import targets
from qfunc.lowering import TosaRunner
from tests.conformance.modules import Apply
from tests.lowering import drawn_ops as ops
from tests.lowering.drawn_law import held_against, held_at_ties
from tests.lowering.drawn_ops import Drawn, Shape
from tests.lowering.tie_ops import every

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


def _after(call: Any) -> Any:
    return lambda x, inner: call(inner(x))


KINDS = (
    ops.convolution, ops.convolution, ops.transposed, ops.linear, ops.pair, ops.pair, ops.pool, ops.mean,
    ops.concat, ops.resized, curve, moved, ops.product,
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
