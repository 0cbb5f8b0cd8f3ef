"""Functions with steps next to a step: float32 and float64 take different sides, and no mismatch is reported for it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import qfunc
from qfunc import targets

STEPS = {
    "eq": lambda y: (y == y.amax(1, keepdim=True)).float() * y,
    "floor": lambda y: y.floor() * y,
    "floor_divide": lambda y: torch.floor_divide(y, 0.7) * y,
    "frac": lambda y: torch.frac(y) * y,
    "ge": lambda y: (y >= 0.7).float() * y,
    "remainder": lambda y: torch.remainder(y, 0.7) + y,
    "round": lambda y: (y * 0.5).round() * y,
}


class Steps(nn.Module):
    """The identity as a linear layer, and a function of its codes."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.linear = kind, nn.Linear(4, 4)
        self.linear.weight.data, self.linear.bias.data = torch.eye(4), torch.zeros(4)

    def forward(self, x):
        return STEPS[self.kind](self.linear(x))


@pytest.mark.parametrize("largest", [17.85, 8.925], ids=str)
@pytest.mark.parametrize("kind", STEPS)
def test_a_step_within_one_rounding_is_within_its_bound(kind, largest):
    """The scales are 0.0875 and 0.04375, so that some codes are next to whole numbers and to multiples of 0.7."""
    torch.manual_seed(3)
    x = (torch.randint(-40, 120, (64, 4)) * (1.25 * largest / 255)).clamp(-largest / 4, largest)
    x[0, 0], x[0, 1] = largest, -largest / 4
    calibrated = qfunc.calibrate([x], progress=False)(qfunc.quantize(targets.onnxruntime)(Steps(kind).eval()))
    report = qfunc.verify(targets.onnxruntime)(calibrated, [x])
    assert "mismatch" not in report.verdict
