"""Rewrite the products of a Q/DQ model to ggml's, whose weights are in a GGUF file."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from qfunc.errors import DeployError
from qfunc.lowering.onnx.remove_quantizers import prune
from qfunc.lowering.qdq.reader import REAL, QdqModel
from qfunc.numerics.minifloat import largest
from qfunc.specs import Float, Format, Int
from qfunc.targets.ggml.engine import TYPES
from qfunc.targets.ggml.file import GgufTensor
from qfunc.targets.ggml.types import WEIGHTS, Parts

DOMAIN, PRODUCT = "ggml", "MulMat"
"""y = x W^T: a node of this domain and type has the input x and the name of W as its attribute `weight`."""


def with_products(model: onnx.ModelProto, kind: str) -> tuple[onnx.ModelProto, list[GgufTensor]]:
    """Return a new model in which ggml computes the products with weights in blocks, and these weights.

    Args:
        model: A Q/DQ model; an input of such a product is quantized at run time.
        kind: The type of the weights, a name of `types.WEIGHTS`.
    """
    rewritten = onnx.ModelProto()
    rewritten.CopyFrom(model)
    graph, source = rewritten.graph, QdqModel(model)
    quantized = {n.output[0]: n.input[0] for n in graph.node if n.domain == "qfunc" and n.op_type.startswith("DynamicQuantize")}
    nodes: list[onnx.NodeProto] = []
    weights: dict[str, GgufTensor] = {}
    for node in graph.node:
        stored = source.dequantizer(node.input[1]) if node.op_type == "Gemm" else None
        if stored is None or not source.attribute(stored, "block_size"):
            node.input[:] = [quantized.get(name, name) for name in node.input]
            nodes.append(node)
            continue
        weight = weights.setdefault(stored.input[0], stored_weight(source, stored, kind))
        bias, result = node.input[2:], node.output[0]
        product = f"{result}.product" if bias else result
        x = quantized.get(node.input[0], node.input[0])
        nodes.append(helper.make_node(PRODUCT, [x], [product], name=node.name, domain=DOMAIN, weight=weight.name))
        graph.value_info.append(helper.make_tensor_value_info(product, REAL, None))
        if bias:
            nodes.append(helper.make_node("Add", [product, bias[0]], [result], name=f"{node.name}.add"))
    del graph.node[:]
    graph.node.extend(nodes)
    if weights:
        rewritten.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    prune(rewritten)
    return rewritten, list(weights.values())


def stored_weight(source: QdqModel, node: onnx.NodeProto, kind: str) -> GgufTensor:
    """Return the tensor of a file for a DequantizeLinear of a weight in blocks.

    Raises:
        DeployError: codes that the type does not have.
    """
    codes, scale = np.asarray(source.constant(node, 0)).astype(np.float32), np.asarray(source.constant(node, 1))
    name, fmt = node.input[0].removesuffix(".codes"), WEIGHTS[kind].scheme.format
    low, high = _ends(fmt)
    if codes.min(initial=0) < low or codes.max(initial=0) > high:
        found, do = f"codes in [{codes.min()}, {codes.max()}]", f"Use targets.gguf({kind!r})."
        raise DeployError(where=f"tensor {name!r}", found=found, wanted=f"[{low}, {high}], those of {kind}", do=do)
    others = [source.constant(node, i, scale) for i in (2, 3, 4)] if node.op_type == "DequantizeBlocks" else [scale] * 3
    return GgufTensor(name, TYPES[kind], codes.shape, WEIGHTS[kind].pack(Parts(codes, scale, *others)))


def _ends(fmt: Format) -> tuple[float, float]:
    if isinstance(fmt, Float):
        return -largest(fmt), largest(fmt)
    assert isinstance(fmt, Int)  # so are those of all other types
    return -(1 << fmt.bits - 1) if fmt.signed else 0, (1 << fmt.bits - fmt.signed) - 1
