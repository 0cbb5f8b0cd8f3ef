"""Inputs quantized at run time as ONNX: a function of the model computes what the simulation does; other files refuse it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from attrs import evolve
from torch import nn

import qfunc
from qfunc import specs, targets
from qfunc.errors import DeployError, SpecError
from qfunc.lowering import QdqLowering
from qfunc.lowering.onnxruntime.session import Session
from qfunc.specs import (
    BFLOAT16, FLOAT16, DynamicProduct, Int, Kernel, Op, PerBlock, PerToken, Rule, Scale, Scheme, Target, ZeroPoint,
)  # fmt: skip
from qfunc.targets.runtimes import TfliteLowering, TosaLowering, XnnpackLowering

TOKEN = Scale(PerToken(), dynamic=True)
FORMS = {
    "nearest": Scheme(Int(8), TOKEN, ZeroPoint(nudge="nearest"), division=False),
    "low": Scheme(Int(8, signed=False), TOKEN, ZeroPoint(), division=False),
    "symmetric": Scheme(Int(8, low=-127), TOKEN, division=False),
    "blocks": Scheme(Int(8, low=-127), Scale(PerBlock(-1, 16), format=FLOAT16, dynamic=True), division=False),
    "partial": Scheme(Int(8, low=-127), Scale(PerBlock(-1, 24, partial=True), dynamic=True), division=False),
    "bfloat16": Scheme(Int(6), evolve(TOKEN, format=BFLOAT16), ZeroPoint(), division=False),
}


def target_of(scheme: Scheme, lowering: Any = QdqLowering()) -> Target:
    """A chip of linear layers whose inputs have this scheme."""
    base = targets.executorch_8da4w()
    product = DynamicProduct(scheme, scales="inside")
    rules = (Rule(Op("linear"), input=scheme, weight=base.rules[0].weight),)
    return evolve(
        base, rules=rules, kernels=(Kernel(Op("linear"), product, formats=base.kernels[0].formats),), lowering=lowering
    )


def calibrated(target: Target, x: torch.Tensor) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 3, bias=False))
    return qfunc.calibrate([x], progress=False)(qfunc.quantize(target)(model))


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("shape", [(9, 32), (2, 5, 32)])
def test_the_file_quantizes_as_the_simulation(name, shape):
    x = torch.randn(shape) * 2.0 ** torch.randint(-4, 4, (*shape[:-1], 1)) + 0.3
    x[0] = 0.0
    model = calibrated(target_of(FORMS[name]), x)
    file = qfunc.deploy(target_of(FORMS[name]))(model).files["model.onnx"]
    assert len(onnx.load_from_string(file).functions) == 1
    (found,) = Session(file, optimise=False).run([x])
    wanted = model(x).detach().numpy()
    # One code of an input is 1/255 of its range, a thousandth of an output; the order of float32 sums is 100 times less.
    assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()


@pytest.mark.parametrize("lowering", [TfliteLowering(), TosaLowering()], ids=["tflite", "tosa"])
def test_files_without_a_form_are_refused_before_calibration(lowering):
    with pytest.raises(SpecError, match="a scheme that files store"):
        qfunc.quantize(target_of(FORMS["nearest"], lowering))(nn.Linear(32, 3))


def test_xnnpack_has_one_form():
    target = target_of(FORMS["symmetric"], XnnpackLowering())
    with pytest.raises(DeployError, match="DynamicQuantizeSymmetric"):
        qfunc.deploy(target)(calibrated(target, torch.randn(3, 32)))


def test_the_target_is_json():
    target = targets.executorch_8da4w(64)
    assert qfunc.specs.from_json(specs.to_json(target)) == target
