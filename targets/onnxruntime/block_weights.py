"""Write products with weights in blocks as ONNX Runtime's MatMulNBits, and tables in blocks as its GatherBlockQuantized."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx
from attrs import frozen
from onnx import helper, numpy_helper

from qfunc.lowering.qdq.qparams import Array
from qfunc.lowering.qdq.reader import QdqModel, copies
from qfunc.lowering.quantized_tensor import QuantizedTensor
from qfunc.numerics.sums.blocks import stored_bits
from qfunc.specs import Int

OPERATOR, LOOKUP, DOMAIN = "MatMulNBits", "GatherBlockQuantized", "com.microsoft"
_WIDEST, _LEAST_BLOCK = 8, 16


def with_block_products(model: onnx.ModelProto, sites: Iterable[QuantizedTensor], accuracy_level: int) -> onnx.ModelProto:
    """Return the model with a MatMulNBits in place of each MatMul or Gemm whose weight has blocks along K.

    A Gather of rows of a table with blocks along them becomes a GatherBlockQuantized, of codes [rows, K bits / 8].

    Weights are packed in 2, 4 or 8 bits, the low bits first, [N, K / block, block * bits / 8]; signed codes are stored plus
    2^(bits - 1), which is the operator's zero point where it has none.  All other products stay as they are.

    Source: ONNX Runtime, docs/ContribOperators.md, com.microsoft.MatMulNBits and GatherBlockQuantized.
    """
    source, made = QdqModel(model), onnx.ModelProto()
    bits = {place.real: site.format.bits for site in sites if isinstance(site.format, Int) for place in site.places}
    stored: dict[str, onnx.TensorProto] = {}
    for node in model.graph.node:
        weight = _weight(source, node, bits)
        if weight is None:
            made.graph.node.append(node)
        elif node.op_type == "Gather":
            made.graph.node.extend(_lookup(stored, node, weight))
        else:
            made.graph.node.append(_product(stored, node, weight, accuracy_level))
    _copy_rest(model, made)
    _without_quantizers(made)
    if DOMAIN not in [o.domain for o in made.opset_import] and any(n.domain == DOMAIN for n in made.graph.node):
        made.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    kept = drop_unread(made)
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
    lookup = node.op_type == "Gather" and source.attribute(node, "axis", 0) == 0
    if node.op_type not in ("MatMul", "Gemm") and not lookup:
        return None
    if any(source.attribute(node, a, 1.0) != 1.0 for a in ("alpha", "beta")):
        return None
    name = node.input[0 if lookup else 1]
    while name in source.producers and copies(source.producers[name]):
        name = source.producers[name].input[0]
    dequantizer = source.dequantizer(name)
    block = 0 if dequantizer is None else int(source.attribute(dequantizer, "block_size", 0))
    if dequantizer is None or bits.get(name, _WIDEST + 1) > _WIDEST or block < _LEAST_BLOCK or block & (block - 1):
        return None
    # One weight at a time: a reader's `constants` hold all.
    codes, scales, zeros = (numpy_helper.to_array(source.initializers[name]) for name in dequantizer.input)
    transposed = lookup or (node.op_type == "Gemm" and source.attribute(node, "transB", 0))
    if codes.ndim != 2 or source.attribute(dequantizer, "axis", 1) != (1 if transposed else 0):
        return None
    if not transposed:
        codes, scales, zeros = codes.T, scales.T, zeros.T
    signed, width = codes.dtype == np.int8, stored_bits(bits[name])
    shift = 1 << (width - 1) if signed else 0
    stored = codes.astype(np.uint8) + np.uint8(shift)  # modulo 256, so that signed codes move, too
    return _Weight(dequantizer.input[0], width, block, stored, scales, None if signed else zeros)


def _lookup(stored: dict[str, Any], node: onnx.NodeProto, weight: _Weight) -> list[onnx.NodeProto]:
    # A row has whole bytes: of K that fill none, the last columns are cut off again.
    k, each = weight.codes.shape[1], _WIDEST // weight.bits
    zeros = None if weight.zero_points is None else packed(weight.zero_points.astype(np.uint8), weight.bits)
    arrays = {"rows": packed(weight.codes, weight.bits), "scales": weight.scales.astype(np.float32), "zero_points": zeros}
    names = [_kept(stored, f"{weight.name}.{part}", array) for part, array in arrays.items() if array is not None]
    result = node.output[0] if k % each == 0 else f"{node.output[0]}.whole"
    found = helper.make_node(
        LOOKUP, [names[0], node.input[1], *names[1:]], [result], name=node.name, domain=DOMAIN, gather_axis=0, quantize_axis=1,
        block_size=weight.block, bits=weight.bits,
    )  # fmt: skip
    if k % each == 0:
        return [found]
    ends = [_kept(stored, f"{weight.name}.{n}", np.array([v], np.int64)) for n, v in (("first", 0), ("end", k), ("last", -1))]
    return [found, helper.make_node("Slice", [result, *ends], [node.output[0]], name=f"{node.name}.cut")]


def _kept(stored: dict[str, Any], name: str, array: Array) -> str:
    if name not in stored:
        stored[name] = numpy_helper.from_array(np.ascontiguousarray(array), name)
    return name


def _product(stored: dict[str, Any], node: onnx.NodeProto, weight: _Weight, accuracy_level: int) -> onnx.NodeProto:
    # Add the packed weight to the stored constants.
    n, k = weight.codes.shape
    whole = np.pad(weight.codes, ((0, 0), (0, -k % weight.block)))  # a partial last block ends with codes that nothing reads
    blocks = whole.reshape(n, -1, weight.block)
    zeros = None if weight.zero_points is None else packed(weight.zero_points.astype(np.uint8), weight.bits)
    arrays = (packed(blocks, weight.bits), weight.scales.astype(np.float32), zeros)
    names = [node.input[0]]
    for part, array in zip(("packed", "scales", "zero_points"), arrays, strict=True):
        names.append("" if array is None else _kept(stored, f"{weight.name}.{part}", array))
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


def drop_unread(model: onnx.ModelProto) -> set[str]:
    """Drop nodes that no other reads any more, in place, and return the tensors that nodes read."""
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
