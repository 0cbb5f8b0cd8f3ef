"""Rewrites of a Q/DQ model that the HTP needs: activations as bounds of codes, one scale for a bias."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import helper, numpy_helper

from qfunc.lowering.qdq_reader import ACTIVATIONS, QdqModel


def bound_codes(model: onnx.ModelProto) -> None:
    """Replace, in place, each Relu and Clip whose only reader is a QuantizeLinear by bounds of codes.

    A bound that is an end of the codes needs no op. Each other bound becomes Max or Min with a constant, on codes.
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
        reader.input[0] = bounds.last
    copies = [onnx.NodeProto.FromString(n.SerializeToString()) for n in nodes]
    del model.graph.node[:]
    model.graph.node.extend(copies)


def share_bias_scale(model: onnx.ModelProto) -> None:
    """Give, in place, a bias of several scales one scale if its weight has one: the HTP misreads several equal scales."""
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
    """The nodes in place of a Relu or Clip before a quantizer; `last` is the tensor that the quantizer then reads."""

    def __init__(self, source: QdqModel, node: onnx.NodeProto, quantizer: onnx.NodeProto) -> None:
        self.graph, self.name, self.last = source.graph, node.output[0], node.input[0]
        self.qparams = list(quantizer.input[1:])
        scale, zero = (source.constants[name] for name in self.qparams)
        self.ends = np.iinfo(zero.dtype)
        codes = [None if b is None else np.rint(np.float32(b) / scale) + zero for b in source.bounds(node)]
        self.bounds = [None if c is None else np.clip(c, self.ends.min, self.ends.max).astype(zero.dtype) for c in codes]

    def nodes(self) -> Iterator[onnx.NodeProto]:
        """Yield, for each bound inside the codes: quantize, dequantize, Max or Min with a constant."""
        ends = ("Max", "above", self.ends.min), ("Min", "below", self.ends.max)
        for (op, kind, end), code in zip(ends, self.bounds, strict=True):
            if code is None or code == end:
                continue
            output = f"{self.name}.{kind}"
            self.graph.initializer.append(numpy_helper.from_array(np.reshape(code, 1), f"{output}.bound"))
            for step, inputs, result in (
                ("QuantizeLinear", [self.last, *self.qparams], f"{output}.codes"),
                ("DequantizeLinear", [f"{output}.codes", *self.qparams], f"{output}.real"),
                ("DequantizeLinear", [f"{output}.bound", *self.qparams], f"{output}.bound.real"),
                (op, [f"{output}.real", f"{output}.bound.real"], output),
            ):
                yield helper.make_node(step, inputs, [result], name=result)
            self.last = output


__all__ = ["bound_codes", "share_bias_scale"]
