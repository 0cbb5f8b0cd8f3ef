"""`rewrite`, by which a vendor applies a pass of his own: to a captured model, before it is quantized."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import qfunc
from qfunc.errors import CalibrationError
from qfunc.graph.matcher import Rewrite, calls
from qfunc.graph.patterns import op, tensor
from qfunc.ops.node import kind_of
from qfunc.passes.rewrite import rewrite
from tests.onnxruntime_target import ONNXRUNTIME


def swish(x: torch.Tensor) -> torch.Tensor:
    return x * x.sigmoid()


X = tensor("x")
SWISH = (Rewrite("swish", op("mul", X, op("sigmoid", X), commutative=True), calls(swish, "x")),)


class Net(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        return y * torch.sigmoid(y)


def test_a_captured_model_is_rewritten() -> None:
    torch.manual_seed(0)
    net, x = Net(3, 2), torch.randn(4, 3)
    found = rewrite(qfunc.capture()(net), SWISH)
    assert [n.target for n in found.graph.nodes if kind_of(n) == "unknown"] == [swish]
    assert torch.equal(found(x), net(x))


@pytest.mark.parametrize("stage", ["quantized", "calibrated"])
def test_a_quantized_model_is_refused(stage: str) -> None:
    made = qfunc.quantize(ONNXRUNTIME)(Net(3, 2))
    if stage == "calibrated":
        made = qfunc.calibrate([torch.randn(4, 3)], progress=False)(made)
    with pytest.raises(CalibrationError) as caught:
        rewrite(made, SWISH)
    assert str(caught.value) == (
        f"rewrite: found a {stage} model, wanted a captured float model. Rewrite the captured model: "
        "qfunc.quantize(target)(my_pass(qfunc.capture()(model)))."
    )
