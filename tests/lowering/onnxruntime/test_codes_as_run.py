"""Codes that are read from the optimised graph, against the codes that ONNX Runtime returns by their original names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qfunc
from qfunc.lowering.onnxruntime.session import Session
from qfunc.targets.onnxruntime import optimized_model as module
from qfunc.targets.onnxruntime.optimized_model import OptimizedModel, optimized_model
from tests.onnxruntime_target import ONNXRUNTIME


class Net(nn.Module):
    """Two convolutions around an op."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.between = nn.Conv2d(4, 4, 3, padding=1), nn.LazyConv2d(3, 1), between

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.between(self.first(x)))


IN_PLACE: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "residual": lambda x: x + F.max_pool2d(torch.relu(x), 3, 1, 1),
    "concat": lambda x: torch.cat([x, torch.sigmoid(x)], 1),
    "silu": lambda x: F.pad(F.silu(x), (1, 0, 2, 1)),
}
OTHERS: dict[str, Callable[[Tensor], Tensor]] = {
    "split": lambda x: torch.cat([x.chunk(2, 1)[1].relu(), x.chunk(2, 1)[0]], 1),
    "reshape": lambda x: x.flatten(2).relu().unflatten(2, (5, 6)),
    "transpose": lambda x: x.transpose(2, 3).relu(),
    "shuffle": lambda x: x.unflatten(1, (2, 2)).transpose(1, 2).flatten(1, 2) + x,
    "norm of the channels": lambda x: F.layer_norm(x.permute(0, 2, 3, 1), (4,)).permute(0, 3, 1, 2) + x,
    "mean of the channels": lambda x: x * x.mean(1, keepdim=True).sigmoid(),
    "stack": lambda x: torch.stack([x, x.relu()], 1).flatten(1, 2),
}
X = torch.randn(2, 4, 5, 6, generator=torch.Generator().manual_seed(0))


def deployed(net: nn.Module) -> bytes:
    torch.manual_seed(0)
    net(X)
    calibrated = qfunc.calibrate([X], progress=False)(qfunc.quantize(ONNXRUNTIME)(net.eval()))
    return bytes(qfunc.deploy(ONNXRUNTIME)(calibrated).files["model.onnx"])


def by_name(model: bytes, view: OptimizedModel) -> dict[str, Any]:
    """Optimise the model with its tensors of codes as outputs, which restores their layouts."""
    exposed = onnx.load_from_string(model)
    exposed.graph.output.extend(onnx.ValueInfoProto(name=name) for name in sorted(view.tensors))
    session = Session(exposed.SerializeToString())
    return dict(zip(session.outputs, session.run([X]), strict=True))


@pytest.mark.parametrize("name", [*IN_PLACE, *OTHERS])
def test_layouts_are_those_of_the_original_model(name: str) -> None:
    model = deployed(Net((IN_PLACE | OTHERS)[name]))
    view = optimized_model(model)
    wanted, found = by_name(model, view), view.as_run.run([X])
    assert set(found) <= view.tensors
    assert view.exposed is not None or set(found) == view.tensors
    assert name in OTHERS or view.exposed is None
    assert [q for q in found if not np.array_equal(found[q], wanted[q])] == []
    assert all(np.array_equal(view.run([X])[1][q], wanted[q]) for q in view.tensors)


def test_onnx_runtime_optimises_a_network_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its optimisation takes more than twice the time for twice the ops."""
    optimised = []

    def session(model: bytes, **options: Any) -> Session:
        optimised.append(options.get("optimise", True))
        return Session(model, **options)

    monkeypatch.setattr(module, "Session", session)
    optimized_model(deployed(Net(IN_PLACE["residual"])))
    assert optimised == [True]
