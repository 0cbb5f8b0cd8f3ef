"""Reductions and functions of each entry in ncnn: the runtime computes what PyTorch computes in float64."""

from __future__ import annotations

import importlib.util

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.targets.ncnn.runner import NcnnRunner
from tests.lowering.tflite.test_litert import _calibrated

needs_ncnn = pytest.mark.skipif(importlib.util.find_spec("ncnn") is None, reason="ncnn is not installed")

CALLS = {
    "amax of channels": lambda x: x.amax(1, keepdim=True),
    "amax of channels, dropped": lambda x: x.amax(1),
    "amax of images": lambda x: x.amax((2, 3)),
    "amin of rows": lambda x: x.amin(3),
    "amin of columns": lambda x: x.amin(2, keepdim=True),
    "amax of examples": lambda x: x.amax((1, 2, 3)),
    "values of max": lambda x: x.max(2).values,
    "prod": lambda x: x.prod(2),
    "amax of a signal": lambda x: x[:, :, 0].amax(1),
    "log": lambda x: torch.log(x.abs() + 0.1),
    "floor": torch.floor,
    "ceil": torch.ceil,
    "round": torch.round,
    "sin": torch.sin,
    "cos": torch.cos,
    "atan": torch.atan,
    "selu": F.selu,
}


class Beside(nn.Module):
    """An op on the input, beside a linear layer: a target refuses a model in which it quantizes nothing."""

    def __init__(self, call) -> None:
        super().__init__()
        self.call, self.linear = call, nn.Linear(6 * 5 * 7, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[N, 6, 5, 7] -> what the op returns, [N, 2]."""
        return self.call(x), self.linear(x.flatten(1))


@needs_ncnn
@pytest.mark.parametrize("name", CALLS)
def test_a_float_layer_is_what_pytorch_computes_in_double(name):
    model, _ = _calibrated(Beside(CALLS[name]), targets.ncnn, 2, 6, 5, 7)
    x = torch.randn(2, 6, 5, 7, generator=torch.Generator().manual_seed(4))
    x[:, :, 0] = torch.arange(-3, 4) / 2  # the ties of the roundings
    found, _ = NcnnRunner().run(qfunc.deploy(targets.ncnn)(model), [x])
    want = CALLS[name](x.double())
    assert found.size == want.numel()
    torch.testing.assert_close(torch.from_numpy(found).reshape(want.shape).double(), want, rtol=1e-5, atol=1e-5)
