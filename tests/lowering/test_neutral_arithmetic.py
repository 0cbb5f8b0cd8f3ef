"""Arithmetic with a neutral number stays on inputs, which may be of integers; each runtime rounds twice around it.

ONNX Runtime removes x * 1 and joins the quantizers before and after it, unless the file keeps them apart.
"""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import qfunc
from qfunc import targets
from tests.conformance.modules import Apply

RUNTIMES = {t.name: t for t in (
    targets.onnxruntime, targets.litert, targets.executorch_xnnpack, targets.ncnn, targets.tosa,
)}  # fmt: skip
MOVES = [lambda x: x, lambda x: x[:, :2], lambda x: x[:, :, :4], lambda x: F.max_pool2d(x, 2), lambda x: x.flip(3),
         lambda x: x.transpose(2, 3)[:, :, 1:]]  # fmt: skip
NEUTRAL = [lambda x: x * 1.0, lambda x: 1.0 * x, lambda x: x + 0.0, lambda x: 0.0 + x, lambda x: x - 0.0, lambda x: x / 1,
           lambda x: x / (x.size(1) // x.size(1))]  # fmt: skip
READERS = [lambda x: x, torch.relu, lambda x: x.abs(), lambda x: x + 1.5, lambda x: x[:, :1] * x, lambda x: x.mean((2, 3))]


def drawn(draw: random.Random) -> nn.Module:
    """A network that reads parts of its input after moves and neutral arithmetic, in a drawn order."""
    steps = [draw.choice(MOVES), *(draw.choice([*MOVES, *NEUTRAL]) for _ in range(2)), draw.choice(NEUTRAL)]
    reader = draw.choice(READERS)

    def forward(x):
        for step in steps:
            x = step(x)
        return reader(x)

    return Beside(forward)


class Beside(nn.Module):
    """A convolution, so that codes of the whole input exist, and another function of the input."""

    def __init__(self, function):
        super().__init__()
        self.conv, self.other = nn.Conv2d(3, 4, 3), Apply(function)

    def forward(self, x):
        return self.conv(x), self.other(x)


@pytest.mark.parametrize("name", RUNTIMES)
def test_the_runtime_computes_what_the_emulation_does(name):
    target, draw = RUNTIMES[name], random.Random(0)
    if missing := getattr(target.runtime.runner, "missing", str)():
        pytest.skip(missing)
    torch.manual_seed(0)
    for trial in range(12):
        batches = [torch.randn(2, 3, 17, 17) * torch.tensor([0.3, 1.0, 2.0]).view(3, 1, 1) for _ in range(2)]
        quantized = qfunc.quantize(target)(drawn(draw).eval())
        report = qfunc.verify(target)(qfunc.calibrate(batches, progress=False)(quantized), batches)
        assert not report.agreement.startswith("mismatch"), (trial, report)
