"""The element types of an optimised graph are those that ONNX Runtime infers."""

from __future__ import annotations

import onnx
import pytest
from onnx import helper

from qfunc.targets.onnxruntime.optimized_graph import element_types

FLOAT, INT, BOOL = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.BOOL
NODES = [
    (["x", "k"], "TopK", 2, {}),
    (["i", "depth", "x"], "OneHot", 1, {}),
    (["x", "x"], "Less", 1, {}),
    (["x"], "ArgMax", 1, {}),
    (["x"], "NonZero", 1, {}),
    (["x"], "Shape", 1, {}),
    (["x"], "Cast", 1, {"to": onnx.TensorProto.INT32}),
    (["i"], "Cast", 1, {"to": FLOAT}),
    (["b", "i", "i"], "Where", 1, {}),
    (["x", "i"], "Gather", 1, {}),
    (["x"], "IsNaN", 1, {}),
]


@pytest.mark.parametrize(("inputs", "kind", "count", "fields"), NODES)
def test_by_the_schema(inputs: list[str], kind: str, count: int, fields: dict[str, int]) -> None:
    given = {"x": FLOAT, "i": INT, "b": BOOL, "k": INT, "depth": INT}
    ends = [helper.make_tensor_value_info(n, given[n], None) for n in dict.fromkeys(inputs)]
    graph = helper.make_graph([helper.make_node(kind, inputs, [f"y{i}" for i in range(count)], **fields)], "g", ends, [])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    found = element_types(model)
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph
    oracle = {v.name: v.type.tensor_type.elem_type for v in inferred.value_info}
    assert {name: found[name] for name in oracle} == oracle
    assert len(oracle) == count
