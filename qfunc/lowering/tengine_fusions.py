"""What Tengine's converter fuses: a convolution with the relu or relu6 behind it."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper


def fused(graph: onnx.GraphProto) -> dict[str, str]:
    """Output of a convolution -> output of the relu or relu6 that alone reads it."""
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    constants = {i.name: i for i in graph.initializer}
    outputs, found = {o.name for o in graph.output}, {}
    for node in graph.node:
        after = readers.get(node.output[0], [])
        alone = len(after) == 1 and node.output[0] not in outputs
        if node.op_type == "Conv" and alone and _clamps(after[0], constants):
            found[node.output[0]] = after[0].output[0]
    return found


def _clamps(node: onnx.NodeProto, constants: dict[str, onnx.TensorProto]) -> bool:
    # Clip has its bounds as inputs; a bound that is not given, or not a constant, is not relu6's.
    if node.op_type != "Clip":
        return bool(node.op_type == "Relu")
    bounds = [numpy_helper.to_array(constants[n]) for n in node.input[1:] if n in constants]
    return len(bounds) == 2 and bool(np.array_equal(bounds, [0, 6]))


__all__ = ["fused"]
