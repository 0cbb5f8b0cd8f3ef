"""What the ONNX writer must get right although shapes alone would not tell."""

from __future__ import annotations

import pytest
import torch
from attrs import evolve
from torch import nn

import qfunc
from qfunc import targets
from qfunc.errors import DeployError
from qfunc.specs import Int, Op, Rule, Scheme, ZeroPoint

TARGET = targets.onnxruntime


def test_a_square_linear() -> None:
    """A square weight fits transposed too, so only the values tell."""
    torch.manual_seed(0)
    net, batches = nn.Linear(6, 6), [torch.randn(5, 6)]
    done = qfunc.calibrate(batches, progress=False)(qfunc.quantize(TARGET)(net))
    assert qfunc.verify(TARGET)(done, batches).verdict.startswith("bit-exact: 0 of")


def test_activations_narrower_than_their_type_are_refused() -> None:
    """QuantizeLinear saturates at the ends of uint8, not at 127."""
    narrow = Scheme(Int(8, signed=False, high=127), zero_point=ZeroPoint())
    target = evolve(TARGET, rules=(Rule(Op("linear"), input=narrow), *TARGET.rules))
    done = qfunc.calibrate([torch.randn(5, 4)], progress=False)(qfunc.quantize(target)(nn.Linear(4, 3)))
    with pytest.raises(DeployError, match="the full range of its type, at whose ends QuantizeLinear saturates"):
        qfunc.deploy(target)(done)
