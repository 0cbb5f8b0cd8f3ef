"""Adaptive and dilated pools: the runtimes compute what the emulation does, on codes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import qfunc
from qfunc import targets
from qfunc.errors import DeployError
from qfunc.specs import Target
from tests.lowering.test_rare_forms import runner_of

RUNTIMES = {t.name: t for t in (
    targets.litert, targets.litert_reference, targets.litert_optimised, targets.executorch_xnnpack,
)}  # fmt: skip
OTHERS = {t.name: t for t in (targets.onnxruntime, targets.openvino, targets.tosa, targets.ncnn)}
SIZES = [(7, 3), (3, 7), (4, 4), (2, 5), (9, 4), (5, 11)]


def check(target: Target, nets: dict[object, nn.Sequential]) -> None:
    runner_of(target)
    for name, net in nets.items():
        batches = [torch.randn(n, 3, 9, 11) for n in (2, 2, 3, 1)]
        model = qfunc.calibrate(batches[:2], progress=False)(qfunc.quantize(target)(net.eval()))
        report = qfunc.verify(target)(model, [*batches[1:], 2 * batches[0]])
        in_float = target is targets.openvino  # which quantizes the inputs of convolutions only
        assert report.agreement.startswith("bit-exact" if in_float else "bit-exact: 0 of"), (name, report)
        assert in_float or not report.float_units, (name, report)


@pytest.mark.parametrize("pool", [nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d])
@pytest.mark.parametrize("name", RUNTIMES)
def test_an_adaptive_pool_is_the_runtime_s(name, pool):
    torch.manual_seed(0)
    check(RUNTIMES[name], {size: nn.Sequential(nn.Conv2d(3, 4, 1), pool(size), nn.Conv2d(4, 5, 1)) for size in SIZES})


@pytest.mark.parametrize("name", [*RUNTIMES, *OTHERS])
def test_an_adaptive_maximum_moves_codes(name):
    # A ReLU before it or after it does not change that.
    torch.manual_seed(1)
    nets: dict[object, nn.Sequential] = {}
    for size in (1, (3, 11), (2, 5)):
        pool, relu = nn.AdaptiveMaxPool2d(size), nn.ReLU()
        for order in ((relu, pool), (pool, relu)):
            nets[size, order[0]] = nn.Sequential(nn.Conv2d(3, 4, 1), *order, nn.Conv2d(4, 5, 1))
    check((RUNTIMES | OTHERS)[name], nets)


DILATED = {
    "rows": nn.MaxPool2d((3, 2), 1, 0, (2, 1)), "columns": nn.MaxPool2d((2, 3), 2, (0, 1), (1, 3)),
    "same": nn.MaxPool2d(2, 1, 1, 2), "padded": nn.MaxPool2d(3, 1, 1, 2),
    "strided": nn.MaxPool2d((3, 2), (2, 3), (1, 1), (2, 4)),
    "ceil": nn.MaxPool2d(3, 2, 1, 2, ceil_mode=True), "as the image": nn.MaxPool2d((5, 6), 1, 0, 2),
}  # fmt: skip


@pytest.mark.parametrize("name", [*RUNTIMES, "onnxruntime"])
def test_a_dilated_maximum_moves_codes(name):
    torch.manual_seed(2)
    check((RUNTIMES | OTHERS)[name], {
        (key, relu): nn.Sequential(nn.Conv2d(3, 4, 1), pool, *[nn.ReLU()] * relu, nn.Conv2d(4, 5, 1))
        for key, pool in DILATED.items() for relu in (False, True)
    })  # fmt: skip


def test_too_many_kinds_of_windows_are_refused():
    x, target = torch.randn(2, 3, 16, 16), targets.onnxruntime
    model = qfunc.calibrate([x], progress=False)(
        qfunc.quantize(target)(nn.Sequential(nn.Conv2d(3, 3, 1), nn.AdaptiveAvgPool2d(24)))
    )
    with pytest.raises(DeployError) as caught:
        qfunc.deploy(target)(model)
    found = "found adaptive pooling of (16, 16) to (24, 24), wanted windows of at most 64 kinds"
    assert str(caught.value) == f"op '1': {found}. Resize the input, or pool to a divisor of its size."
