"""Rewrites of the float model for ops that OpenVINO 2026.4.1 does not load, or computes wrongly by tens of LSB."""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import helper, numpy_helper

from qfunc.lowering.constant_folding import folded
from qfunc.lowering.openvino.barriers import insert_barriers
from qfunc.lowering.qdq_reader import REAL, Array, QdqModel

__all__ = ["rewrite"]

_SMALLEST_BIAS = np.float32(1e-30)
_LAST = 2**62
_WEIGHTED = {"Conv": 0, "ConvTranspose": 1, "Gemm": 1, "MatMul": -1}
"""The axis of the outputs in the weights; behind the groups for transposed convolutions."""


def rewrite(model: onnx.ModelProto) -> None:
    """Rewrite a float model, whose activations still have their quantizers, in place."""
    _add_biases(model)
    _replace_maxima(model)
    _replace_wrapping_pads(model)
    _fold_constants(model)
    insert_barriers(model)


def _add_biases(model: onnx.ModelProto) -> None:
    # OpenVINO moves the factors s_x s_w of an integer product without a bias to its readers. It does so wrongly if a quantizer
    # and another op read the product, or several ops its quantizer, whose codes are then zeros, and before a Reshape that
    # separates rows. It removes a bias of zeros. A bias of 1e-30 changes no sum of real values.
    source, nodes = QdqModel(model), list[onnx.NodeProto]()
    for node in model.graph.node:
        nodes.append(node)
        axis = _WEIGHTED.get(node.op_type)
        weight, bias = (source.constants.get(name) for name in [*node.input[1:3], "", ""][:2])
        if axis is None or weight is None or weight.ndim < 2 or (len(node.input) > 2 and (bias is None or bias.any())):
            continue
        groups = int(source.attribute(node, "group", 1))
        count = weight.shape[0 if source.attribute(node, "transB", 0) else axis] * (groups if axis == 1 else 1)
        name, result = f"{node.output[0]}.smallest_bias", node.output[0]
        model.graph.initializer.append(numpy_helper.from_array(np.full(count, _SMALLEST_BIAS), name))
        if node.op_type != "MatMul":
            node.input[:] = [*node.input[:2], name]
            continue
        node.output[0] = f"{result}.product"
        nodes.append(helper.make_node("Add", [node.output[0], name], [result], name=name))
    _set_nodes(model, nodes)


def _replace_maxima(model: onnx.ModelProto) -> None:
    # OpenVINO's ReduceMax, which GlobalMaxPool becomes, is wrong before quantized ops. MaxPool is right: over whole images, or
    # over an axis of length n of the shape [N, before, n, after].
    source, nodes = QdqModel(model), list[onnx.NodeProto]()
    for node in model.graph.node:
        nodes.append(node)
        if node.op_type not in ("GlobalMaxPool", "ReduceMax") or not all(
            map(source.has_sizes, (node.input[0], node.output[0]))
        ):
            continue
        shape, result = source.shape(node.input[0], node.name), source.shape(node.output[0], node.name)
        if node.op_type == "GlobalMaxPool":
            node.op_type = "MaxPool"
            node.attribute.append(helper.make_attribute("kernel_shape", shape[2:]))
            continue
        axes = source.constants.get(node.input[1]) if len(node.input) > 1 else source.attribute(node, "axes")
        places = [] if axes is None else sorted(int(a) % len(shape) for a in axes)
        whole = bool(places) and places == list(range(places[0], places[-1] + 1)) and places[0] > 0
        if not whole or source.varies(node.input[0]) != 0 or shape[0] != 1:
            continue
        first, last = places[0], places[-1] + 1
        sizes = (0, math.prod(shape[1:first]), math.prod(shape[first:last]), math.prod(shape[last:]))
        name = node.output[0]
        model.graph.initializer.extend([_integers(f"{name}.rows.shape", *sizes), _integers(f"{name}.shape", 0, *result[1:])])
        nodes[-1:] = [
            helper.make_node("Reshape", [node.input[0], f"{name}.rows.shape"], [f"{name}.rows"], name=f"{name}.rows"),
            helper.make_node("MaxPool", [f"{name}.rows"], [f"{name}.most"], name=f"{name}.most", kernel_shape=[sizes[2], 1]),
            helper.make_node("Reshape", [f"{name}.most", f"{name}.shape"], [name], name=name),
        ]
    _set_nodes(model, nodes)


def _replace_wrapping_pads(model: onnx.ModelProto) -> None:
    # OpenVINO has no Pad of mode "wrap": along each axis, the last entries, all, and the first ones are joined.
    source, nodes = QdqModel(model), list[onnx.NodeProto]()
    for node in model.graph.node:
        if node.op_type != "Pad" or source.attribute(node, "mode") != b"wrap":
            nodes.append(node)
            continue
        pads = [int(p) for p in source.constant(node, 1)]
        rank, value = len(pads) // 2, node.input[0]
        axes = [i for i in range(rank) if pads[i] or pads[rank + i]]
        for axis in axes:
            before, after = pads[axis], pads[rank + axis]
            result = node.output[0] if axis == axes[-1] else f"{node.output[0]}.axis_{axis}"
            ends = [(-before, _LAST)] * bool(before), [(0, after)] * bool(after)
            parts = [_slice(model, nodes, value, f"{result}.{k}", *end, axis) for k, end in enumerate((*ends[0], *ends[1]))]
            joined = [*parts[: len(ends[0])], value, *parts[len(ends[0]) :]]
            nodes.append(helper.make_node("Concat", joined, [result], name=result, axis=axis))
            value = result
        if not axes:
            nodes.append(helper.make_node("Identity", [value], list(node.output), name=node.name))
    _set_nodes(model, nodes)


def _slice(model: onnx.ModelProto, nodes: list[onnx.NodeProto], value: str, name: str, start: int, end: int, axis: int) -> str:
    vectors = [f"{name}.{word}" for word in ("start", "end", "axis")]
    numbers = (start, end, axis)
    model.graph.initializer.extend(_integers(v, n) for v, n in zip(vectors, numbers, strict=True))
    nodes.append(helper.make_node("Slice", [value, *vectors], [name], name=name))
    return name


def _fold_constants(model: onnx.ModelProto) -> None:
    # What only constants and sizes determine is a constant, also after quantizers. If it has the batch axis, it is a sum
    # with zeros of that size: OpenVINO joins an Expand of a computed size wrongly with an integer tensor.
    source, values = folded(model, kept=())
    values = {name: value for name, value in values.items() if value.dtype == np.float32}
    reads = {name for node in model.graph.node if node.output[0] not in values for name in node.input if name in values}
    anchor = next((i.name for i in model.graph.input if source.kind(i.name) == REAL and source.varies(i.name) == 0), None)
    constants, sums = list[onnx.TensorProto](), list[onnx.NodeProto]()
    for name in sorted(reads):
        if not source.has_sizes(name) or (source.varies(name) is not None and (anchor is None or source.varies(name))):
            continue
        if source.varies(name) is None:
            constants.append(numpy_helper.from_array(values[name], name))
        elif anchor is not None and len(values[name]) == 1:
            sums += _sum_with_zeros(constants, anchor, len(source.shape(anchor, anchor)), values[name], name)
    done = {c.name for c in constants} | {n.output[0] for n in sums}
    rest = [node for node in model.graph.node if node.output[0] not in done]
    model.graph.initializer.extend(constants)
    _set_nodes(model, [*sums, *rest])


def _sum_with_zeros(constants: list[onnx.TensorProto], anchor: str, rank: int, value: Array, name: str) -> list[onnx.NodeProto]:
    # One entry of each example of the input, clipped to 0, plus the value.
    entry, zeros = f"{name}.entry", f"{name}.zeros"
    axes = range(1, rank)
    vectors = {
        "starts": [0 for _ in axes],
        "ends": [1 for _ in axes],
        "axes": axes,
        "shape": [-1, *(1 for _ in value.shape[1:])],
    }
    constants += [_integers(f"{entry}.{word}", *numbers) for word, numbers in vectors.items()]
    constants += [
        numpy_helper.from_array(np.array(0, np.float32), f"{zeros}.bound"),
        numpy_helper.from_array(value, f"{name}.value"),
    ]
    cut = [helper.make_node("Slice", [anchor, *(f"{entry}.{w}" for w in ("starts", "ends", "axes"))], [entry])] if axes else []
    return [
        *cut,
        helper.make_node("Reshape", [entry if axes else anchor, f"{entry}.shape"], [f"{entry}.row"]),
        helper.make_node("Clip", [f"{entry}.row", f"{zeros}.bound", f"{zeros}.bound"], [zeros]),
        helper.make_node("Add", [zeros, f"{name}.value"], [name], name=name),
    ]


def _integers(name: str, *numbers: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(numbers, np.int64), name)


def _set_nodes(model: onnx.ModelProto, nodes: list[onnx.NodeProto]) -> None:
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(kept)
