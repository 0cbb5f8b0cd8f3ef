"""The target of ONNX Runtime that this CPU computes exactly."""

from __future__ import annotations

from qfunc.specs import Target, edit
from qfunc.targets.onnxruntime.runner import OnnxRuntimeRunner
from qfunc.targets.onnxruntime.target import onnxruntime


def exact_target(reason: str) -> Target:
    """Return `targets.onnxruntime`, with weights of 7 bits if there is a reason why its sums may not be exact.

    AVX2 without VNNI saturates the sums of two products in 16 bits; products with weights of 7 bits do not reach them.

    """
    return edit.weights(bits=7)(onnxruntime) if reason else onnxruntime


ONNXRUNTIME = exact_target(OnnxRuntimeRunner().comparable())
