"""Ops between convolutions with a clamp after them, on every runtime: what is fused or left out is predicted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qfunc
from qfunc import targets
from qfunc.specs.protocols import OptionalRunner

OPS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda a: F.softmax(a, -1), "sigmoid": torch.sigmoid, "leaky_relu": F.leaky_relu, "mul": lambda a: a * a,
    "add": lambda a: a + 2 * a, "max_pool": lambda a: F.max_pool2d(a, 3, 1, 1), "avg_pool": lambda a: F.avg_pool2d(a, 3, 1, 1),
    "transpose": lambda a: a.transpose(2, 3), "tanh": torch.tanh, "hardswish": F.hardswish,
    "concat": lambda a: torch.cat([a[:, :2], a[:, 2:]], 1), "amax": lambda a: a.amax(2, keepdim=True),
    "matmul": lambda a: a @ a.transpose(2, 3), "mean": lambda a: a.mean((2, 3), keepdim=True), "gelu": F.gelu,
    "resize": lambda a: F.interpolate(a, scale_factor=2),
}  # fmt: skip
CLAMPS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu, "relu6": F.relu6, "within": lambda y: y.clamp(0.0, 0.5), "beyond": lambda y: y.clamp(-100, 100),
    "around 0": lambda y: y.clamp(-0.3, 0.4),
}  # fmt: skip
RUNTIMES = ("onnxruntime", "litert", "openvino", "ncnn", "tosa", "executorch_xnnpack")


class Net(nn.Module):
    def __init__(self, op: Callable[[Tensor], Tensor], clamp: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Conv2d(1, 4, 1, bias=False), nn.Conv2d(4, 3, 1)
        self.op, self.clamp = op, clamp

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.clamp(self.op(self.first(x))))


def verdict(name: str, model: nn.Module, x: Tensor) -> str:
    target: Any = getattr(targets, name)
    runner = target.runtime.runner
    if isinstance(runner, OptionalRunner) and (missing := runner.missing()):
        pytest.skip(missing)
    calibrated = qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(model.eval()))
    report = qfunc.verify(target, latency=False)(calibrated, [x])
    return "not comparable" if report.incomparable else report.verdict


@pytest.mark.parametrize("name", RUNTIMES)
@pytest.mark.parametrize("clamp", CLAMPS)
def test_a_clamp_after_a_softmax(clamp: str, name: str) -> None:
    x = 5 * torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    assert (found := verdict(name, Net(OPS["softmax"], CLAMPS[clamp]), x)) == "not comparable" or "bit-exact" in found, found


@pytest.mark.thorough
@pytest.mark.parametrize("name", RUNTIMES)
@pytest.mark.parametrize("op", OPS)
def test_clamps_after_ops(op: str, name: str) -> None:
    x = 5 * torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    for clamp, function in CLAMPS.items():
        found = verdict(name, Net(OPS[op], function), x)
        assert found == "not comparable" or "bit-exact" in found, (clamp, found)


class Joined(nn.Module):
    """A softmax whose output shares its qparams with another tensor."""

    def __init__(self, join: Callable[[Tensor, Tensor], Tensor], channels: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.join = nn.Conv2d(1, 4, 1, bias=False), nn.Conv2d(channels, 3, 1), join

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.join(F.softmax(self.first(x), -1), self.first(x)))


@pytest.mark.parametrize("name", RUNTIMES)
@pytest.mark.parametrize("join", ["concat", "minimum", "maximum"])
def test_a_softmax_that_shares_its_qparams(join: str, name: str) -> None:
    x = 5 * torch.randn(2, 1, 8, 16, generator=torch.Generator().manual_seed(0))
    functions: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "concat": lambda a, b: torch.cat([a, b], 1), "minimum": torch.minimum, "maximum": torch.maximum,
    }  # fmt: skip
    found = verdict(name, Joined(functions[join], 8 if join == "concat" else 4), x)
    assert found == "not comparable" or "bit-exact" in found, found
