"""Each kind of op is written to ONNX in one way: by the text of its record, or by a function of lowering/onnx."""

from __future__ import annotations

from importlib import import_module

from qfunc.lowering.onnx.ops import WRITERS
from qfunc.ops.opset import OPS

FAMILIES = ("linear", "elementwise", "pooling", "normalization", "attention", "shape", "indexing", "creation", "reduction",
            "image", "recurrent")  # fmt: skip
WRITTEN = {"split", "chunk"}
"""Kinds whose writer needs the parts that are read."""


def test_each_kind_is_written_in_one_way() -> None:
    functions = [kind for family in FAMILIES for kind in import_module(f"qfunc.lowering.onnx.{family}").WRITERS]
    texts = {op.kind for op in OPS if op.onnx is not None}
    assert len(functions) == len(set(functions))
    assert texts.isdisjoint(functions)
    assert texts | set(functions) >= {op.kind for op in OPS} - WRITTEN
    assert {op.kind for op in OPS} - WRITTEN <= set(WRITERS)


def test_records_of_one_kind_have_one_text() -> None:
    for kind in {op.kind for op in OPS}:
        assert len({op.onnx for op in OPS if op.kind == kind}) == 1, kind
