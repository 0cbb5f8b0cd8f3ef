"""compose: several transforms as one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import qfunc
from qfunc import targets
from qfunc.errors import CalibrationError, SpecError
from tests.onnxruntime_target import ONNXRUNTIME
from tests.transforms.checks import same_state, state
from tests.transforms.nets import network

TARGET = ONNXRUNTIME


def test_composition_is_application_in_order() -> None:
    model, x = network("residual")
    road = qfunc.compose(qfunc.quantize(TARGET), qfunc.calibrate([x]))
    alone = qfunc.calibrate([x])(qfunc.quantize(TARGET)(model))
    assert same_state(state(road(model)), state(alone))
    artifact = qfunc.compose(road, qfunc.deploy(TARGET))(model)
    assert artifact.files == qfunc.deploy(TARGET)(alone).files


def test_the_laws() -> None:
    f, g, h = str.strip, str.upper, str.title
    assert qfunc.compose()("x") == "x"
    assert qfunc.compose(qfunc.compose(f, g), h) == qfunc.compose(f, qfunc.compose(g, h)) == qfunc.compose(f, g, h)
    assert qfunc.compose(f, g)(" a ") == "A"


def test_an_error_says_in_which_step() -> None:
    model, x = network("residual")
    road = qfunc.compose(qfunc.quantize(TARGET), qfunc.deploy(TARGET), qfunc.calibrate([x]))
    with pytest.raises(CalibrationError) as caught:
        road(model)
    assert caught.value.__notes__ == ["in step 2 of 3 of qfunc.compose"]


NO_STEPS: list[tuple[Any, str]] = [(TARGET, "a Target"), (nn.ReLU(), "a ReLU"), (nn.ReLU, "ReLU"), (None, "a NoneType")]


@pytest.mark.parametrize(("step", "found"), NO_STEPS)
def test_what_is_no_transform(step: Any, found: str) -> None:
    with pytest.raises(SpecError) as caught:
        qfunc.compose(qfunc.quantize(TARGET), step)
    assert str(caught.value) == (
        f"compose, step 2: found {found}, wanted a function of a model. "
        "Pass transforms, as qfunc.quantize(target) returns them."
    )


def test_a_tuple_of_models_travels_too() -> None:
    model, x = network("branches")
    both = qfunc.compose(lambda m: tuple(qfunc.quantize(t)(m) for t in (TARGET, targets.tensorrt)), qfunc.calibrate([x]))(model)
    assert len(both) == 2
    assert all(torch.isfinite(m(x)).all() for m in both)
