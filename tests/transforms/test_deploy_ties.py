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
from qfunc.specs import edit
from qfunc.transforms import onnx_check as tensor_by_tensor

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
