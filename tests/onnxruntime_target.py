"""The target of ONNX Runtime that this CPU computes exactly."""

from __future__ import annotations

import pytest

from qfunc.specs import Target, edit
from qfunc.targets.onnxruntime.runner import OnnxRuntimeRunner
from qfunc.targets.onnxruntime.target import onnxruntime


def exact_target(reason: str) -> Target:
    """Return `targets.onnxruntime`, with weights of 7 bits if there is a reason why its sums may not be exact.

    AVX2 without VNNI saturates the sums of two products in 16 bits; products with weights of 7 bits do not reach them.

    """
    return edit.weights(bits=7)(onnxruntime) if reason else onnxruntime


REASON = OnnxRuntimeRunner().comparable()
ONNXRUNTIME = exact_target(REASON)
on_vnni = pytest.mark.skipif(bool(REASON), reason=f"of processors with VNNI; {REASON}")
"""Tests of sums that AVX2 saturates, or of kernels that a processor without VNNI has not."""
