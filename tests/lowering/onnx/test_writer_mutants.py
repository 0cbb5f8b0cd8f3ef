"""What the ONNX writer must get right although shapes alone would not tell."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import qfunc
from tests.onnxruntime_target import ONNXRUNTIME

TARGET = ONNXRUNTIME


def test_a_square_linear() -> None:
    """A square weight fits transposed too, so only the values tell."""
    torch.manual_seed(0)
    net, batches = nn.Linear(6, 6), [torch.randn(5, 6)]
    done = qfunc.calibrate(batches, progress=False)(qfunc.quantize(TARGET)(net))
    assert qfunc.verify(TARGET)(done, batches).agreement.startswith("bit-exact: 0 of")


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.Hardtanh(0.0, 4.0)], ids=repr)
def test_what_stays_float_stays_float_behind_an_activation_that_the_runtime_drops(activation: nn.Module) -> None:
    """ONNX Runtime quantizes a float weight between DQ and Q, and a Clip that the codes imply does not stand between."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ConvTranspose2d(4, 5, 2, stride=2), activation, nn.AdaptiveAvgPool2d(1))
    net.extend([nn.Flatten(), nn.Linear(5, 3)])  # on integers, so that the pool is, too
    with torch.no_grad():
        net[1].weight.mul_(8)  # so that a quantized weight shows in the codes
    batches = [torch.randn(4, 3, 7, 6)]
    done = qfunc.calibrate(batches, progress=False)(qfunc.quantize(TARGET)(net))
    report = qfunc.verify(TARGET)(done, batches)
    assert report.agreement.startswith("bit-exact: 0 of"), report
