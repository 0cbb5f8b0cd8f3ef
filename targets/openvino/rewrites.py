"""Rewrites of the float model for ops that OpenVINO 2026.4.1 does not load, or computes wrongly by tens of LSB."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from qfunc.lowering.constant_folding import folded
from qfunc.lowering.qdq.qparams import Array
from qfunc.lowering.qdq.reader import REAL, QdqModel
from qfunc.numerics.kernels.requantize import SMALLEST_BIAS
from qfunc.targets.openvino.barriers import insert_barriers
from qfunc.targets.openvino.edits import integers, set_nodes
from qfunc.targets.openvino.pooling import replace_extremes, rewrite_pools
from qfunc.targets.openvino.recurrent import separate_biases, separate_inputs

_LAST = 2**62
_WEIGHTED = {"Conv": 0, "ConvTranspose": 1, "Gemm": 1, "MatMul": -1}
"""The axis of the outputs in the weights; behind the groups for transposed convolutions."""


def rewrite(model: onnx.ModelProto) -> None:
    """Rewrite a float model, whose activations still have their quantizers, in place."""
    _copy_shared_biases(model)
    _add_biases(model)
    _replace_softmax_of_one(model)
    replace_extremes(model)
    _replace_wrapping_pads(model)
    _omit_batch_of_resizes(model)
    rewrite_pools(model)
    _fold_constants(model)
    insert_barriers(model)
    separate_biases(model)
    separate_inputs(model)


def _copy_shared_biases(model: onnx.ModelProto) -> None:
    # OpenVINO fuses a bias with several readers into none of them. It would fuse an addition, which the target expects in
    # one of them, into another convolution, and merge products of one tensor.
    held, seen, products = {i.name: i for i in model.graph.initializer}, set[str](), set[str]()
    for node in model.graph.node:
        if node.op_type in _WEIGHTED:
            products.update(node.output)
        is_sum = node.op_type == "Add" and not products.isdisjoint(node.input)
        for index, name in enumerate(node.input):
            if name not in held or not (is_sum or (node.op_type in _WEIGHTED and index == 2)):
                continue
            if name in seen:
                copied = onnx.TensorProto()
                copied.CopyFrom(held[name])
                copied.name = node.input[index] = f"{node.output[0]}.own_bias"
                model.graph.initializer.append(copied)
            seen.add(name)


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
        model.graph.initializer.append(numpy_helper.from_array(np.full(count, SMALLEST_BIAS, np.float32), name))
        if node.op_type != "MatMul":
            node.input[:] = [*node.input[:2], name]
            continue
        node.output[0] = f"{result}.product"
        nodes.append(helper.make_node("Add", [node.output[0], name], [result], name=name))
    set_nodes(model, nodes)


def _replace_softmax_of_one(model: onnx.ModelProto) -> None:
    # OpenVINO does not load a quantized Softmax along an axis of length 1 in attention. It is 1, as any x clipped to [1, 1].
    source, one = QdqModel(model), "softmax.one"
    found = [n for n in model.graph.node if n.op_type == "Softmax" and source.has_sizes(n.input[0])]
    alone = {n.output[0] for n in found if source.shape(n.input[0], n.name)[int(source.attribute(n, "axis", -1))] == 1}
    if alone:
        model.graph.initializer.append(numpy_helper.from_array(np.array(1, np.float32), one))

    def replaced(n: onnx.NodeProto) -> onnx.NodeProto:
        return helper.make_node("Clip", [n.input[0], one, one], list(n.output), name=n.name) if n.output[0] in alone else n

    set_nodes(model, [replaced(n) for n in model.graph.node])


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
    set_nodes(model, nodes)


def _omit_batch_of_resizes(model: onnx.ModelProto) -> None:
    # OpenVINO reads the size of the batch from tensors inside, and omits the bias of the convolution before one. A Resize
    # of named axes, since opset 18, needs no size of the batch.
    source, named = QdqModel(model), next(o.version for o in model.opset_import if not o.domain) >= 18
    for node in model.graph.node:
        sizes = source.producers.get(node.input[3]) if node.op_type == "Resize" and len(node.input) > 3 else None
        if named and sizes is not None and sizes.op_type == "Concat" and len(sizes.input) > 2:
            axes = range(2, len(sizes.input))
            node.attribute.append(helper.make_attribute("axes", list(axes)))
            del sizes.input[:2]


def _slice(model: onnx.ModelProto, nodes: list[onnx.NodeProto], value: str, name: str, start: int, end: int, axis: int) -> str:
    vectors = [f"{name}.{word}" for word in ("start", "end", "axis")]
    numbers = (start, end, axis)
    model.graph.initializer.extend(integers(v, n) for v, n in zip(vectors, numbers, strict=True))
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
    set_nodes(model, [*sums, *rest])


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
    constants += [integers(f"{entry}.{word}", *numbers) for word, numbers in vectors.items()]
    constants += [
        numpy_helper.from_array(np.array(0, np.float32), f"{zeros}.bound"),
        numpy_helper.from_array(value, f"{name}.one_example"),
    ]
    cut = [helper.make_node("Slice", [anchor, *(f"{entry}.{w}" for w in ("starts", "ends", "axes"))], [entry])] if axes else []
    return [
        *cut,
        helper.make_node("Reshape", [entry if axes else anchor, f"{entry}.shape"], [f"{entry}.row"]),
        helper.make_node("Clip", [f"{entry}.row", f"{zeros}.bound", f"{zeros}.bound"], [zeros]),
        helper.make_node("Add", [zeros, f"{name}.one_example"], [name], name=name),
    ]
