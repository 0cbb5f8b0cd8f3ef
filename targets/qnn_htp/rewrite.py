"""Rewrite a Q/DQ model for the HTP: activations become bounds of codes, and a bias has one scale."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import helper, numpy_helper

from qfunc.lowering.qdq.reader import ACTIVATIONS, QdqModel


def bound_codes(model: onnx.ModelProto) -> None:
    """Replace, in place, each Relu and Clip before a QuantizeLinear by bounds of codes, if nothing else reads it.

    A bound at the lowest or highest code needs no op. Each other bound becomes a Max or Min of codes with a constant.
    """
    source = QdqModel(model)
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        reader = source.only_reader(node.output[0]) if node.op_type in ACTIVATIONS else None
        if reader is None or reader.op_type != "QuantizeLinear":
            nodes.append(node)
            continue
        bounds = _CodeBounds(source, node, reader)
        nodes += bounds.nodes()
        reader.input[0] = bounds.bounded
    copies = [onnx.NodeProto.FromString(n.SerializeToString()) for n in nodes]
    del model.graph.node[:]
    model.graph.node.extend(copies)


def share_bias_scale(model: onnx.ModelProto) -> None:
    """Replace, in place, the equal scales of a bias by one scale if its weight has one, because the HTP misreads them."""
    source = QdqModel(model)
    for node in model.graph.node:
        weight, bias = (source.dequantizer(name) for name in (*node.input, "", "", "")[1:3])
        if weight is None or bias is None:
            continue
        if source.initializers[weight.input[1]].dims or not source.initializers[bias.input[1]].dims:
            continue
        for name in bias.input[1:]:
            source.initializers[name].CopyFrom(numpy_helper.from_array(source.constants[name][0], name))
        del bias.attribute[:]


class _CodeBounds:
    """The nodes that replace a Relu or Clip before a quantizer; `bounded` is the tensor that the quantizer then reads."""

    def __init__(self, source: QdqModel, node: onnx.NodeProto, quantizer: onnx.NodeProto) -> None:
        self.graph, self.name, self.bounded = source.graph, node.output[0], node.input[0]
        self.qparams = list(quantizer.input[1:])
        scale, zero = (source.constants[name] for name in self.qparams)
        self.limits = np.iinfo(zero.dtype)
        codes = [None if b is None else np.rint(np.float32(b) / scale) + zero for b in source.bounds(node)]
        self.bounds = [None if c is None else np.clip(c, self.limits.min, self.limits.max).astype(zero.dtype) for c in codes]

    def nodes(self) -> Iterator[onnx.NodeProto]:
        """Yield the nodes of each bound between the lowest and the highest code: Q/DQ, then Max or Min with a constant."""
        limits = ("Max", "above", self.limits.min), ("Min", "below", self.limits.max)
        for (op, suffix, limit), code in zip(limits, self.bounds, strict=True):
            if code is None or code == limit:
                continue
            output = f"{self.name}.{suffix}"
            self.graph.initializer.append(numpy_helper.from_array(np.reshape(code, 1), f"{output}.bound"))
            for op_type, inputs, result in (
                ("QuantizeLinear", [self.bounded, *self.qparams], f"{output}.codes"),
                ("DequantizeLinear", [f"{output}.codes", *self.qparams], f"{output}.real"),
                ("DequantizeLinear", [f"{output}.bound", *self.qparams], f"{output}.bound.real"),
                (op, [f"{output}.real", f"{output}.bound.real"], output),
            ):
                yield helper.make_node(op_type, inputs, [result], name=result)
            self.bounded = output
