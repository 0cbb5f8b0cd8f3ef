"""Barriers that keep OpenVINO 2026.4.1 from moving scales and from fusing ops where it computes other values.

A barrier is Max(x, -3.4e38): it returns x, and neither the transformations of low precision nor the fusions of convolutions
pass it.
"""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import helper, numpy_helper

from qfunc.lowering.qdq.reader import ACTIVATIONS, QdqModel, copies

_NORMS = ("LayerNormalization", "InstanceNormalization", "GroupNormalization")
_WITH_CONSTANTS = ("Add", "Div", "Mul", "PRelu", "Sub")
_NOT_INCREASING = ("Abs", "Gelu", "HardSwish", "Mish", "Mul", "PRelu")
_OFFSET = 1.0001e-5
"""The least offset s z that OpenVINO does not take for zero, and one rounding."""
_LEAST = np.array(-3.4e38, np.float32)


def insert_barriers(model: onnx.ModelProto) -> None:
    """Insert barriers in place.

    They stand before norms, real averages, clips, sums of quantized convolutions and arithmetic with one constant a channel,
    and after pooled convolutions.
    """
    source, nodes = QdqModel(model), list[onnx.NodeProto]()
    for node in model.graph.node:
        node = onnx.NodeProto.FromString(node.SerializeToString())
        for index in _protected(source, node):
            name = f"{node.output[0]}.operand_{index}"
            nodes.append(barrier(model, node.input[index], name))
            node.input[index] = name
        nodes.append(node)
        if _is_spread(source, node) or _is_pooled(source, node):
            result = node.output[0]
            node.output[0] = f"{result}.before"
            nodes.append(barrier(model, node.output[0], result))
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def barrier(model: onnx.ModelProto, value: str, name: str, number: int = 0) -> onnx.NodeProto:
    """Return a barrier after a tensor; OpenVINO merges barriers of one tensor that have equal numbers."""
    least = np.array(_LEAST * (1 - np.float32(2.0**-20) * number), np.float32)
    model.graph.initializer.append(numpy_helper.from_array(least, f"{name}.least"))
    return helper.make_node("Max", [value, f"{name}.least"], [name], name=f"{name}.barrier")


def _is_spread(source: QdqModel, node: onnx.NodeProto) -> bool:
    # OpenVINO moves the factor s_a s_b of a product of two activations to its readers, wrongly if there are several.
    return node.op_type == "MatMul" and not any(name in source.constants for name in node.input)


def _is_pooled(source: QdqModel, node: onnx.NodeProto) -> bool:
    # The plugin fuses a function of the maxima of a convolution into the convolution.  The maxima of a function that is not
    # increasing are others: max |x| is not |max x|.  SiLU and Mish are Mul here.
    if node.op_type != "MaxPool" or (before := source.producers.get(node.input[0])) is None or before.op_type != "Conv":
        return False
    return any(
        reader.op_type in _NOT_INCREASING or (reader.op_type == "LeakyRelu" and source.attribute(reader, "alpha", 0.01) < 0)
        for reader in source.readers.get(node.output[0], ())
    )


def _protected(source: QdqModel, node: onnx.NodeProto) -> list[int]:
    # The inputs of a node that need a barrier.
    if node.op_type in _NORMS:
        # OpenVINO moves a scale s of the input after the norm, and keeps the epsilon, which would have to be divided by s^2.
        return [0]
    if node.op_type == "AveragePool" and source.result(node.output[0])[1] is None:
        # OpenVINO averages codes, and rounds the means to codes, if arithmetic on real values follows.
        return [0] if _of_codes(source, node.input[0]) else []
    if node.op_type == "Clip":
        # OpenVINO clips codes to the codes nearest to its bounds, also behind arithmetic with constants.
        return [0] if _of_codes(source, _before_constants(source, node.input[0])) else []
    if node.op_type in _WITH_CONSTANTS and (index := _beside_constants(source, node)) is not None:
        return [index]
    if node.op_type != "Add":
        return []
    # The plugin fuses the addition into a convolution, and omits the rounding of a quantizer between the two.
    # Of two convolutions it fuses the one without a quantizer.
    found = [_convolution(source, name) for name in node.input]
    fused = [] if False in found else [i for i, quantized in enumerate(found) if quantized]
    return [i for i, name in enumerate(node.input) if i in fused or _loses_offset(source, name)]


def _loses_offset(source: QdqModel, name: str) -> bool:
    # OpenVINO takes an offset s z of codes for zero below 1e-5, and adds the codes without it.
    node = source.producers.get(name)
    if node is None or node.op_type != "DequantizeLinear":
        return False
    scale, zero = (np.asarray(source.constants[n], np.float64) for n in node.input[1:3])
    offset = scale * (zero - np.iinfo(source.constants[node.input[2]].dtype).min)
    return bool(((offset > 0) & (offset < _OFFSET)).any())


def _of_codes(source: QdqModel, name: str) -> bool:
    # True if a tensor is quantized, or joins and moves of quantized tensors.
    node = source.producers.get(name)
    if node is None or node.op_type == "DequantizeLinear":
        return node is not None
    moves = copies(node) or node.op_type in ("Concat", "MaxPool", "Slice", "Split", "Pad", "Resize")
    return moves and any(_of_codes(source, each) for each in (node.input if node.op_type == "Concat" else node.input[:1]))


def _before_constants(source: QdqModel, name: str) -> str:
    # The tensor before arithmetic with constants.
    while (node := source.producers.get(name)) is not None and node.op_type in ("Add", "Div", "Mul", "Sub"):
        computed = [each for each in node.input if not _constant_size(source, each)]
        if len(computed) != 1:
            break
        name = computed[0]
    return name


def _beside_constants(source: QdqModel, node: onnx.NodeProto) -> int | None:
    # The plugin omits an op with one constant a channel after a quantizer, if the batch may vary. It fuses the op into a
    # convolution, and reads other constants for a batch of 1 whose channels have one entry each.
    sizes = [_constant_size(source, name) for name in node.input]
    if sizes.count(0) != 1 or max(sizes) == 1:
        return None
    index = sizes.index(0)
    value = node.input[index]
    entries = source.shape(value, node.name)[2:] if source.has_sizes(value) else (1,)
    alone = bool(entries) and math.prod(entries) == 1
    scaled = node.op_type in ("Mul", "Div") and _of_product(source, value)
    return index if alone or scaled or _of_codes(source, value) else None


def _of_product(source: QdqModel, name: str) -> bool:
    # The plugin fuses a factor into a matrix product, and reads the factors of another axis: those of rows along columns.
    node = source.producers.get(name)
    if node is not None and node.op_type == "Add" and sum(_constant_size(source, n) > 0 for n in node.input) == 1:
        node = source.producers.get(next(n for n in node.input if not _constant_size(source, n)))
    return node is not None and node.op_type == "MatMul"


def _constant_size(source: QdqModel, name: str) -> int:
    # The number of elements of a constant, quantized or not; 0 for what is computed.
    while (node := source.producers.get(name)) is not None:
        if node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
            return 0
        name = node.input[0]
    return int(source.constants[name].size) if name in source.constants else 0


def _convolution(source: QdqModel, name: str) -> bool | None:
    # True if a tensor is the quantized result of a convolution, False if it is a result in real values, None for others.
    # Activations and arithmetic with constants may follow the convolution.
    quantized = False
    while source.uses(name) == 1 and (node := source.producers.get(name)) is not None:
        if node.op_type == "Conv":
            return quantized
        value = 0
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            quantized = True
        elif node.op_type in _WITH_CONSTANTS and (sizes := [_constant_size(source, n) for n in node.input]).count(0) == 1:
            value = sizes.index(0)
        elif node.op_type not in (*ACTIVATIONS, "Neg") and not copies(node):
            return None
        name = node.input[value]
    return None
