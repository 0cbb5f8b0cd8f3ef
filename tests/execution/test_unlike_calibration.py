"""Inputs and ops that calibration took and a later step cannot: told whole, by the op."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
import pytest
import torch
from attrs import frozen
from torch import Tensor, nn

import qfunc
from qfunc.errors import VerifyError
from qfunc.lowering.runner_support import run_error
from qfunc.targets.runtimes import LiteRtRunner
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
        "wanted inputs that the artifact takes. Give batches of the shapes of the artifact in one call: [n, 2, 8]. "
        "For other sizes, calibrate on batches of several."
    )
    told(lambda: qfunc.verify(TARGET)(free, [longer]), "VerifyError", text)


@frozen
class Stuck:
    """A runner of the user's that raises."""

    def run(self, artifact: Any, inputs: Sequence[Any]) -> list[Any]:
        raise RuntimeError("failed to prepare.")


def test_a_file_that_does_not_run_on_the_shapes_of_calibration() -> None:
    x, longer = (torch.randn(2, 2, 8), torch.randn(1, 5)), (torch.randn(2, 2, 9), torch.randn(1, 5))
    error, shapes = RuntimeError("failed\nto prepare."), [tuple(t.shape) for t in x]
    found = "verify, batch 1: found RuntimeError: failed to prepare., wanted"
    other = [tuple(t.shape) for t in longer]
    rows = (
        (LiteRtRunner(), shapes, "an artifact that LiteRtRunner runs. Report the model and the version of LiteRtRunner's "
         "package: the shapes are right."),
        (Stuck(), shapes, "an artifact that Stuck runs. Correct Stuck.run."),
        (Stuck(), other, "inputs that the artifact takes. Give batches of the shapes of the artifact in one call: "
                            "[n, 2, 8; n, 5]. For other sizes, calibrate on batches of several."),
        (Stuck(), [(7, 2, 8), (7, 5)], "an artifact that Stuck runs. Correct Stuck.run."),
    )  # fmt: skip
    for runner, given, text in rows:
        assert str(run_error(error, runner, given, shapes, "verify, batch 1")) == f"{found} {text}"
    done = qfunc.calibrate([x[0]], progress=False)(qfunc.quantize(TARGET)(nn.Conv1d(2, 3, 3)))
    place = f"{__file__}:{Stuck.run.__code__.co_firstlineno + 1}"
    text = f"verify, batch 1: found RuntimeError: failed to prepare., at {place}, wanted an artifact that Stuck runs. "
    text += "Correct Stuck.run."
    told(lambda: qfunc.verify(TARGET, Stuck())(done, [x[0]]), "VerifyError", text)


class Asks:
    """A runner that calls an installed package with something that it does not take."""

    def run(self, artifact: Any, inputs: Sequence[Any]) -> list[Any]:
        return self.executed(inputs)

    def executed(self, inputs: Sequence[Any]) -> list[Any]:
        return [onnx.load_from_string(b"no model")]


def test_the_line_of_the_user_is_named_where_a_package_raises() -> None:
    x = [torch.randn(2, 3)]
    done = qfunc.calibrate(x, progress=False)(qfunc.quantize(TARGET)(nn.Linear(3, 2)))
    with pytest.raises(VerifyError) as caught:
        qfunc.verify(TARGET, Asks())(done, x)
    assert f", at {__file__}:{Asks.executed.__code__.co_firstlineno + 1}, wanted" in str(caught.value)
