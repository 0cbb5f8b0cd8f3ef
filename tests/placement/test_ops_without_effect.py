"""Ops without effect in evaluation, as dropout, between a tensor and its readers: where the quantizer of an input is placed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.specs import Target, edit
from tests.lowering.onnxruntime.test_float_kernels import pytestmark as exact

pytestmark = exact
NBITS = targets.onnxruntime_nbits(4, 32)


class Residual(nn.Module):
    """A norm whose result, after ops without effect, is the input of a linear layer and a summand."""

    def __init__(self, ops: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.linear = nn.LayerNorm(32), nn.Linear(32, 32)
        self.drops = nn.Sequential(*(nn.Dropout(0.1) for _ in range(ops)))

    def forward(self, x: Tensor) -> Tensor:
        y = self.drops(self.norm(x))
        return y + self.linear(y)


@pytest.mark.parametrize("target", [NBITS, targets.onnxruntime, edit.skip(edit.name("add"))(targets.onnxruntime)])
@pytest.mark.parametrize("ops", [0, 1, 2])
def test_a_summand_stays_as_the_target_says(target: Target, ops: int) -> None:
    """BART and BERT have this form.  The law: dropouts do not change what is computed in evaluation."""
    x = torch.randn(4, 5, 32, generator=torch.Generator().manual_seed(1))
    found = []
    for count in (ops, 0):
        calibrated = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(Residual(count).eval()))
        assert qfunc.verify(target)(calibrated, [x]).mismatches == 0
        found.append((calibrated(x), qfunc.emulate(target)(calibrated)(x)))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
