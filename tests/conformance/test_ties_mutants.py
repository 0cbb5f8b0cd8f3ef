"""Ties of rounding in the real runtime: powers of two as scales and odd zero points, where R(v + z) is not R(v) + z."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import qfunc
from qfunc import targets
from qfunc.graph.sites import quantizer_nodes
from qfunc.numerics import Affine
from tests.conformance.modules import Apply
from tests.conformance.running import RUNNER

CASES = {
    "mul": lambda x: x * x[:, :, :1],
    "mul of one": lambda x: x * x,
    "add": lambda x: x + x[:, :, :1],
    "matmul": lambda x: x @ x.transpose(-2, -1),
    "average": lambda x: F.avg_pool2d(x, 2),
    "global average": lambda x: x.mean((2, 3)),
    "leaky relu": lambda x: F.leaky_relu(x, 0.5),
    "concat": lambda x: torch.cat([x, x], 1),
}


@pytest.mark.parametrize("zero", [100, 101])
@pytest.mark.parametrize("name", CASES)
def test_ties_are_rounded_as_the_runtime_rounds_them(name: str, zero: int) -> None:
    """Sums of multiples of 1/8 in codes of 1/4, products of them in codes of 1/32: every second one is a half."""
    x = torch.randint(-40, 40, (2, 3, 8, 8), generator=torch.Generator().manual_seed(1)) / 8
    done = qfunc.calibrate([x], progress=False)(qfunc.quantize(targets.onnxruntime)(Apply(CASES[name])))
    for seat in quantizer_nodes(done):
        output = 1 / 32 if "mul" in name else 1 / 4
        scale = 1 / 8 if seat.module.site.slot == "input" else output
        seat.module.set_qparams(Affine(torch.tensor(scale), torch.tensor(float(zero))))
    report = qfunc.verify(targets.onnxruntime, RUNNER)(done, [x])
    assert report.agreement.startswith("bit-exact: 0 of"), report


def test_a_conv_and_a_linear_layer_round_ties_as_the_runtime_does() -> None:
    """Weights that are whole codes of scale 1/4, so that every accumulator over 2 is a half or whole."""
    for net, shape in ((nn.Conv2d(3, 4, 3, bias=False), (2, 3, 8, 8)), (nn.Linear(8, 5, bias=False), (6, 8))):
        generator = torch.Generator().manual_seed(2)
        with torch.no_grad():
            net.weight.copy_(torch.randint(-4, 5, net.weight.shape, generator=generator) / 4)
        x = torch.randint(-8, 8, shape, generator=generator) / 8
        done = qfunc.calibrate([x], progress=False)(qfunc.quantize(targets.onnxruntime)(net))
        for seat in quantizer_nodes(done):
            held = {"weight": (0.25, 0), "input": (0.125, 101), "output": (0.0625, 101)}[seat.module.site.slot]
            seat.module.set_qparams(Affine(*(torch.full(seat.module.scale.shape, float(v)) for v in held)))
        report = qfunc.verify(targets.onnxruntime, RUNNER)(done, [x])
        assert report.agreement.startswith("bit-exact: 0 of"), report
