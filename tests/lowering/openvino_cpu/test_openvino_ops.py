"""Ops as Hypothesis draws them, in OpenVINO: each unit, given the runtime's own codes, makes those of the emulation.

    QFUNC_EXAMPLES=1000 python -m pytest -n 0 -s tests/lowering/openvino_cpu/test_openvino_ops.py

draws so many examples of up to eight ops, others every time, and prints how many codes were compared.  Values in float32 are
summed in an order of OpenVINO's own, so that one next to a tie may become the other code: seldom, and by one.
"""

from __future__ import annotations

import importlib.util
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.graph.sites import quantizer_nodes
from qfunc.graph.view import QuantizedModel
from qfunc.placement.partition import Partition
from qfunc.specs import edit
from qfunc.targets.runtimes import OpenVinoRunner
from tests.conformance.modules import Apply
from tests.lowering import drawn_ops as ops
from tests.lowering.drawn_law import EXAMPLES, _calibrated
from tests.lowering.drawn_ops import Drawn, Shape, Side, Trial, move, trials

needs_openvino = pytest.mark.skipif(importlib.util.find_spec("openvino") is None, reason="openvino is not installed")
TARGET = edit.weights(bits=7)(targets.openvino)  # of which every x86-64 computes the same sums


@st.composite
def pool(draw: Any, shape: Shape) -> Drawn:
    """Without what OpenVINO computes otherwise: padding that counts, and a clip from below 0 behind an average."""
    kind, made = draw(ops.pool(shape))
    if kind != "avg_pool":
        return kind, made
    made[0].count_include_pad = False
    return kind, nn.Sequential(made[0], draw(st.sampled_from((nn.Identity(), nn.ReLU(), nn.ReLU6()))))


KINDS = (
    ops.convolution, ops.convolution, ops.transposed, ops.linear, ops.pair, ops.pair, pool, ops.mean, ops.concat, ops.resized,
    ops.curve, ops.softmax, ops.product,
)  # fmt: skip


def read(op: nn.Module) -> nn.Module:
    """An op whose output is quantized, for a mean reads it."""
    return nn.Sequential(op, Apply(lambda y: y.mean(-1)))


def image(model: Any, shape: Shape, seed: int) -> Tensor:
    """Values on every code of the input, and beyond the ends; between two codes FakeQuantize's own float32 decides."""
    (module,) = (s.module for s in quantizer_nodes(model) if s.tensor == "x" and s.module.site.slot == "input")
    return module.scale * torch.randint(-131, 132, shape, generator=torch.Generator().manual_seed(seed))


@needs_openvino
def test_drawn_ops_are_what_openvino_computes():
    units, codes, flipped = Counter[str](), 0, Counter[str]()

    @settings(max_examples=EXAMPLES or 6, derandomize=not EXAMPLES, deadline=None, database=None,
              phases=[Phase.generate], suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(trials(KINDS))
    def law(trial: Trial) -> None:
        nonlocal codes
        layer = nn.Conv2d(trial.shape[1], 2, 1)  # which reads codes of the image, whatever else does
        model = _calibrated(Side([*map(read, trial.ops), layer]).eval(), TARGET, trial.shape)
        move(model, trial.seed, trial.spread)
        report = qfunc.verify(TARGET, OpenVinoRunner())(model, [image(model, trial.shape, trial.seed)])
        found = Partition(QuantizedModel(model), TARGET).units
        units.update(u.kind for u in found if u.integer)
        codes += sum(row.elements for row in report.of("codes"))
        kinds = {u.tensor: u.kind for u in found}
        for row in report.of("alone"):
            assert row.largest_lsb <= 1, f"{trial}: {row}"
            flipped[kinds.get(row.name, "input")] += row.mismatches * (not row.name.startswith("output "))

    law()
    assert flipped.total() <= OpenVinoRunner().flips * codes
    told = f"{units.total():,} units on codes, {codes:,} codes, {flipped.total()} differ by 1"
    print(f"\n{told} ({dict(+flipped)}): {dict(sorted(units.items()))}")
