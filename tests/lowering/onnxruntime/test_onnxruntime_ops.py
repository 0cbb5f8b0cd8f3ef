"""Every op that ONNX Runtime runs on codes, as Hypothesis draws it: units are as predicted, and not one code differs.

    QFUNC_EXAMPLES=1000 python -m pytest -n 0 -s tests/lowering/onnxruntime/test_onnxruntime_ops.py

draws so many examples of up to eight ops, others every time, and prints how many were compared.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import nn

import qfunc
from qfunc import targets
from qfunc.graph.view import QuantizedModel
from qfunc.placement.partition import Partition
from qfunc.targets.runtimes import OnnxRuntimeRunner
from tests.conformance.modules import Apply
from tests.lowering import drawn_ops as ops
from tests.lowering.drawn_law import EXAMPLES, _calibrated, at_ties
from tests.lowering.drawn_ops import Drawn, Shape, Side, Trial, image, move, trials
from tests.lowering.tie_ops import curves, joined, pairs, pools, products, resized


@st.composite
def curve(draw: Any, shape: Shape) -> Drawn:
    """A function of each entry of what a convolution makes: by tables of codes, or in float32 as MLAS computes it."""
    made = {
        "sigmoid": nn.Sigmoid(), "leaky_relu": nn.LeakyReLU(draw(st.sampled_from((0.01, 0.125, 0.3, 0.9)))), "relu": nn.ReLU(),
        "hardswish": nn.Hardswish(), "hardsigmoid": nn.Hardsigmoid(), "silu": nn.SiLU(), "tanh": nn.Tanh(), "gelu": nn.GELU(),
    }  # fmt: skip
    kind, c = draw(st.sampled_from(sorted(made))), shape[1]
    return kind, nn.Sequential(draw(ops.weighted(nn.Conv2d, c, c, 1)), made[kind], draw(ops.weighted(nn.Conv2d, c, 3, 1)))


@st.composite
def pair(draw: Any, shape: Shape) -> Drawn:
    """A sum or a product of two tensors that broadcast, in either order."""
    c, kind = shape[1], draw(st.sampled_from(("add", "mul")))
    other = draw(st.sampled_from((nn.Identity(), nn.AdaptiveAvgPool2d(1), nn.AdaptiveAvgPool2d((None, 1)), nn.Sigmoid())))
    call, swapped = (torch.add, torch.mul)[kind == "mul"], draw(st.booleans())
    both = Apply(lambda x, layer, a: call(a(x), layer(x)) if swapped else call(layer(x), a(x)),
                 draw(ops.weighted(nn.Conv2d, c, c, 1)), other)  # fmt: skip
    return kind, nn.Sequential(both, draw(ops.ACTIVATIONS))


KINDS = (
    ops.convolution, ops.convolution, ops.linear, pair, pair, ops.pool, ops.concat, ops.resized, curve, ops.softmax,
    ops.product,
)  # fmt: skip


def drawn_ops_law(target: Any, runner: Any, examples: int) -> str:
    """What was compared; fails where a code differs, or a unit is not as predicted."""
    units, left, elements = Counter[str](), Counter[str](), 0

    @settings(max_examples=examples, derandomize=not EXAMPLES, deadline=None, database=None,
              phases=[Phase.generate], suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(trials(KINDS))
    def law(trial: Trial) -> None:
        nonlocal elements
        layer = nn.Conv2d(trial.shape[1], 2, 1)  # at least one unit on codes
        model = _calibrated(Side([*trial.ops, layer]).eval(), target, trial.shape)
        move(model, trial.seed, trial.spread)
        report = qfunc.verify(target, runner)(model, [image(model, trial.shape, trial.seed)])
        assert report.agreement.startswith("bit-exact"), f"{trial}: {report}"
        found = Partition(QuantizedModel(model), target).units
        units.update(u.kind for u in found if u.integer)
        left.update(u.kind for u in found if not u.integer)
        elements += report.elements

    law()
    assert units.total() > left.total()
    told = f"{units.total():,} units on codes, {elements:,} elements, 0 differ"
    return f"{told}: {dict(sorted(units.items()))}, in float: {dict(sorted(left.items()))}"


@pytest.mark.thorough
def test_drawn_ops_are_what_the_runtime_computes():
    print(f"\n{drawn_ops_law(targets.onnxruntime, OnnxRuntimeRunner(threads=1), EXAMPLES or 10)}")


@pytest.mark.thorough
def test_halves_become_the_codes_that_the_runtime_computes():
    named = [op for op in products() if op[0] not in ("transposed", "wide")]
    named += [*pairs(("add", "mul")), *pools(), *resized(), *joined()]
    named += [*curves("sigmoid", "leaky", "steep", "generic leaky", "softmax", "softmax of channels", "relu", "gelu")]
    model, x = at_ties(targets.onnxruntime, named, 1)
    report = qfunc.verify(targets.onnxruntime, OnnxRuntimeRunner(threads=1))(model, [x])
    assert report.agreement.startswith("bit-exact"), report
    print(f"\n{report.verdict}")
