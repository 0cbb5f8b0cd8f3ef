"""Pads that crop, also all of an axis before they fill it again, on every runtime."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.specs.protocols import OptionalRunner

PADS = ((2, -1), (2, -2), (-2, 3), (3, -1, 2, -1), (0, 0, 2, -1), (1, 0, -1, 2), (-1, 2, 0, 1))


class Net(nn.Module):
    def __init__(self, pads: tuple[int, ...], value: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.pads, self.value = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 2, 1), pads, value

    def forward(self, x: Tensor) -> Tensor:
        pooled = F.avg_pool2d(self.first(x), (4, 5))  # one row of two entries
        return self.second(F.pad(pooled, self.pads, "constant", self.value))


@pytest.mark.parametrize("name", ["onnxruntime", "litert", "openvino", "ncnn", "tosa", "executorch_xnnpack"])
def test_pads_that_crop(name: str) -> None:
    target: Any = getattr(targets, name)
    runner = target.runtime.runner
    if isinstance(runner, OptionalRunner) and (missing := runner.missing()):
        pytest.skip(missing)
    x = torch.randn(2, 3, 4, 10, generator=torch.Generator().manual_seed(0))
    for pads in PADS:
        for value in (0.0, 0.7):
            calibrated = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(Net(pads, value).eval()))
            report = qfunc.verify(target, latency=False)(calibrated, [x])
            assert report.incomparable or "bit-exact" in report.verdict, (pads, value, report.verdict)
