"""Means whose output is finer than their input: the runtime's float32 constant of both zero points is part of the result."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import qfunc
from qfunc import targets
from qfunc.graph.sites import quantizer_nodes
from tests.lowering.test_rare_forms import runner_of

RUNTIMES = {t.name: t for t in (
    targets.litert, targets.litert_reference, targets.litert_optimised, targets.executorch_xnnpack,
)}  # fmt: skip


@pytest.mark.parametrize("ratio", [0.02, 1.3, 2.5, 7.0, 20.0, 60.0, 2000.0, 6e4, 3e7, 1e8, 1e9])
@pytest.mark.parametrize("name", RUNTIMES)
def test_a_mean_is_the_runtime_s_at_every_ratio_of_scales(name, ratio):
    target, zeros = RUNTIMES[name], ((3, 25), (-128, 25), (100, -100))
    runner_of(target)
    torch.manual_seed(0)
    x = torch.randint(-9, 10, (64, 4, 12, 8)).float()
    x[:, 0] -= x[:, 0].flip(1, 2)  # with the sum 0
    model = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(nn.AdaptiveAvgPool2d(1)))
    given, made = (seat.module for seat in quantizer_nodes(model))
    for zero_in, zero in zeros:
        for module, scale, zero_point in ((given, 1.0, zero_in), (made, 1 / ratio, zero)):
            module.scale.fill_(scale)
            module.zero_point.fill_(zero_point)
        report = qfunc.verify(target)(model, [x])
        assert report.agreement.startswith("bit-exact: 0 of"), (zero_in, zero, report)
