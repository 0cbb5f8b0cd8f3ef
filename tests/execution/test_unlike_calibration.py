"""Inputs and ops that calibration took and a later step cannot: told whole, by the op."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import qfunc
from tests.onnxruntime_target import ONNXRUNTIME
from tests.transforms.test_errors import FORWARD, told

TARGET = ONNXRUNTIME


class Asking(nn.Module):
    """A leaf that asks its input for a value."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x


def test_an_artifact_of_a_leaf_that_asks_for_values() -> None:
    net = nn.Sequential(nn.Linear(4, 4), Asking(), nn.Linear(4, 4))
    done = qfunc.calibrate([torch.randn(3, 4)], progress=False)(qfunc.quantize(TARGET, leaves=Asking)(net))
    text = (
        "deploy, op '1': found RuntimeError: Tensor.item() cannot be called on meta tensors, wanted an op that does not "
        "depend on values, as in an artifact. Write it with torch.where, or quantize the submodules around it: "
        "quantize(target, submodules=('backbone', 'head'))."
    )
    told(lambda: qfunc.deploy(TARGET)(done), "DeployError", text)


def test_inputs_of_another_length() -> None:
    x, longer = torch.randn(2, 2, 8), torch.randn(2, 2, 9)
    fixed = nn.Sequential(nn.Conv1d(2, 3, 3), nn.Flatten(), nn.Linear(18, 4))
    done = qfunc.calibrate([x], progress=False)(qfunc.quantize(TARGET)(fixed))
    refused = "RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x21 and 18x4)"
    text = f"verify, batch 1, op '2': found {refused}, wanted inputs on which the model runs. {FORWARD}"
    told(lambda: qfunc.verify(TARGET)(done, [longer]), "CalibrationError", text)
    with pytest.raises(RuntimeError, match=r"mat1 and mat2 shapes cannot be multiplied \(2x21 and 18x4\)"):
        qfunc.emulate(TARGET)(done)(longer)  # not cut to 18
    free = qfunc.calibrate([x], progress=False)(qfunc.quantize(TARGET)(nn.Conv1d(2, 3, 3)))
    text = (
        "verify, batch 1: found InvalidArgument: [ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Got invalid dimensions for input: "
        "input for the following indices index: 2 Got: 9 Expected: 8 Please fix either the inputs/outputs or the model., "
        "wanted inputs that the artifact takes. Give batches of the shapes that calibration saw; if they are, correct "
        "OnnxRuntimeRunner.run."
    )
    told(lambda: qfunc.verify(TARGET)(free, [longer]), "VerifyError", text)
