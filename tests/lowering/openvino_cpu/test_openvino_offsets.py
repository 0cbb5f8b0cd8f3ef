"""Sums of codes whose offset s z is tiny: OpenVINO takes an offset below 1e-5 for zero, unless a barrier stands before it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import qfunc
from qfunc import targets


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second = (nn.Conv2d(c, 8, 3, padding=1, bias=False) for c in (3, 8))

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        return y + self.second(y)


@pytest.mark.parametrize("factor", [1e-4, 6e-6, 5e-6, 1e-6, 1e-8])
def test_a_sum_of_tiny_codes_is_the_emulation_s(factor: float) -> None:
    pytest.importorskip("openvino")
    x = factor * torch.randn(2, 3, 7, 8, generator=torch.Generator().manual_seed(2))
    target = targets.openvino
    calibrated = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(Residual().eval()))
    report = qfunc.verify(target)(calibrated, [x])
    assert "bit-exact" in report.verdict or report.incomparable, report
    assert report.incomparable or (report.sqnr or 0.0) > 30


@pytest.mark.parametrize("before", ["1 + x", "x + 0.3", "2 * x + 1", "3 * x + 0.5"])
def test_codes_behind_arithmetic_are_clipped_as_reals(before: str) -> None:
    """OpenVINO clips codes to the codes nearest to the bounds, unless a barrier stands before the clip."""
    pytest.importorskip("openvino")

    class Clipped(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = eval(before, {"x": x})
            return y.clamp(-1, 1)

    x, target = torch.randn(6, 6, generator=torch.Generator().manual_seed(2)), targets.openvino
    calibrated = qfunc.calibrate([x], progress=False)(qfunc.quantize(target, (x,))(Clipped()))
    report = qfunc.verify(target)(calibrated, [x])
    assert "mismatch" not in report.verdict, report
