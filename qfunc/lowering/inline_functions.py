"""Replace calls of a model's own functions by their nodes, for runtimes that read no functions."""

from __future__ import annotations

import onnx
from onnx import inliner


def without_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with the nodes of its functions in place of their calls; constants of functions are initializers.

    >>> from onnx import parser
    >>> model = parser.parse_model(
    ...     '''<ir_version: 10, opset_import: ["": 21, "mine": 1]> agraph (float[2] x) => (float[2] y) { y = mine.Twice(x) }
    ...     <opset_import: ["": 21], domain: "mine"> Twice (x) => (y) { k = Constant<value = float {2.0}>() y = Mul(k, x) }'''
    ... )
    >>> [n.op_type for n in without_functions(model).graph.node]
    ['Mul']
    """
    if not model.functions:
        return model
    inlined = inliner.inline_local_functions(model)
    graph = inlined.graph
    constants = [n for n in graph.node if n.op_type == "Constant"]
    for node in constants:
        (value,) = (onnx.helper.get_attribute_value(a) for a in node.attribute)
        tensor = value if isinstance(value, onnx.TensorProto) else _tensor(value)
        tensor.name = node.output[0]
        graph.initializer.append(tensor)
        graph.node.remove(node)
    for index, node in enumerate(graph.node):
        node.name = node.name or f"{node.output[0]}.{index}"
    return inlined


def _tensor(value: float) -> onnx.TensorProto:
    kind = onnx.TensorProto.FLOAT if isinstance(value, float) else onnx.TensorProto.INT64
    return onnx.helper.make_tensor("", kind, (), [value])


__all__ = ["without_functions"]
