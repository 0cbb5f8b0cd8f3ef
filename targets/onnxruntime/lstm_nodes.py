"""Write LSTM layers whose input and weights are quantized as ONNX Runtime's DynamicQuantizeLSTM."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from qfunc.lowering.qdq.qparams import Array
from qfunc.lowering.qdq.reader import QdqModel
from qfunc.targets.onnxruntime.block_weights import DOMAIN, drop_unread

OPERATOR = "DynamicQuantizeLSTM"
_OPTIONAL = 8
"""The inputs of an LSTM: X, W, R, B, sequence_lens, initial_h, initial_c and P."""


def with_dynamic_lstms(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with a DynamicQuantizeLSTM in place of each LSTM that reads a DynamicQuantizeLinear.

    The operator quantizes its input, so that it reads the tensor before the quantizer. Its weights are [1, C, 4 H] and
    [1, H, 4 H], with the scales [1, 4 H] of their columns, or one.

    Source: ONNX Runtime, docs/ContribOperators.md, com.microsoft.DynamicQuantizeLSTM.
    """
    source, stored, nodes = QdqModel(model), list[onnx.TensorProto](), list[onnx.NodeProto]()
    for node in model.graph.node:
        before = _before_quantizer(source, node)
        nodes.append(node if before is None else _dynamic(source, node, before, stored))
    if not stored:
        return model
    made = onnx.ModelProto()
    made.CopyFrom(model)
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    if DOMAIN not in [opset.domain for opset in made.opset_import]:
        made.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    kept = drop_unread(made)
    held = [tensor for tensor in (*made.graph.initializer, *stored) if tensor.name in kept]
    del made.graph.initializer[:]
    made.graph.initializer.extend(held)
    return made


def _before_quantizer(source: QdqModel, node: onnx.NodeProto) -> str | None:
    dequantizer = source.dequantizer(node.input[0]) if node.op_type == "LSTM" else None
    quantizer = None if dequantizer is None else source.producers.get(dequantizer.input[0])
    return quantizer.input[0] if quantizer is not None and quantizer.op_type == "DynamicQuantizeLinear" else None


def _dynamic(source: QdqModel, node: onnx.NodeProto, x: str, stored: list[onnx.TensorProto]) -> onnx.NodeProto:
    inputs = [*node.input, *[""] * (_OPTIONAL - len(node.input))]
    inputs[0], scales = x, list[str]()

    def keep(name: str, array: Array) -> str:
        stored.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    for place, part in ((1, "input"), (2, "state")):
        dequantizer = source.dequantizer(node.input[place])
        assert dequantizer is not None  # the arithmetic takes weights of codes
        codes, scale, zeros = (numpy_helper.to_array(source.initializers[name]) for name in dequantizer.input)
        inputs[place] = keep(f"{node.name}.{part}.codes", codes.transpose(0, 2, 1))
        each = (1, -1) if scale.size > 1 else (1,)
        named = (("scale", scale), ("zero_point", zeros))
        scales += [keep(f"{node.name}.{part}.{name}", array.reshape(each)) for name, array in named]
    made = helper.make_node(OPERATOR, [*inputs, *scales], list(node.output), name=node.name, domain=DOMAIN)
    made.attribute.extend(node.attribute)
    return made
