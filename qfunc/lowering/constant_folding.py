"""Fold the parts of a Q/DQ model that only constants and the sizes of one example determine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import RuntimeContextError

from qfunc.lowering.qdq.qparams import Array
from qfunc.lowering.qdq.reader import QdqModel

QUANTIZERS = ("QuantizeLinear", "DequantizeLinear")
_KEPT = ("Bernoulli", "Multinomial", "Dropout")
_INTEGERS = (onnx.TensorProto.INT64, onnx.TensorProto.INT32)

Curves = Mapping[str, Callable[[Array], Array]]
"""Type of node -> how the runtime computes it, where that is another number than NumPy's."""

NO_CURVES: Curves = {}


def folded(
    model: onnx.ModelProto, kept: Collection[str] = QUANTIZERS, curves: Curves = NO_CURVES
) -> tuple[QdqModel, dict[str, Array]]:
    """Return (a reader of the model, the values of computed tensors that no input's values change, for one example).

    A real number that depends on the batch size is not folded: it would differ for a batch of another size.
    `kept` are types of nodes that are not folded.
    """
    source = QdqModel(model)
    one, two, three = _values(source, kept, curves)
    if not all(source.has_sizes(name) for name in (*one, *source.producers)):
        source = QdqModel(model, (two, three))
        one, two, three = _values(source, kept, curves)
    return source, one


def folded_constants(source: QdqModel, kept: Collection[str] = QUANTIZERS, curves: Curves = NO_CURVES) -> dict[str, Array]:
    """Return the values of `folded` for a reader of a model; `kept` are types of nodes that are not folded."""
    return _values(source, kept, curves)[0]


def _values(source: QdqModel, kept: Collection[str], curves: Curves) -> list[dict[str, Array]]:
    # The folded tensors for batches of one, two and three examples.
    known = [dict(source.constants) for _ in range(3)]
    for node in source.graph.node:
        if node.op_type in (*_KEPT, *kept) or node.op_type.startswith("Random"):
            continue
        results = [_evaluated(source, node, values, count, curves) for count, values in enumerate(known, 1)]
        if None in results or _turns_batch_size_into_numbers(source, node, *known[:2]):
            continue
        for values, made in zip(known, results, strict=True):
            values.update(zip(node.output, made or (), strict=False))
    return [{n: v for n, v in values.items() if n and n not in source.constants} for values in known]


def _evaluated(source: QdqModel, node: onnx.NodeProto, known: dict[str, Array], count: int, curves: Curves) -> list[Any] | None:
    # The node's results, or None if an input has no known value.
    if node.op_type == "Shape":
        return _sizes(source, node, known, count)
    names = [name for name in node.input if name]
    if any(name not in known for name in names) or any(a.type == onnx.AttributeProto.GRAPH for a in node.attribute):
        return None
    if node.op_type in curves and known[names[0]].dtype == np.float32:
        return [curves[node.op_type](known[names[0]])]
    if node.op_type == "GatherElements":  # the evaluator refuses more than 64 entries along the axis
        return [_gathered(known[names[0]], known[names[1]], int(source.attribute(node, "axis", 0)))]
    try:
        return list(_evaluator(source, node, known, names).run(None, {name: known[name] for name in names}))
    except (IndexError, ValueError):  # forms that ONNX's evaluator does not compute; the op is then written
        return None


def _evaluator(source: QdqModel, node: onnx.NodeProto, known: dict[str, Array], names: list[str]) -> ReferenceEvaluator:
    opsets = {entry.domain: entry.version for entry in source.model.opset_import}
    try:
        return ReferenceEvaluator(node, opsets=opsets)
    except RuntimeContextError:  # a function of ONNX, as Gelu is, whose body follows from the types of its inputs
        inputs = [helper.make_tensor_value_info(n, _type(known[n]), known[n].shape) for n in dict.fromkeys(names)]
        outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
        graph = helper.make_graph([node], "one_node", inputs, outputs)
        model = helper.make_model(graph, opset_imports=source.model.opset_import)
        return ReferenceEvaluator(onnx.shape_inference.infer_shapes(model))


def _type(value: Array) -> int:
    return helper.np_dtype_to_tensor_dtype(value.dtype)


def _gathered(data: Array, indices: Array, axis: int) -> Array:
    # Along the other axes the indices may be shorter.
    within = (slice(None) if i == axis % data.ndim else slice(n) for i, n in enumerate(indices.shape))
    return np.take_along_axis(data[tuple(within)], indices, axis)


def _sizes(source: QdqModel, node: onnx.NodeProto, known: dict[str, Array], count: int) -> list[Any] | None:
    name = node.input[0]
    if name in known:
        sizes = list(known[name].shape)
    elif source.has_sizes(name):
        sizes = [n * (count if i == source.varies(name) else 1) for i, n in enumerate(source.shape(name, node.name))]
    else:
        return None
    start, end = (source.attribute(node, key) for key in ("start", "end"))
    return [np.array(sizes[slice(start, end)], np.int64)]


def _turns_batch_size_into_numbers(source: QdqModel, node: onnx.NodeProto, one: Any, two: Any) -> bool:
    if node.op_type != "Cast" or source.attribute(node, "to") in _INTEGERS:
        return False
    a, b = one[node.input[0]], two[node.input[0]]
    return bool(np.issubdtype(a.dtype, np.integer) and not np.array_equal(a, b))
