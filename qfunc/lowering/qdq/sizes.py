"""Types and shapes of the tensors of an ONNX model for one batch size."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import onnx
from onnx import helper, numpy_helper

from qfunc.lowering.qdq.qparams import Array
from qfunc.lowering.windows import set_floor_mode

_MOST_AXES = 16
_MOST_ENTRIES = 1024

SizedType = tuple[int, tuple[int | None, ...] | None]
"""An element type as ONNX numbers it, and a shape, None where unknown."""


def sized_types(model: onnx.ModelProto, batch: int, known: Mapping[str, Array]) -> dict[str, SizedType]:
    """Return the type and shape of each tensor for one batch size, by ONNX's shape inference.

    Args:
        model: The model; it does not change.
        batch: The length of a first axis of the inputs that varies.
        known: The values of tensors whose shapes inference may not find.
    """
    sized = _without_weights(model)
    for info in sized.graph.input:
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            if dim.HasField("dim_param") and axis == 0:
                dim.dim_value = batch
    for info in sized.graph.output:
        info.type.tensor_type.ClearField("shape")
    for node in sized.graph.node:
        if node.op_type == "GroupNormalization":  # onnx 1.23 infers no shape for it
            node.op_type = "Identity"
            del node.attribute[:], node.input[1:]
    _set_sizes(sized.graph, known)
    for name, value in known.items():
        kind = helper.np_dtype_to_tensor_dtype(value.dtype)
        sized.graph.value_info.append(helper.make_tensor_value_info(name, kind, value.shape))
    set_floor_mode(sized)
    graph = onnx.shape_inference.infer_shapes(sized, data_prop=True).graph
    found: dict[str, SizedType] = {}
    for info in (*graph.input, *graph.value_info, *graph.output):
        t = info.type.tensor_type
        dims = tuple(d.dim_value if d.HasField("dim_value") else None for d in t.shape.dim) if t.HasField("shape") else None
        found[info.name] = (t.elem_type, dims)
    for initializer in graph.initializer:
        found[initializer.name] = (initializer.data_type, tuple(initializer.dims))
    return found


def _without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    # A copy whose large constants are values without content: shape inference reads small ones only, and copies all.
    copy, graph = onnx.ModelProto(), model.graph
    for field, value in model.ListFields():
        if field.name == "graph":
            continue
        if isinstance(value, str | bytes | int):
            setattr(copy, field.name, value)
        else:
            getattr(copy, field.name).extend(value)
    copy.graph.name = graph.name
    for name in ("node", "input", "output", "value_info"):
        getattr(copy.graph, name).extend(getattr(graph, name))
    for held in graph.initializer:
        if math.prod(held.dims) <= _MOST_ENTRIES:
            copy.graph.initializer.append(held)
        elif held.name not in {i.name for i in graph.input}:
            copy.graph.input.append(helper.make_tensor_value_info(held.name, held.data_type, held.dims))
    return copy


def _set_sizes(graph: onnx.GraphProto, known: Mapping[str, Array]) -> None:
    # Make vectors of sizes constants, from which inference has the shapes of a Tile or an Expand.
    sizes = {name for name, value in known.items() if value.dtype == np.int64 and value.ndim == 1 and len(value) <= _MOST_AXES}
    kept = [node for node in graph.node if not sizes.issuperset(node.output)]
    if len(kept) < len(graph.node):
        computed = [o for node in graph.node for o in node.output if sizes.issuperset(node.output)]
        graph.initializer.extend(numpy_helper.from_array(known[name], name) for name in computed)
        del graph.node[:]
        graph.node.extend(kept)
