"""Averages that lie halfway between two codes: either code is right, and `deploy` refuses neither."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import qfunc
from qfunc import targets
from qfunc.errors import DeployError
from qfunc.graph.sites import quantizer_nodes
from qfunc.lowering import QdqLowering
from qfunc.lowering.onnx import ops
from qfunc.specs import edit
from qfunc.transforms import onnx_check as tensor_by_tensor
from tests.conformance.modules import Apply

TARGET = edit.deploy(QdqLowering())(targets.litert)


def averaged():
    """A pool over four codes, whose average in float32 depends on the order of the sum; of the codes there are few."""
    x = torch.randn(3, 4, 8, 7, generator=torch.Generator().manual_seed(3))
    model = qfunc.calibrate([x], progress=False)(qfunc.quantize(TARGET)(nn.Sequential(nn.AvgPool2d(2))))
    for seat in quantizer_nodes(model):
        seat.module.scale.fill_(2 / 7)
        seat.module.zero_point.fill_(5)
    return model


def test_a_tie_is_no_difference():
    assert "model.onnx" in qfunc.deploy(TARGET)(averaged()).files


def test_without_ties_it_would_be_refused(monkeypatch):
    """So that the test above sees what it is about."""
    monkeypatch.setattr(tensor_by_tensor, "_is_tie", lambda x, module: torch.zeros_like(x, dtype=torch.bool))
    with pytest.raises(DeployError, match="an ONNX model that computes something else than the simulation"):
        qfunc.deploy(TARGET)(averaged())


class EqualRows(nn.Module):
    """A decision between two rows that are equal: the order of a sum in float32 decides."""

    def __init__(self, decide):
        super().__init__()
        self.layer, self.decide = nn.Linear(9, 8), decide

    def forward(self, x):
        """[N, 1, 7, 9] -> the decision along the rows."""
        return self.decide(self.layer(x.unsqueeze(1).expand(-1, 2, -1, -1, -1)))


@pytest.mark.parametrize(
    "decide",
    [
        lambda y: y.argmax(1),
        lambda y: y.argmin(1),
        lambda y: y.topk(1, 1)[1],
        lambda y: y.sort(1)[1],
        lambda y: y.max(1)[1],
        lambda y: y[:, 0] > y[:, 1],
        lambda y: (y >= y.flip(1)).float(),
        lambda y: torch.where(y > y.flip(1), 1.0, -1.0),
    ],
)
@pytest.mark.parametrize("bits", [8, 4])
def test_decisions_between_equal_values_are_no_difference(decide, bits):
    """Either decision is right; all of 56 places are ties."""
    target = edit.weights(bits=bits)(edit.deploy(QdqLowering())(targets.ncnn))
    x = torch.randn(2, 1, 7, 9, generator=torch.Generator().manual_seed(0))
    model = qfunc.calibrate([(x,)], progress=False)(qfunc.quantize(target, (x,))(EqualRows(decide).eval()))
    assert "model.onnx" in qfunc.deploy(target)(model).files


@pytest.mark.parametrize(
    "norm", [nn.InstanceNorm2d(8), nn.GroupNorm(4, 8), nn.LayerNorm((7, 9))], ids=["module", "groups", "rows"]
)
def test_a_norm_of_equal_entries_is_no_difference(norm):
    """It returns the rounding of a mean, times 316, which each runtime sums in its own order."""
    torch.manual_seed(0)
    zero, layer = nn.Conv2d(8, 4, 1, bias=False), nn.Conv2d(4, 8, 1)
    nn.init.zeros_(zero.weight)
    target, x = TARGET, torch.randn(2, 8, 7, 9)
    with pytest.warns(UserWarning, match="one code|zeros only"):
        model = qfunc.calibrate([x], progress=False)(
            qfunc.quantize(target)(nn.Sequential(zero, layer, norm, nn.Hardtanh(-1.0, 1.0)).eval())
        )
    assert "model.onnx" in qfunc.deploy(target)(model).files


def test_another_decision_between_other_values_is_refused(monkeypatch):
    """The ONNX model's values are taken only where they are close to the values of the simulation."""
    model = qfunc.calibrate([torch.randn(4, 9)], progress=False)(
        qfunc.quantize(TARGET)(nn.Sequential(nn.Linear(9, 8), Apply(lambda y: (-y).argmax(1))))
    )
    monkeypatch.setitem(ops.WRITERS, "argmax", ops.WRITERS["argmin"])
    with pytest.raises(DeployError, match="an ONNX model that computes something else than the simulation"):
        qfunc.deploy(TARGET)(model)
