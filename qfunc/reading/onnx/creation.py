"""Read constants, casts and tensors that are made of sizes."""

from __future__ import annotations

import torch
from torch import fx

from qfunc.reading.node import NodeReader, Reader
from qfunc.reading.size_arithmetic import torch_type
from qfunc.reading.values import Constant, Numbers, Value


def _constant(r: NodeReader) -> Value:
    for name, dtype in (("value_int", torch.int64), ("value_ints", torch.int64), ("value_float", torch.float32),
                        ("value_floats", torch.float32)):  # fmt: skip
        if name in r.attribute_names:
            return Constant(torch.tensor(r.attribute(name), dtype=dtype), r.path)
    value = r.attribute("value")
    if not isinstance(value, torch.Tensor):
        raise r.refuse(f"a constant of {sorted(r.attribute_names)}", "a tensor of numbers", "Leave the op out.")
    return Constant(value, r.path, trains=value.is_floating_point() and value.ndim > 0)


def _constant_of_shape(r: NodeReader) -> Value:
    value = r.attribute("value", torch.zeros(1))
    shape = r.numbers(0, "sizes")
    return r.call(torch.full, tuple(shape), value.reshape(-1)[0].item(), dtype=value.dtype)  # type: ignore[no-any-return]


def _cast_to(r: NodeReader, dtype: torch.dtype | None) -> Value:
    value = r.value(0)
    if dtype is None:
        raise r.refuse(f"a cast to type {r.attribute('to')}", "a type that torch has", "Leave the op out.")
    if not isinstance(value, Numbers) and r.dtype() == dtype:
        return value
    return r.call(torch.Tensor.to, r.x(), dtype)  # type: ignore[no-any-return]


def _cast(r: NodeReader) -> Value:
    return _cast_to(r, torch_type(int(r.attribute("to"))))


def _cast_like(r: NodeReader) -> Value:
    return _cast_to(r, r.dtype(1))


def _range(r: NodeReader) -> Value:
    start, end, step = (r.numbers(i, "ends")[0] for i in range(3))
    return r.call(torch.arange, start, end, step, dtype=r.dtype())  # type: ignore[no-any-return]


def _eye(r: NodeReader) -> Value:
    rows, columns = r.sizes()
    code = r.attribute("dtype")
    dtype = r.dtype() if code is None else torch_type(int(code))
    if isinstance(rows, fx.Node) or isinstance(columns, fx.Node):
        raise r.refuse("an identity of sizes that vary", "known sizes", "Fix them: read(..., sizes={name: number}).")
    return Constant(torch.diag(torch.ones(max(rows, columns) + abs(k := int(r.attribute("k", 0)))), k)[:rows, :columns].to(dtype), r.path)  # type: ignore[misc]


READERS: dict[str, Reader] = {
    "Constant": _constant, "ConstantOfShape": _constant_of_shape, "Cast": _cast, "CastLike": _cast_like, "Range": _range,
    "EyeLike": _eye,
}  # fmt: skip
"""The readers of this family, by operator."""
