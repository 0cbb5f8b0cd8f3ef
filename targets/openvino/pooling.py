"""Rewrites of pools that OpenVINO 2026.4.1 does not load, or computes wrongly."""

from __future__ import annotations

from typing import Any

import onnx
from onnx import helper

from qfunc.lowering.qdq.reader import QdqModel
from qfunc.targets.openvino.edits import integers, set_nodes


def replace_extremes(model: onnx.ModelProto) -> None:
    """Replace global maxima by MaxPool, and ReduceMax and ReduceMin by TopK along each axis, in place."""
    # OpenVINO's ReduceMax, which GlobalMaxPool becomes, and its ReduceMin are wrong before quantized ops.
    source, nodes = QdqModel(model), list[onnx.NodeProto]()
    for node in model.graph.node:
        sized = source.has_sizes(node.input[0]) if node.input else False
        if node.op_type == "GlobalMaxPool" and sized:
            node.op_type = "MaxPool"
            node.attribute.append(helper.make_attribute("kernel_shape", source.shape(node.input[0], node.name)[2:]))
        axes = _reduced(source, node) if node.op_type in _LARGEST and sized else []
        nodes += _extremes(model, source, node, axes) if axes else [node]
    set_nodes(model, nodes)


_LARGEST = {"ReduceMax": 1, "ReduceMin": 0}


def _reduced(source: QdqModel, node: onnx.NodeProto) -> list[int]:
    axes = source.constants.get(node.input[1]) if len(node.input) > 1 else source.attribute(node, "axes")
    return [*range(len(source.shape(node.input[0], node.name)))] if axes is None else [int(a) for a in axes]


def _extremes(model: onnx.ModelProto, source: QdqModel, node: onnx.NodeProto, axes: list[int]) -> list[onnx.NodeProto]:
    name, value, nodes = node.output[0], node.input[0], list[onnx.NodeProto]()
    model.graph.initializer.append(integers(f"{name}.one", 1))
    for axis in axes:
        found = f"{name}.axis_{axis}"
        along: dict[str, Any] = {"axis": axis, "largest": _LARGEST[node.op_type]}
        nodes.append(helper.make_node("TopK", [value, f"{name}.one"], [found, f"{found}.place"], name=found, **along))
        value = found
    if source.attribute(node, "keepdims", 1):
        nodes[-1].output[0] = name
        return nodes
    model.graph.initializer.append(integers(f"{name}.axes", *axes))
    return [*nodes, helper.make_node("Squeeze", [value, f"{name}.axes"], [name], name=name)]


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
