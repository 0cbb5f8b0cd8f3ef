"""Targets: one hardware a file, as data."""

from qfunc.targets.onnxruntime import onnxruntime

__all__ = ["onnxruntime"]
