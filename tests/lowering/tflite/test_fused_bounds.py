"""Bounds in one unit with an operator of TensorFlow Lite that has no such activation."""

from __future__ import annotations

import pytest
import torch
from attrs import evolve
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.errors import DeployError
from qfunc.specs import FixedQParams, Fusion, FusionStep, Int, Op, Rule, Scheme, ZeroPoint

WIDE = FixedQParams(Scheme(Int(8), zero_point=ZeroPoint()), scale=0.01, zero_point=0)
"""Codes from -1.28 to 1.27, so that they imply no narrower bounds."""

CHIP = evolve(
    targets.litert,
    name="chip",
    rules=(Rule(Op(("conv", "leaky_relu")), output=WIDE), *targets.litert.rules),
    fusions=(Fusion(Op(("conv", "leaky_relu")), (FusionStep(Op("clip")),)),),
)


class Clipped(nn.Module):
    """A convolution, and a curve whose result is clipped."""

    def __init__(self, low: float, high: float, curve: bool) -> None:
        super().__init__()
        self.conv, self.low, self.high, self.curve = nn.Conv2d(3, 4, 1), low, high, curve

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.leaky_relu(x) if self.curve else self.conv(x)
        return y.clamp(self.low, self.high)


@pytest.mark.parametrize(("low", "high", "curve"), [(-0.2, 0.3, False), (-1.0, 1.0, True)])
def test_bounds_that_the_operator_does_not_have_are_refused(low: float, high: float, curve: bool) -> None:
    x = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    calibrated = qfunc.calibrate([x], progress=False)(qfunc.quantize(CHIP)(Clipped(low, high, curve)))
    with pytest.raises(DeployError, match=r"found the bounds .* in one unit with it, wanted .* Take the fusion out"):
        qfunc.deploy(CHIP)(calibrated)


def test_bounds_that_the_operator_has_are_fused() -> None:
    x = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    calibrated = qfunc.calibrate([x], progress=False)(qfunc.quantize(CHIP)(Clipped(-1.0, 1.0, False)))
    assert "model.tflite" in qfunc.deploy(CHIP)(calibrated).files
