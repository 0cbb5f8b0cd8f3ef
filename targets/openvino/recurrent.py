"""Rewrites of models with recurrent layers, which OpenVINO 2026.4.1 computes wrongly if the batch varies."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from qfunc.lowering.qdq.reader import QdqModel
from qfunc.targets.openvino.edits import set_nodes

RECURRENT = ("LSTM", "GRU", "RNN")
_MOVES = ("Transpose", "Identity", "Max", "Squeeze", "Unsqueeze", "Reshape")
_LARGE = 1e30


def separate_biases(model: onnx.ModelProto) -> None:
    """Add the biases of convolutions after them, in place.

    Beside a recurrent layer, OpenVINO omits the bias of a two-dimensional convolution if the batch varies.
    """
    if not any(node.op_type in RECURRENT for node in model.graph.node):
        return
    held, nodes = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}, list[onnx.NodeProto]()
    for node in model.graph.node:
        nodes.append(node)
        weight, bias = (held.get(name) for name in [*node.input[1:3], "", ""][:2])
        if node.op_type not in ("Conv", "ConvTranspose") or weight is None or bias is None:
            continue
        result, name = node.output[0], f"{node.output[0]}.bias_of_channels"
        model.graph.initializer.append(numpy_helper.from_array(bias.reshape(-1, *[1] * (weight.ndim - 2)), name))
        node.output[0] = f"{result}.products"
        del node.input[2]
        nodes.append(helper.make_node("Add", [node.output[0], name], [result], name=f"{result}.biased"))
    set_nodes(model, nodes)


def separate_inputs(model: onnx.ModelProto) -> None:
    """Give recurrent layers that read one tensor inputs of their own, in place, as the two directions of a layer.

    OpenVINO joins the transposes before them, and then takes the axis of the steps for the batch in all layers but the first.
    A Clip at bounds beyond 1e30 keeps them apart: each has other bounds.
    """
    source, nodes, readers = QdqModel(model), list[onnx.NodeProto](), dict[str, int]()
    for node in model.graph.node:
        if node.op_type in RECURRENT:
            read = _moved(source, node.input[0])
            count = readers[read] = readers.get(read, 0) + 1
            if count > 1:
                name, bound = f"{node.output[0]}.own_input", np.array(count * _LARGE, np.float32)
                ends = [f"{name}.low", f"{name}.high"]
                model.graph.initializer.extend(map(numpy_helper.from_array, (-bound, bound), ends))
                nodes.append(helper.make_node("Clip", [node.input[0], *ends], [name], name=name))
                node.input[0] = name
        nodes.append(node)
    set_nodes(model, nodes)


def _moved(source: QdqModel, name: str) -> str:
    # The tensor whose values an input has at other places.
    while name in source.producers and source.producers[name].op_type in _MOVES:
        name = source.producers[name].input[0]
    return name
