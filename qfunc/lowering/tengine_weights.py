"""Weights from which Tengine's tool finds the simulation's codes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from qfunc.lowering.tensors import QuantizedTensor


def spread(model: onnx.ModelProto, site: QuantizedTensor) -> None:
    """Moves the outermost weights of a tensor within their codes, in a model that the caller owns.

    The tool takes s = (max - min) / 255 and z = trunc(-min / s) of what is stored, then round(w / s) + z, and
    quantized weights seldom reach from -z s to (255 - z) s. With a fraction f, min = -(z + f) s has the code 0 and
    max = (255 - f - z) s the code 255 (f < 1/2) or 254 (f > 1/2), 255 s apart: f is 1/4 or 3/4, far from all
    rounding. The tensor is then called `NAME.spread`. Codes that end elsewhere, as learned scales leave them, cannot
    be told, and stay as they are.
    """
    for held in model.graph.initializer:
        if held.name in site.tensors:
            weights = numpy_helper.to_array(held)
            moved = _moved(weights, site.scale[0], site.zero_point[0], site.high)
            if moved is not weights:
                name = f"{held.name}.spread"
                _rename(model, held.name, name)
                held.CopyFrom(numpy_helper.from_array(moved, name))


def _rename(model: onnx.ModelProto, old: str, new: str) -> None:
    # Another name, for these are not the values of the simulation's tensor.
    for node in model.graph.node:
        for index, name in enumerate(node.input):
            if name == old:
                node.input[index] = new


def _moved(weights: Any, scale: float, zero: int, top: int) -> Any:
    codes = np.rint(weights / np.float32(scale)).astype(np.int64) + zero
    low, high = int(codes.min(initial=1)), int(codes.max(initial=0))
    if low != 0 or high < top - 1:
        return weights
    fraction = 0.25 if high == top else 0.75
    moved = np.where(codes == low, -(zero + fraction) * scale, weights)
    return np.where(codes == high, (top - fraction - zero) * scale, moved).astype(np.float32)


__all__ = ["spread"]
