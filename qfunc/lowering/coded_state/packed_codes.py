"""Inputs and outputs of a model that are two codes of 4 bits in a byte, as one code in a byte."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

from qfunc.lowering.coded_state.names import CODES, PACKED, ZERO_POINT_KEY

_SHIFT = 8
"""What is added to a code: bytes hold codes from 0 on."""


def unpack_ends(model: ModelProto) -> ModelProto:
    """Return a model whose inputs and outputs that are packed codes are int8, with the nodes that pack and unpack them.

    Such an end is bytes that are annotated without a zero point.
    """
    notes = {a.tensor_name: a for a in model.graph.quantization_annotation}
    ends = [v for v in (*model.graph.input, *model.graph.output) if v.name in notes]
    packed = [v for v in ends if v.type.tensor_type.elem_type == TensorProto.UINT8 and not _has_zero_point(notes[v.name])]
    if not packed:
        return model
    made = ModelProto()
    made.CopyFrom(model)
    graph, inputs, first = made.graph, {i.name for i in model.graph.input}, list[Any]()
    for name, values in (("one_sixteen", [1, 16]), ("sixteen", [16]), ("eight", [_SHIFT])):
        graph.initializer.append(numpy_helper.from_array(np.array(values, np.int32), f"packed.{name}"))
    for name, shape in (("pairs", [0, 0, 0, -1, 2]), ("rows", [0, 0, 0, -1]), ("last", [-1])):
        graph.initializer.append(numpy_helper.from_array(np.array(shape, np.int64), f"packed.{name}"))
    for value in (*graph.input, *graph.output):
        if value.name not in {v.name for v in packed}:
            continue
        value.type.tensor_type.elem_type = TensorProto.INT8
        value.type.tensor_type.shape.dim[-1].dim_value *= 2
        if value.name in inputs:
            for node in graph.node:
                node.input[:] = [f"{value.name}{PACKED}" if name == value.name else name for name in node.input]
            first += _packing(value.name, f"{value.name}{PACKED}")
            continue
        (end,) = (n for n in graph.node if n.output[0] == value.name)
        codes = f"{end.input[0].removesuffix(PACKED)}{CODES}"
        if not any(codes in n.output for n in graph.node):
            unpacking = _unpacking(end.input[0], codes)
            place = list(graph.node).index(end)
            for k, node in enumerate(unpacking):
                graph.node.insert(place + k, node)
        end.input[0] = codes
    nodes = [*first, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    return made


def _has_zero_point(note: Any) -> bool:
    return any(p.key == ZERO_POINT_KEY for p in note.quant_parameter_tensor_names)


def _chain(steps: list[tuple[str, list[str], dict[str, Any]]], start: str, end: str) -> list[Any]:
    nodes, current = list[Any](), start
    for k, (op, others, attributes) in enumerate(steps):
        output = end if k == len(steps) - 1 else f"{end}.step_{k}"
        nodes.append(helper.make_node(op, [current, *others], [output], name=output, **attributes))
        current = output
    return nodes


def _packing(codes: str, packed: str) -> list[Any]:
    return _chain(
        [
            ("Cast", [], {"to": TensorProto.INT32}),
            ("Add", ["packed.eight"], {}),
            ("Reshape", ["packed.pairs"], {}),
            ("Mul", ["packed.one_sixteen"], {}),
            ("ReduceSum", ["packed.last"], {"keepdims": 0}),
            ("Cast", [], {"to": TensorProto.UINT8}),
        ],
        codes,
        packed,
    )


def _unpacking(packed: str, codes: str) -> list[Any]:
    return _chain(
        [
            ("Cast", [], {"to": TensorProto.INT32}),
            ("Unsqueeze", ["packed.last"], {}),
            ("Div", ["packed.one_sixteen"], {}),
            ("Mod", ["packed.sixteen"], {}),
            ("Sub", ["packed.eight"], {}),
            ("Reshape", ["packed.rows"], {}),
            ("Cast", [], {"to": TensorProto.INT8}),
        ],
        packed,
        codes,
    )
