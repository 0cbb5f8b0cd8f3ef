"""Targets: one hardware a file, as data."""

from qfunc.targets.onnxruntime import onnxruntime
from qfunc.targets.tensorrt import tensorrt

__all__ = ["onnxruntime", "tensorrt"]
