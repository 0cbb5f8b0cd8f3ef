"""Read constants, casts and tensors that are made of sizes."""

from __future__ import annotations

from typing import Any

import torch

from qfunc.reading.node import NodeReader, Reader
from qfunc.reading.size_arithmetic import torch_type
from qfunc.reading.values import Constant, Number, Numbers


def _constant(r: NodeReader) -> Any:
    for name, dtype in (("value_int", torch.int64), ("value_ints", torch.int64), ("value_float", torch.float32),
                        ("value_floats", torch.float32)):  # fmt: skip
        if name in r.attribute_names:
            return Constant(torch.tensor(r.attribute(name), dtype=dtype), r.path)
    value = r.attribute("value")
    if not isinstance(value, torch.Tensor):
        raise r.refuse(f"a constant of {sorted(r.attribute_names)}", "a tensor of numbers", "Leave the op out.")
    return Constant(value, r.path, trains=value.is_floating_point() and value.ndim > 0)


def _constant_of_shape(r: NodeReader) -> Any:
    value = r.attribute("value", torch.zeros(1))
    shape = r.numbers(0, "sizes")
    return r.call(torch.full, tuple(shape), value.reshape(-1)[0].item(), dtype=value.dtype)


def _cast_to(r: NodeReader, dtype: torch.dtype | None) -> Any:
    value = r.value(0)
    if dtype is None:
        raise r.refuse(f"a cast to type {r.attribute('to')}", "a type that torch has", "Leave the op out.")
    if not isinstance(value, Numbers) and r.dtype() == dtype:
        return value
    return r.call(torch.Tensor.to, r.x(), dtype)


def _cast(r: NodeReader) -> Any:
    return _cast_to(r, torch_type(int(r.attribute("to"))))


def _cast_like(r: NodeReader) -> Any:
    return _cast_to(r, r.dtype(1))


def _range(r: NodeReader) -> Any:
    start, end, step = (_whole(r.numbers(i, "ends")[0]) for i in range(3))
    return r.call(torch.arange, start, end, step, dtype=r.dtype())


def _whole(number: Number) -> Number:
    # Positions as real numbers, 0.0, 1.0, ... to a size, are integers in another type.
    return int(number) if isinstance(number, float) and number.is_integer() else number


def _eye(r: NodeReader) -> Any:
    rows, columns = r.length(0), r.length(1)
    code, k = r.attribute("dtype"), int(r.attribute("k", 0))
    if rows is None or columns is None:
        raise r.refuse("an identity of sizes that vary", "known sizes", r.network.how_to_fix_sizes)
    whole = torch.diag(torch.ones(max(rows, columns) + abs(k)), k)[:rows, :columns]
    return Constant(whole.to(r.dtype() if code is None else torch_type(int(code))).contiguous(), r.path)


READERS: dict[str, Reader] = {
    "Constant": _constant, "ConstantOfShape": _constant_of_shape, "Cast": _cast, "CastLike": _cast_like, "Range": _range,
    "EyeLike": _eye,
}  # fmt: skip
"""The readers of this family, by operator."""
