"""Write products with weights in blocks as ONNX Runtime's MatMulNBits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx
from attrs import frozen
from onnx import helper, numpy_helper

from qfunc.lowering.qdq_reader import Array, QdqModel, copies
from qfunc.lowering.quantized_tensor import QuantizedTensor
from qfunc.numerics.sums.blocks import stored_bits
from qfunc.specs import Int

OPERATOR, DOMAIN = "MatMulNBits", "com.microsoft"
_WIDEST, _LEAST_BLOCK = 8, 16


def with_block_products(model: onnx.ModelProto, sites: Iterable[QuantizedTensor], accuracy_level: int) -> onnx.ModelProto:
    """Return the model with a MatMulNBits in place of each MatMul or Gemm whose weight has blocks along K.

    Weights are packed in 2, 4 or 8 bits, the low bits first, [N, K / block, block * bits / 8]; signed codes are stored plus
    2^(bits - 1), which is the operator's zero point where it has none.  All other products stay as they are.

    Source: ONNX Runtime, docs/ContribOperators.md, com.microsoft.MatMulNBits.
    """
    source, made = QdqModel(model), onnx.ModelProto()
    bits = {place.real: site.format.bits for site in sites if isinstance(site.format, Int) for place in site.places}
    stored: dict[str, onnx.TensorProto] = {}
    for node in model.graph.node:
        weight = _weight(source, node, bits)
        made.graph.node.append(node if weight is None else _product(stored, node, weight, accuracy_level))
    _copy_rest(model, made)
    _without_quantizers(made)
    if DOMAIN not in [o.domain for o in made.opset_import] and any(n.domain == DOMAIN for n in made.graph.node):
        made.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    kept = _drop_unread(made)
    made.graph.initializer.extend(tensor for tensor in model.graph.initializer if tensor.name in kept)
    for name in [name for name in stored if name in kept]:
        made.graph.initializer.append(stored.pop(name))
    return made


@frozen(eq=False)
class _Weight:
    # Codes [N, K], scales and zero points [N, K / block]; no zero points for signed codes.
    name: str
    bits: int
    block: int
    codes: Array
    scales: Array
    zero_points: Array | None


def _weight(source: QdqModel, node: onnx.NodeProto, bits: dict[str, int]) -> _Weight | None:
    if node.op_type not in ("MatMul", "Gemm") or any(source.attribute(node, a, 1.0) != 1.0 for a in ("alpha", "beta")):
        return None
    name = node.input[1]
    while name in source.producers and copies(source.producers[name]):
        name = source.producers[name].input[0]
    dequantizer = source.dequantizer(name)
    block = 0 if dequantizer is None else int(source.attribute(dequantizer, "block_size", 0))
    if dequantizer is None or bits.get(name, _WIDEST + 1) > _WIDEST or block < _LEAST_BLOCK or block & (block - 1):
        return None
    # One weight at a time: a reader's `constants` hold all.
    codes, scales, zeros = (numpy_helper.to_array(source.initializers[name]) for name in dequantizer.input)
    transposed = node.op_type == "Gemm" and source.attribute(node, "transB", 0)
    if codes.ndim != 2 or source.attribute(dequantizer, "axis", 1) != (1 if transposed else 0):
        return None
    if not transposed:
        codes, scales, zeros = codes.T, scales.T, zeros.T
    signed, width = codes.dtype == np.int8, stored_bits(bits[name])
    shift = 1 << (width - 1) if signed else 0
    stored = codes.astype(np.uint8) + np.uint8(shift)  # modulo 256, so that signed codes move, too
    return _Weight(dequantizer.input[0], width, block, stored, scales, None if signed else zeros)


def _product(stored: dict[str, Any], node: onnx.NodeProto, weight: _Weight, accuracy_level: int) -> onnx.NodeProto:
    # Add the packed weight to the stored constants.
    n, k = weight.codes.shape
    whole = np.pad(weight.codes, ((0, 0), (0, -k % weight.block)))  # a partial last block ends with codes that nothing reads
    blocks = whole.reshape(n, -1, weight.block)
    zeros = None if weight.zero_points is None else packed(weight.zero_points.astype(np.uint8), weight.bits)
    arrays = (packed(blocks, weight.bits), weight.scales.astype(np.float32), zeros)
    names = [node.input[0]]
    for part, array in zip(("packed", "scales", "zero_points"), arrays, strict=True):
        names.append("" if array is None else f"{weight.name}.{part}")
        if array is not None and names[-1] not in stored:
            stored[names[-1]] = numpy_helper.from_array(np.ascontiguousarray(array), names[-1])
    if len(node.input) > 2 and node.input[2]:
        names += ["", node.input[2]]
    while not names[-1]:
        names.pop()
    return helper.make_node(
        OPERATOR, names, list(node.output), name=node.name, domain=DOMAIN, K=k, N=n, bits=weight.bits,
        block_size=weight.block, accuracy_level=accuracy_level,
    )  # fmt: skip


def _copy_rest(model: onnx.ModelProto, made: onnx.ModelProto) -> None:
    # Copy everything but the nodes and the constants.
    for field, value in model.graph.ListFields():
        if field.name in ("input", "output", "value_info"):
            getattr(made.graph, field.name).extend(value)
    made.graph.name, made.ir_version, made.producer_name = model.graph.name, model.ir_version, model.producer_name
    made.opset_import.extend(model.opset_import)
    made.functions.extend(model.functions)


def _without_quantizers(model: onnx.ModelProto) -> None:
    # Let the products read the tensors before their quantizers at run time: those of the operator take their place.
    index = QdqModel(model)
    before = {
        node.output[0]: node.input[0]
        for node in model.graph.node
        if node.op_type.startswith("DynamicQuantize") and _only_products_read(index, node.output[0])
    }
    for node in model.graph.node:
        for i, name in enumerate(node.input):
            node.input[i] = before.get(name, name)


def _only_products_read(index: QdqModel, name: str) -> bool:
    readers = index.readers.get(name, [])
    each = (n.op_type == OPERATOR or (n.op_type == "Reshape" and _only_products_read(index, n.output[0])) for n in readers)
    return bool(readers) and name not in index.outputs and all(each)


def packed(codes: Array, bits: int) -> Array:
    """Return unsigned codes of `bits` bits in bytes along the last axis, the first in the low bits, filled up with 0.

    >>> packed(np.array([[1, 2, 3]]), 4).tolist()
    [[33, 3]]
    """
    each = 8 // bits
    fill = [(0, 0)] * (codes.ndim - 1) + [(0, -codes.shape[-1] % each)]
    grouped = np.pad(codes, fill).astype(np.uint8).reshape(*codes.shape[:-1], -1, each)
    shifts = np.arange(each, dtype=np.uint8) * np.uint8(bits)
    return np.asarray(np.bitwise_or.reduce(grouped << shifts, axis=-1), np.uint8)


def _drop_unread(model: onnx.ModelProto) -> set[str]:
    # Drop dequantizers and copies that no node reads any more, and return the tensors that nodes read.
    outputs = {o.name for o in model.graph.output}
    kept: list[Any] = []
    read = set(outputs)
    for node in reversed(model.graph.node):
        if read.intersection(node.output):
            kept.append(node)
            read.update(node.input)
    del model.graph.node[:]
    model.graph.node.extend(reversed(kept))
    called = {(node.domain, node.op_type) for node in kept}
    for function in [f for f in model.functions if (f.domain, f.name) not in called]:
        model.functions.remove(function)
    domains = {"", *(domain for domain, _ in called)}
    for used in [o for o in model.opset_import if o.domain not in domains]:
        model.opset_import.remove(used)
    return read


__all__ = ["packed", "with_block_products"]
