"""The profiles of runtimes: every unit has a time under a name of the file, on integers and in float."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from qfunc import calibrate, deploy, quantize, targets
from qfunc.specs import Everything, edit
from qfunc.specs.protocols import ProfilingRunner
from qfunc.transforms.deploy import deployment
from qfunc.transforms.verification.unit_costs import _by_unit, _paths

X = torch.linspace(-1, 1, 3 * 32 * 32).view(1, 3, 32, 32)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.slopes = nn.Conv2d(3, 16, 3, padding=1), nn.PReLU(16)
        self.second, self.head = nn.Conv2d(16, 16, 3, padding=1), nn.Linear(16, 5)

    def forward(self, x):
        x = F.max_pool2d(self.slopes(self.first(x)), 2)
        x = F.relu(self.second(x)) + x
        return F.softmax(self.head(x.mean((2, 3))), -1)


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_each_layer_has_a_time_on_integers_and_in_float(name):
    target = getattr(targets, name)
    runner = target.runtime.runner
    if runner.missing() if hasattr(runner, "missing") else "":
        pytest.skip(f"{name} is not installed")
    assert isinstance(runner, ProfilingRunner)
    model = Net().eval()
    for one in (target, edit.skip(Everything())(target)):
        calibrated = calibrate([X], progress=False)(quantize(one)(model))
        seconds = runner.profiled(deploy(one)(calibrated), [X])
        assert all(0 <= s < 1 for s in seconds.values())
        found = _by_unit(seconds, _paths(deployment(calibrated, one).partition))
        assert {"first", "slopes", "max_pool2d", "second", "head", "softmax"} - found.keys() <= _fused(name)
        assert min(found[layer] for layer in ("first", "second")) > 0


def _fused(name: str) -> set[str]:
    # OpenVINO computes them inside of the convolution before, and counts that one.
    return {"slopes"} if name == "openvino" else set()
