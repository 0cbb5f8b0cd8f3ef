"""Maxima and minima over axes: LiteRT computes what the emulation does, to the bit, because nothing is rounded."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import qfunc
from qfunc import targets
from qfunc.lowering import LiteRtRunner
from tests.lowering.tflite.test_litert import _calibrated, needs_litert


class Extreme(nn.Module):
    """A convolution and its maximum or minimum over some axes."""

    def __init__(self, op, axes: tuple[int, ...], keep: bool):
        super().__init__()
        self.conv, self.op, self.axes, self.keep = nn.Conv2d(3, 5, 3), op, axes, keep

    def forward(self, x):
        return self.op(self.conv(x), self.axes, self.keep)


@needs_litert
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("axes", [(1,), (2,), (3,), (-1, 1), (2, 3), (1, 2), (1, 2, 3)])
@pytest.mark.parametrize("op", [torch.amax, torch.amin])
def test_an_extreme_over_axes_is_litert_s(op, axes, keep):
    target = targets.litert
    model, batches = _calibrated(Extreme(op, axes, keep), target, 2, 3, 7, 9)
    x = batches[2]
    (found,) = LiteRtRunner().run(qfunc.deploy(target)(model), [x])
    wanted = qfunc.emulate(target)(model)(x)
    assert found.shape == tuple(wanted.shape)
    assert torch.equal(torch.from_numpy(found), wanted)
