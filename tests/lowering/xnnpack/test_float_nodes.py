"""Ops that XNNPACK has no node for, written as several: ExecuTorch computes what the emulation does."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import qfunc
from qfunc import targets
from qfunc.targets.runtimes import ExecuTorchRunner

TARGET = targets.executorch_xnnpack
pytestmark = pytest.mark.skipif(bool(ExecuTorchRunner().missing()), reason="executorch is not installed")


class Between(nn.Module):
    """An op between two layers, and its result."""

    def __init__(self, op) -> None:
        super().__init__()
        self.first, self.last, self.op = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 5, 1), op

    def forward(self, x):
        y = self.op(self.first(x))
        return self.last(y), y


def _agreement(op, target=TARGET) -> str:
    torch.manual_seed(0)
    batches = [torch.randn(n, 3, 7, 6) * 3 for n in (2, 2, 3, 1)]
    calibrated = qfunc.calibrate(batches[:2], progress=False)(qfunc.quantize(target)(Between(op).eval()))
    return qfunc.verify(target)(calibrated, batches[1:]).agreement


@pytest.mark.parametrize("dims", [(2,), (3,), (1, 2), (1, 2, 3)])
def test_a_flip_moves_codes(dims):
    assert _agreement(lambda y: y.flip(dims)).startswith("bit-exact")


def test_a_gelu_by_tanh_is_computed_between_codes():
    assert _agreement(lambda y: F.gelu(y, approximate="tanh")).startswith("bit-exact")


def test_gelu_by_tanh_is_within_four_roundings():
    # The products of x, 1/2 and 1 + tanh round three times, and tanh itself is within one unit of float32 at 1.
    target = qfunc.specs.edit.skip(qfunc.specs.edit.op("gelu"))(TARGET)
    x = torch.linspace(-6, 6, 240).reshape(1, 2, 10, 12)
    model = nn.Sequential(nn.Conv2d(2, 2, 1), nn.GELU("tanh")).eval()
    model[0].weight.data = torch.eye(2).reshape(2, 2, 1, 1)
    model[0].bias.data.zero_()
    calibrated = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(model))
    (found,) = ExecuTorchRunner().run(qfunc.deploy(target)(calibrated), [x])
    given = qfunc.emulate(target)(qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(model[:1])))(x)
    wanted = F.gelu(given.double(), approximate="tanh")
    assert float(((torch.from_numpy(found) - wanted).abs() / given.abs().clamp(min=1)).max()) <= 4 * 2**-24
