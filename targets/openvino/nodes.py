"""Insert FakeQuantize nodes, and weights of 8 bits with their dequantization, into a float model."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper

from qfunc.lowering.onnx.remove_quantizers import prune
from qfunc.lowering.qdq.reader import copies
from qfunc.lowering.quantized_tensor import QuantizedTensor
from qfunc.numerics.kernels.requantize import range_ends, weight_codes
from qfunc.specs import Int
from qfunc.targets.openvino.barriers import barrier

DOMAIN = "org.openvinotoolkit"
_PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
"""The readers of weights that may be codes."""
_RECURRENT = ("LSTM", "GRU", "RNN")
"""The readers of weights that are constants: OpenVINO 2026.4 loads an LSTM and a GRU with those only."""


def insert_fake_quantize(model: onnx.ModelProto, sites: tuple[QuantizedTensor, ...]) -> None:
    """Replace each quantizer by a node, and each weight by its codes and their dequantization, in place.

    A weight of more than 8 bits stays float, with a node between it and its readers: OpenVINO has no other form for it.  So
    does a weight with a zero point of a transposed convolution, which OpenVINO 2026.4 would leave out.  The weights of a
    recurrent layer are constants with the values of their codes.
    """
    quantizers = {p.real: (p.tensor, s) for s in sites if s.role == "activation" for p in s.places}
    weights = {tensor: s for s in sites if s.role not in ("activation", "bias") for tensor in s.tensors}
    held = {i.name: i for i in model.graph.initializer}
    stored = {name for name, site in weights.items() if isinstance(site.format, Int) and site.format.bits <= 8}
    stored -= {name for node in model.graph.node if node.op_type not in _PRODUCTS for name in node.input}
    shifted = {name for name in stored if weights[name].low >= 0 or any(weights[name].zero_point)}
    stored -= shifted & {name for node in model.graph.node if node.op_type == "ConvTranspose" for name in node.input}
    rank = {name: len(value.dims) for name, value in held.items()}
    rank |= _ranks(model) if any(len(s.scale) > 1 for _, s in quantizers.values()) else {}
    nodes: list[onnx.NodeProto] = []
    constants: list[onnx.TensorProto] = []
    quantized_weights: dict[str, onnx.NodeProto] = {}
    products, read, seen = _equal_values(model), set[tuple[str, int]](), Counter[int]()
    for node in model.graph.node:
        if node.op_type in _PRODUCTS and not stored.intersection(node.input):
            # OpenVINO merges products in float of one tensor with equal weights, and adds the bias of one of them to all.
            if number := seen[products[node.output[0]]]:
                nodes.append(barrier(model, node.input[0], f"{node.output[0]}.operand_0", number))
                node.input[0] = nodes[-1].output[0]
            seen[products[node.output[0]]] += 1
        for index, name in enumerate(node.input):
            if name in weights and name in rank and node.op_type not in _RECURRENT:
                node.input[index] = f"{name}.real"
                if name not in quantized_weights:
                    quantized_weights[name] = (
                        _dequantized(constants, weights[name], numpy_helper.to_array(held[name]), name)
                        if name in stored
                        else _node(constants, weights[name], name, f"{name}.real", rank[name])
                    )
                    nodes.append(quantized_weights[name])
                elif name in stored and (name, products[node.output[0]]) in read:
                    node.input[index] = f"{node.output[0]}.{name}.real"
                    nodes.append(_with_own_codes(constants, quantized_weights[name], node.input[index]))
                read.add((name, products[node.output[0]]))
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


def _dequantized(constants: list[onnx.TensorProto], site: QuantizedTensor, value: Any, name: str) -> onnx.NodeProto:
    # OpenVINO reads it as Convert, Subtract, Multiply, the form of its own int8 models, and folds it into the int8 kernel. The
    # step is the one that OpenVINO computes from the range of a FakeQuantize: its last bit differs from the scale's.
    # Unsigned codes are stored 128 lower: OpenVINO has no convolution of them whose result is quantized.
    low, high, levels = _range(site)
    channels, shift = len(site.scale) > 1, 128 if site.low >= 0 else 0
    axis = (site.axis or 0) % value.ndim if channels else 0
    shape = [-1 if i == axis else 1 for i in range(value.ndim)] if channels else ()
    scale, zero = (np.array(v).reshape(shape) for v in (site.scale, site.zero_point))
    arrays = {
        "codes": (np.rint(value / scale) + zero - shift).astype(np.int8),
        "scale": ((high - low) / np.float32(levels - 1)).reshape([-1] if channels else ()),
        "zero": (zero - shift).astype(np.int8).reshape([-1] if channels else ()),
    }
    constants.extend(numpy_helper.from_array(array, f"{name}.{word}") for word, array in arrays.items())
    inputs = [f"{name}.{word}" for word in arrays]
    return helper.make_node("DequantizeLinear", inputs, [f"{name}.real"], name=f"{name}.real", axis=axis)


def _equal_values(model: onnx.ModelProto) -> dict[str, int]:
    """Return a number for each tensor that a node computes: equal ones for equal ops of equal tensors, biases apart."""
    numbers, found = dict[tuple[Any, ...], int](), dict[str, Any]()
    for held in model.graph.initializer:
        value = numpy_helper.to_array(held)
        if value.dtype == np.int64 or value.ndim == 0:  # shapes and qparams, which each op has for itself
            found[held.name] = (held.data_type, value.shape, value.tobytes())
    for node in model.graph.node:
        tensors = list(node.input)[: 2 if node.op_type in _PRODUCTS else None]
        attributes = sorted(a.SerializeToString(deterministic=True) for a in node.attribute)
        key = (node.op_type, *attributes, *(found.get(name, name) for name in tensors))
        for index, output in enumerate(node.output):
            found[output] = numbers.setdefault((index, *key), len(numbers))
    return found


def _with_own_codes(constants: list[onnx.TensorProto], node: onnx.NodeProto, result: str) -> onnx.NodeProto:
    # OpenVINO would merge two products of the same tensor and the same codes, and round once where the target rounds twice.
    copied, codes = onnx.NodeProto(), onnx.TensorProto()
    codes.CopyFrom(next(c for c in constants if c.name == node.input[0]))
    copied.CopyFrom(node)
    copied.name = copied.output[0] = result
    copied.input[0] = codes.name = f"{result}.codes"
    constants.append(codes)
    return copied


def _range(site: QuantizedTensor) -> tuple[Any, Any, int]:
    low, high = (site.low, site.high) if site.role == "activation" else weight_codes(site.low, site.high)
    scale, zero = torch.tensor(site.scale, dtype=torch.float64), torch.tensor(site.zero_point)
    least, most = range_ends(scale, zero, low, high)
    return least.numpy(), most.numpy(), high - low + 1
