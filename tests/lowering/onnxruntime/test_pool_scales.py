"""Averages that are far smaller than their inputs: ONNX Runtime refuses to run a quantized pool with such scales."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import qfunc
from qfunc import targets

POOLS = {"global": nn.AdaptiveAvgPool2d(1), "window": nn.AvgPool2d((8, 4))}


@pytest.mark.parametrize("name", POOLS)
def test_a_pool_with_a_ratio_of_scales_from_256_on_runs_in_float(name):
    torch.manual_seed(0)
    batches = [torch.randn(2, 4, 8, 4) for _ in range(2)]
    quantized = qfunc.quantize(targets.onnxruntime)(nn.Sequential(nn.InstanceNorm2d(4), POOLS[name]).eval())
    report = qfunc.verify(targets.onnxruntime)(qfunc.calibrate(batches, progress=False)(quantized), batches)
    assert report.float_units[-1] == ("1", "InputRatios does not hold")
    assert not report.agreement.startswith("mismatch"), report
