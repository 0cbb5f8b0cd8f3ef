"""Norms in ncnn: the runtime computes what PyTorch computes in float64, and verify reports float units."""

from __future__ import annotations

import importlib.util
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.targets.ncnn.runner import NcnnRunner
from tests.conformance.modules import Apply
from tests.lowering.tflite.test_litert import _calibrated

needs_ncnn = pytest.mark.skipif(importlib.util.find_spec("ncnn") is None, reason="ncnn is not installed")
TARGET = targets.ncnn


class Channels(nn.Module):
    """A LayerNorm over the channels of an image, as ConvNeXt has it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels, 1e-6)

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] -> the same."""
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Beside(nn.Module):
    """A norm of the input, beside a linear layer: a target refuses a model in which it quantizes nothing."""

    def __init__(self, norm: nn.Module, entries: int) -> None:
        super().__init__()
        self.norm, self.linear = norm, nn.Linear(entries, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[N, ...] -> the same, [N, 2]."""
        return self.norm(x), self.linear(x.flatten(1))


def _root_mean_square(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-3)


CASES = {
    "rows of a signal": (nn.LayerNorm(7), (5, 7)),
    "rows without weights": (nn.LayerNorm(7, elementwise_affine=False, eps=0.3), (3, 5, 7)),
    "rows without a bias": (nn.LayerNorm(7, bias=False), (3, 5, 7)),
    "two axes": (nn.LayerNorm((5, 7)), (3, 5, 7)),
    "whole examples": (nn.LayerNorm((3, 5, 7)), (3, 5, 7)),
    "a vector": (nn.LayerNorm(9), (9,)),
    "four axes": (nn.LayerNorm(3), (2, 5, 7, 3)),
    "channels": (Channels(6), (6, 5, 7)),
    "groups": (nn.GroupNorm(3, 6, eps=1e-3), (6, 5, 7)),
    "one group": (nn.GroupNorm(1, 6), (6, 5, 7)),
    "groups without weights": (nn.GroupNorm(2, 6, affine=False, eps=0.3), (6, 5, 7)),
    "groups of a signal": (nn.GroupNorm(2, 6), (6, 7)),
    "groups of a vector": (nn.GroupNorm(2, 6), (6,)),
    "instances": (nn.InstanceNorm2d(5, eps=0.3), (5, 3, 7)),
    "instances with weights": (nn.InstanceNorm2d(5, affine=True), (5, 3, 7)),
    "instances of a signal": (nn.InstanceNorm1d(5, affine=True), (5, 7)),
    "root mean square": (Apply(_root_mean_square), (3, 5, 7)),
    "root mean square with weights": (nn.RMSNorm(7, eps=1e-3), (5, 7)),
}


@needs_ncnn
@pytest.mark.parametrize("case", CASES)
def test_a_norm_is_what_pytorch_computes_in_double(case):
    module, shape = CASES[case]
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.uniform_(-2, 2)
    model, batches = _calibrated(Beside(module, math.prod(shape)), TARGET, 2, *shape)
    found, _ = NcnnRunner().run(qfunc.deploy(TARGET)(model), batches[:1])
    want = module.double()(batches[0].double())
    # 1e-5 is 84 float32 steps at 1; an eps or a weight that is left out changes values by more than 1e-3.
    assert found.shape == tuple(want.shape)
    torch.testing.assert_close(torch.from_numpy(found).double(), want, rtol=1e-5, atol=1e-5)


@needs_ncnn
def test_codes_around_norms_are_what_ncnn_computes():
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.norm, self.group = nn.Conv2d(3, 6, 3, padding=1), Channels(6), nn.GroupNorm(2, 6)
            self.wide, self.narrow = nn.Conv2d(6, 12, 1), nn.Conv2d(12, 6, 1)

        def forward(self, x: Tensor) -> Tensor:
            y = self.stem(x)
            return self.group(y + self.narrow(F.relu(self.wide(self.norm(y)))))

    torch.manual_seed(3)
    model, batches = _calibrated(Block(), TARGET, 2, 3, 9, 7)
    report = qfunc.verify(TARGET)(model, batches)
    assert report.agreement.startswith("bit-exact outside "), report
    assert sorted(name for name, _ in report.float_units) == ["group", "norm.norm"]
