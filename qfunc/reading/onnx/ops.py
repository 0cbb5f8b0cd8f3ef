"""The table of readers: (domain, operator) -> a function, or the ONNX text of a record that is one operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx
from onnx import helper

from qfunc.ops.definition import Op
from qfunc.ops.opset import OPS
from qfunc.reading.node import NodeReader, Reader
from qfunc.reading.onnx import (
    attention,
    creation,
    elementwise,
    image,
    indexing,
    linear,
    normalization,
    pooling,
    recurrent,
    reduction,
    shape,
)

MICROSOFT = "com.microsoft"
CORE = ("", "ai.onnx")


def _derived() -> dict[str, Reader]:
    # Records whose text is one operator of inputs and parameters.
    found: dict[str, list[Op]] = {}
    for op in OPS:
        words = (op.onnx or ";").split()
        operands = [w for w in words[1:] if "=" not in w]
        if ";" not in (op.onnx or ";") and all(w == "x" or w in op.parameters for w in operands):
            found.setdefault(words[0], []).append(op)
    return {name: _reader_of(records) for name, records in found.items()}


def _reader_of(records: Sequence[Op]) -> Reader:
    def read(r: NodeReader) -> Any:
        for op in records:
            if (call := _bound(r, op)) is not None:
                return r.call(op.call, *call)
        found = ", ".join(f"{name}={r.attribute(name)!r}" for name in sorted(r.attribute_names))
        raise r.refuse(
            found or "other attributes", "attributes that torch's op has", "Leave the op out: read(..., outputs=(...))."
        )

    return read


def _bound(r: NodeReader, op: Op) -> tuple[Any, ...] | None:
    # The arguments of a record, if its text has the values of the node's attributes.
    words = (op.onnx or "").split()[1:]
    given: dict[str, Any] = {}
    for index, word in enumerate(w for w in words if "=" not in w):
        given[op.parameters[0] if word == "x" else word] = r.x(index)
    schema = onnx.defs.get_schema(r.op, r.version, r.proto.domain)
    defaults = {n: helper.get_attribute_value(a.default_value) for n, a in schema.attributes.items() if a.default_value.name}
    named = dict(w.split("=") for w in words if "=" in w)
    for name in {*r.attribute_names, *named}:
        default = defaults.get(name)
        value = r.attribute(name, default.decode() if isinstance(default, bytes) else default)
        parameter = named.get(name)
        if parameter is None:
            if value != (default.decode() if isinstance(default, bytes) else default):
                return None
        elif parameter not in op.parameters:
            if abs(float(parameter) - float(value)) > 2.0**-24:  # one rounding to float32
                return None
        elif given.setdefault(parameter, value) != value:
            return None
    values = [given.get(p, op.signature.parameters[p].default) for p in op.parameters]
    return tuple(values)


READERS: dict[str, Reader] = {
    **_derived(), **linear.READERS, **elementwise.READERS, **pooling.READERS, **normalization.READERS, **shape.READERS,
    **indexing.READERS, **creation.READERS, **reduction.READERS, **image.READERS, **recurrent.READERS, **attention.STANDARD,
}  # fmt: skip
"""Operators of ONNX's own domain and their readers."""


def reader_of(node: onnx.NodeProto) -> Callable[[NodeReader], Any] | None:
    """Return the reader of a node, or None."""
    if node.domain == MICROSOFT:
        return attention.READERS.get(node.op_type)
    if node.domain not in CORE or (node.op_type == "Attention" and not attention.is_plain(node)):
        return None
    return READERS.get(node.op_type)
