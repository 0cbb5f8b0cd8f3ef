"""Insert FakeQuantize nodes into a float model."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from qfunc.lowering.onnx.remove_quantizers import prune
from qfunc.lowering.qdq_reader import copies
from qfunc.lowering.quantized_tensor import QuantizedTensor

DOMAIN = "org.openvinotoolkit"


def insert_fake_quantize(model: onnx.ModelProto, sites: tuple[QuantizedTensor, ...]) -> None:
    """Replace each quantizer by a node, and insert a node between each weight and its readers, in place."""
    quantizers = {p.real: (p.tensor, s) for s in sites if s.role == "activation" for p in s.places}
    weights = {tensor: s for s in sites if s.role not in ("activation", "bias") for tensor in s.tensors}
    rank = {i.name: len(i.dims) for i in model.graph.initializer}
    rank |= _ranks(model) if any(len(s.scale) > 1 for _, s in quantizers.values()) else {}
    nodes: list[onnx.NodeProto] = []
    constants: list[onnx.TensorProto] = []
    quantized_weights: set[str] = set()
    for node in model.graph.node:
        for index, name in enumerate(node.input):
            if name in weights and name in rank:
                if name not in quantized_weights:
                    quantized_weights.add(name)
                    nodes.append(_node(constants, weights[name], name, f"{name}.real", rank[name]))
                node.input[index] = f"{name}.real"
        # With a scale per channel, the values are a copy of what DequantizeLinear returns.
        if (node.op_type == "DequantizeLinear" or copies(node)) and node.output[0] in quantizers:
            tensor, site = quantizers[node.output[0]]
            node = _node(constants, site, tensor, node.output[0], rank.get(tensor, 0))
        nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(constants)
    model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    prune(model)


def _ranks(model: onnx.ModelProto) -> dict[str, int]:
    inferred = onnx.shape_inference.infer_shapes(model).graph
    infos = (*inferred.value_info, *inferred.input, *inferred.output)
    return {v.name: len(v.type.tensor_type.shape.dim) for v in infos}


def _node(constants: list[onnx.TensorProto], site: QuantizedTensor, tensor: str, output: str, rank: int) -> onnx.NodeProto:
    low, high, levels = _range(site)
    channels = len(site.scale) > 1
    shape = [-1 if channels and i == (site.axis or 0) % rank else 1 for i in range(rank)] if channels else []
    bounds = [(f"{output}.low", low), (f"{output}.high", high)]
    constants.extend(numpy_helper.from_array(array.reshape(shape), name) for name, array in bounds)
    inputs = [tensor, *(name for name, _ in bounds * 2)]
    return helper.make_node("FakeQuantize", inputs, [output], name=output, domain=DOMAIN, levels=levels)


def _range(site: QuantizedTensor) -> tuple[Any, Any, int]:
    low, high = site.low, site.high
    if site.role != "activation" and high - low + 1 < 255:
        low, high = (0, 255) if low >= 0 else (-127 if low == -high else -128, 127)
    scale, zero = np.array(site.scale), np.array(site.zero_point)
    top = scale * (high - zero)
    return (top - scale * (high - low)).astype(np.float32), top.astype(np.float32), high - low + 1


__all__ = ["DOMAIN", "insert_fake_quantize"]
