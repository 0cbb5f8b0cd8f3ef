"""Adaptive pools whose windows have several sizes: the runtimes compute what the emulation does, on codes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import qfunc
from qfunc import targets
from qfunc.errors import DeployError

RUNTIMES = {t.name: t for t in (
    targets.litert, targets.litert_reference, targets.litert_optimised, targets.executorch_xnnpack,
)}  # fmt: skip
SIZES = [(7, 3), (3, 7), (4, 4), (2, 5), (9, 4), (5, 11)]


@pytest.mark.parametrize("pool", [nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d])
@pytest.mark.parametrize("name", RUNTIMES)
def test_an_adaptive_pool_is_the_runtime_s(name, pool):
    target = RUNTIMES[name]
    if missing := target.runtime.runner.missing():
        pytest.skip(missing)
    torch.manual_seed(0)
    for size in SIZES:
        net = nn.Sequential(nn.Conv2d(3, 4, 1), pool(size), nn.Conv2d(4, 5, 1)).eval()
        batches = [torch.randn(n, 3, 9, 11) for n in (2, 2, 3, 1)]
        model = qfunc.calibrate(batches[:2], progress=False)(qfunc.quantize(target)(net))
        report = qfunc.verify(target)(model, [*batches[1:], 2 * batches[0]])
        assert report.agreement.startswith("bit-exact: 0 of"), (size, report)
        if pool is nn.AdaptiveAvgPool2d:
            assert not report.float_units


def test_too_many_kinds_of_windows_are_refused():
    x, target = torch.randn(2, 3, 16, 16), targets.onnxruntime
    model = qfunc.calibrate([x], progress=False)(
        qfunc.quantize(target)(nn.Sequential(nn.Conv2d(3, 3, 1), nn.AdaptiveAvgPool2d(24)))
    )
    with pytest.raises(DeployError) as caught:
        qfunc.deploy(target)(model)
    found = "found adaptive pooling of (16, 16) to (24, 24), wanted windows of at most 64 kinds"
    assert str(caught.value) == f"op '1': {found}. Resize the input, or pool to a divisor of its size."
