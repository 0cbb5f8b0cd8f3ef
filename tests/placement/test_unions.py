"""Ties of several ops that share tensors: the range of all reaches that of each joined tensor."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import qfunc
from qfunc import targets


class Joined(nn.Module):
    """A tensor of small values and one of large values, joined, and an op that ties its input to its output."""

    def __init__(self, last, large_first):
        super().__init__()
        torch.manual_seed(0)
        self.small, self.large = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1)
        self.large.weight.data *= 20
        self.last, self.large_first = last, large_first

    def forward(self, x):
        parts = self.small(x), self.large(x)
        return self.last(torch.cat(parts[::-1] if self.large_first else parts, 1))


LAST = {
    "avg_pool": lambda y: F.avg_pool2d(y, 2), "clip": lambda y: y.clamp(-50, 50), "pools": lambda y: F.avg_pool2d(F.relu(y), 2),
    "bilinear": lambda y: F.interpolate(y, (3, 3), mode="bilinear"),
}  # fmt: skip


@pytest.mark.parametrize("large_first", [False, True])
@pytest.mark.parametrize("last", LAST)
@pytest.mark.parametrize("name", ["litert", "litert_reference", "executorch_xnnpack", "tosa"])
def test_a_union_stays_one_where_an_op_after_it_takes_the_scale_of_its_input(name, last, large_first):
    model, x = Joined(LAST[last], large_first).eval(), torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(1))
    calibrated = qfunc.calibrate([x], progress=False)(qfunc.quantize(getattr(targets, name))(model))
    with torch.no_grad():
        real, simulated = model(x), calibrated(x)
    assert (simulated - real).abs().max() < real.abs().max() / 20  # 255 steps over the range, and those of inputs and weights
