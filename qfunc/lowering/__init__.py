"""Lowering: from a calibrated model to the artifact that a vendor's toolchain loads."""

from qfunc.lowering.onnxruntime import OnnxRuntime
from qfunc.lowering.qdq import Qdq

__all__ = ["OnnxRuntime", "Qdq"]
