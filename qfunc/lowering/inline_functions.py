"""Replace calls of a model's own functions by their nodes, for runtimes that read no functions."""

from __future__ import annotations

import onnx
from onnx import inliner

_OWN = "qfunc"


def without_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with the nodes of the user's functions in place of their calls; their constants are initializers.

    The functions of the domain `qfunc` stay: they are quantizers and dequantizers, which the lowerings read as such.

    >>> from onnx import parser
    >>> model = parser.parse_model(
    ...     '''<ir_version: 10, opset_import: ["": 21, "mine": 1]> agraph (float[2] x) => (float[2] y) { y = mine.Twice(x) }
    ...     <opset_import: ["": 21], domain: "mine"> Twice (x) => (y) { k = Constant<value = float {2.0}>() y = Mul(k, x) }'''
    ... )
    >>> [n.op_type for n in without_functions(model).graph.node]
    ['Mul']
    """
    users = [(f.domain, f.name) for f in model.functions if f.domain != _OWN]
    if not users:
        return model
    inlined = inliner.inline_selected_functions(model, users)
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
