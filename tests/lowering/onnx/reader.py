"""Executes an artifact as its consumer would, node by node, from the description of the format alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

Array = Any
Written = Callable[[str, Array], Array]
Read = Callable[[onnx.NodeProto, int, Array], Array]


def execute(
    model: bytes,
    x: Array,
    written: Written = lambda _, v: v,
    read: Read = lambda _, k, v: v,
    ops: Mapping[str, Any] | None = None,
) -> list[Array]:
    """The outputs; `written` changes each activation that is made, `read` each that a node takes (node, index, value).

    `ops` are functions (node, inputs) for what ONNX's reference does not have.
    """
    proto = onnx.load_from_string(model)
    values = {i.name: numpy_helper.to_array(i) for i in proto.graph.initializer}
    constants = set(values)
    values[proto.graph.input[0].name] = written(proto.graph.input[0].name, np.asarray(x))
    for node in proto.graph.node:
        inputs = [
            None if n == "" else values[n] if n in constants else read(node, k, values[n]) for k, n in enumerate(node.input)
        ]
        own = (ops or {}).get(node.op_type)
        made = [own(node, inputs)] if own else _evaluated(proto, node, inputs)
        values |= {n: written(n, v) for n, v in zip(node.output, made, strict=True)}
    return [values[o.name] for o in proto.graph.output]


def _evaluated(proto: onnx.ModelProto, node: onnx.NodeProto, inputs: list[Array]) -> list[Array]:
    feeds = {n: v for n, v in zip(node.input, inputs, strict=True) if v is not None}
    infos = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for n, v in feeds.items()]
    outputs = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None) for n in node.output]
    graph = helper.make_graph([node], "one", infos, outputs)
    return list(
        ReferenceEvaluator(helper.make_model(graph, opset_imports=proto.opset_import, functions=proto.functions)).run(
            None, feeds
        )
    )


def tensors(model: bytes) -> set[str]:
    """The names of all tensors of a model."""
    graph = onnx.load_from_string(model).graph
    return {o for n in graph.node for o in n.output} | {i.name for i in (*graph.input, *graph.initializer)}
