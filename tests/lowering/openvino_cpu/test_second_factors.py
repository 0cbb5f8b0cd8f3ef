"""Second factors of matrix products that a convolution reads, too: OpenVINO computes both on integers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import qfunc
from qfunc import targets


class Shared(nn.Module):
    """Products by a tensor that a convolution reads."""

    def __init__(self, case: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.read, self.last, self.case = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 4, 1), case

    def forward(self, x: Tensor) -> Tensor:
        y = self.read(x)
        match self.case:
            case "transposed":
                return y @ x.transpose(2, 3)
            case "as it is":
                return y.softmax(-1) @ x.transpose(2, 3)
            case "attention":
                return (y @ x.transpose(2, 3)).softmax(-1) @ x
            case "result on integers":
                return self.last(y @ x.transpose(2, 3))
            case _:
                z = self.last(y)
                return z @ y[:, :4].transpose(2, 3)


@pytest.mark.parametrize("case", ["transposed", "as it is", "attention", "result on integers", "of a layer"])
def test_the_convolution_runs_on_integers(case: str) -> None:
    pytest.importorskip("openvino")
    x = torch.randn(2, 8, 12, 8, generator=torch.Generator().manual_seed(0))
    calibrated = qfunc.calibrate([x], progress=False)(qfunc.quantize(targets.openvino)(Shared(case).eval()))
    report = qfunc.verify(targets.openvino, latency=False)(calibrated, [x])
    assert report.incomparable or "bit-exact" in report.verdict, report
