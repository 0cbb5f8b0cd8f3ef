"""Edit the nodes and constants of an ONNX model in place."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper


def integers(name: str, *numbers: int) -> onnx.TensorProto:
    """Return a vector of integers as a constant."""
    return numpy_helper.from_array(np.array(numbers, np.int64), name)


def set_nodes(model: onnx.ModelProto, nodes: list[onnx.NodeProto]) -> None:
    """Replace the nodes of a model."""
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(kept)
