"""Rewrites of pools that OpenVINO 2026.4.1 does not load, or computes wrongly."""

from __future__ import annotations

import math

import onnx
from onnx import helper

from qfunc.lowering.openvino.edits import integers, set_nodes
from qfunc.lowering.qdq_reader import QdqModel

__all__ = ["replace_maxima", "rewrite_pools"]


def replace_maxima(model: onnx.ModelProto) -> None:
    """Replace global maxima and ReduceMax by MaxPool, in place."""
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
        model.graph.initializer.extend([integers(f"{name}.rows.shape", *sizes), integers(f"{name}.shape", 0, *result[1:])])
        nodes[-1:] = [
            helper.make_node("Reshape", [node.input[0], f"{name}.rows.shape"], [f"{name}.rows"], name=f"{name}.rows"),
            helper.make_node("MaxPool", [f"{name}.rows"], [f"{name}.most"], name=f"{name}.most", kernel_shape=[sizes[2], 1]),
            helper.make_node("Reshape", [f"{name}.most", f"{name}.shape"], [name], name=name),
        ]
    set_nodes(model, nodes)


def rewrite_pools(model: onnx.ModelProto) -> None:
    """Rewrite pools whose last window ends after the padding (ceil_mode), in place."""
    source, nodes = QdqModel(model), list[onnx.NodeProto]()
    for node in model.graph.node:
        ceil = node.op_type in ("AveragePool", "MaxPool") and source.attribute(node, "ceil_mode", 0)
        if ceil and all(map(source.has_sizes, (node.input[0], node.output[0]))):
            node = onnx.NodeProto.FromString(node.SerializeToString())
            _fit(source, node)
            if source.attribute(node, "count_include_pad", 0):
                nodes += _separate_padding(model, source, node)
        nodes.append(node)
    set_nodes(model, nodes)


def _fit(source: QdqModel, node: onnx.NodeProto) -> None:
    # OpenVINO loads no window that is larger than the padded image; there is one such window, which has the whole image.
    # PyTorch has no window that begins after the image, so that the end is padded as far as the last window goes.
    kernel = [int(k) for k in source.attribute(node, "kernel_shape")]
    rank = len(kernel)
    pads = [int(p) for p in source.attribute(node, "pads", [0] * 2 * rank)]
    strides = [int(s) for s in source.attribute(node, "strides", [1] * rank)]
    steps = [int(d) for d in source.attribute(node, "dilations", [1] * rank)]
    sizes, counts = (source.shape(name, node.name)[2:] for name in (node.input[0], node.output[0]))
    for i, (size, count, stride, step) in enumerate(zip(sizes, counts, strides, steps, strict=True)):
        last = stride * (count - 1) + step * (kernel[i] - 1) + 1 - pads[i] - size
        pads[rank + i] = min(pads[rank + i], max(last, 0))
        if step == 1:
            kernel[i] = min(kernel[i], size + pads[i] + pads[rank + i])
    _set_attribute(node, "kernel_shape", kernel)
    _set_attribute(node, "pads", pads)


def _separate_padding(model: onnx.ModelProto, source: QdqModel, node: onnx.NodeProto) -> list[onnx.NodeProto]:
    # OpenVINO divides an average that counts padding by the size of the window, although entries after the padding are not
    # counted.  They are not if the padding is an op of its own, which is returned.
    pads = [int(p) for p in source.attribute(node, "pads")]
    half = len(pads) // 2
    _set_attribute(node, "count_include_pad", 0)
    if not any(pads):
        return []
    _set_attribute(node, "pads", [0] * len(pads))
    padded, value = f"{node.output[0]}.padded", node.input[0]
    model.graph.initializer.append(integers(f"{padded}.pads", 0, 0, *pads[:half], 0, 0, *pads[half:]))
    node.input[0] = padded
    return [helper.make_node("Pad", [value, f"{padded}.pads"], [padded], name=padded)]


def _set_attribute(node: onnx.NodeProto, name: str, value: int | list[int]) -> None:
    kept = [a for a in node.attribute if a.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, value)])
