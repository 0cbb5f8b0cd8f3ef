"""Averages that are far smaller than their inputs: ONNX Runtime refuses to run a quantized pool with such scales."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import qfunc
from qfunc import targets


class Mean(nn.Module):
    def forward(self, x):
        return x.mean((2, 3))


POOLS = {
    "global": nn.AdaptiveAvgPool2d(1),
    "window": nn.AvgPool2d((8, 4)),
    "without its axes": Mean(),  # GlobalAveragePool and Squeeze
}


def verified(pool, batches, target=targets.onnxruntime):
    """The report of a pool on ONNX Runtime."""
    quantized = qfunc.quantize(target)(pool.eval())
    return qfunc.verify(target)(qfunc.calibrate(batches, progress=False)(quantized), batches)


@pytest.mark.parametrize("target", [targets.onnxruntime, targets.onnx_qnn], ids=lambda t: t.name)
@pytest.mark.parametrize("name", POOLS)
def test_a_pool_with_a_ratio_of_scales_from_256_on_runs_in_float(name, target):
    torch.manual_seed(0)
    pool = nn.Sequential(nn.InstanceNorm2d(4), POOLS[name], *([nn.Conv2d(4, 2, 1)] if name == "global" else []))
    report = verified(pool, [torch.randn(2, 4, 8, 4) for _ in range(2)], target)
    assert "InputRatios does not hold" in [why for path, why in report.float_units if path in ("1", "1.mean")]
    assert not report.agreement.startswith("mismatch"), report


def test_windows_of_several_sizes_run_in_float_too():
    """Rows a, -a, a - b, b, -b: the windows of 2, 3 and 2 rows have sums of 0, and averages of 1e-4."""
    torch.manual_seed(0)
    a, b = torch.randn(2, 2, 4, 1, 1)
    image = torch.cat([a, -a, a - b, b, -b], 2) + 1e-4
    report = verified(nn.AdaptiveAvgPool2d((3, 1)), [image])
    assert [why for _, why in report.float_units] == ["InputRatios does not hold"]
    assert not report.agreement.startswith("mismatch"), report
