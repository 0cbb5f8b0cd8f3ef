"""The tests compare with ONNX Runtime by the target that this CPU computes exactly."""

from __future__ import annotations

from qfunc import targets
from qfunc.specs import Everything, Override
from qfunc.targets.onnxruntime.target import onnxruntime
from qfunc.targets.runtimes import OnnxRuntimeRunner
from tests.onnxruntime_target import ONNXRUNTIME, exact_target


def test_weights_have_7_bits_where_sums_may_saturate() -> None:
    assert exact_target("no VNNI").overrides == (*onnxruntime.overrides, Override(Everything(), "weight", bits=7))
    assert exact_target("") == onnxruntime


def test_every_test_sees_the_exact_target() -> None:
    assert targets.onnxruntime is ONNXRUNTIME
    assert (onnxruntime == ONNXRUNTIME) == (not OnnxRuntimeRunner().comparable())
