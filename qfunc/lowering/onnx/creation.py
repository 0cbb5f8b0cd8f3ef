"""Write arange, full and casts as ONNX, and give operands one type."""

from __future__ import annotations

import torch
from torch import fx

from qfunc.errors import DeployError
from qfunc.lowering.onnx.builder import element_type
from qfunc.lowering.onnx.context import OpContext
from qfunc.lowering.onnx.dynamic_shapes import number, sizes, vector
from qfunc.lowering.onnx.formula import Write
from qfunc.lowering.onnx.shape_inference import Shape


def operands(c: OpContext, dtype: torch.dtype, *parameters: str) -> list[str]:
    """Return the names of arguments in one type, as torch promotes them; numbers and sizes become tensors."""
    return [operand(c, p, dtype) for p in parameters]


def operand(c: OpContext, parameter: str, dtype: torch.dtype) -> str:
    """Return the name of an argument in one type; a number or size becomes a tensor."""
    value = number(c, c[parameter])
    if not isinstance(value, fx.Node):
        return c.graph.constant(torch.tensor(value, dtype=dtype), f"{c.name}.{parameter}")
    shape = c.shapes[value.name]
    source_dtype = shape.dtype if isinstance(shape, Shape) else torch.int64
    name = c.read(value) if isinstance(shape, Shape) else vector(c, [value], f"{c.name}.{parameter}")
    return name if source_dtype == dtype else c.graph.node("Cast", [name], f"{c.name}.{parameter}_cast", to=element_type(dtype))


def promoted(c: OpContext, *parameters: str) -> torch.dtype:
    """Return the type to which torch promotes the arguments."""
    values = [number(c, c[p]) for p in parameters]
    dtypes = [c.shapes[v.name].dtype for v in values if isinstance(v, fx.Node) and isinstance(c.shapes[v.name], Shape)]
    common = dtypes[0] if len(dtypes) == 1 else torch.promote_types(*dtypes)
    mixes_float = any(isinstance(v, float) for v in values) and not common.is_floating_point
    mixes_integer = any(isinstance(v, int) and not isinstance(v, bool) for v in values) and common == torch.bool
    return torch.float32 if mixes_float else torch.int64 if mixes_integer else common


def _cast(c: OpContext) -> str:
    return c.write("Cast", c.input("value"), to=element_type(c.result.dtype))


def _arange(c: OpContext) -> str:
    bounds = [number(c, c[p]) for p in ("start", "end", "step")]
    if not any(isinstance(v, fx.Node) for v in bounds):
        return c.graph.constant(torch.arange(*bounds, dtype=c.result.dtype), c.name)
    if any(isinstance(v, float) for v in bounds):
        do = "Write an arange of integers times the step."
        raise DeployError(where=f"op {c.name!r}", found=f"arange{tuple(bounds)}", wanted="integers", do=do)
    axes = c.graph.integers(0, name=f"{c.name}.axes")
    scalars = [
        c.graph.node("Squeeze", [vector(c, [v], f"{c.name}.{p}"), axes], f"{c.name}.{p}_number")
        for p, v in zip(("start", "end", "step"), bounds, strict=True)
    ]
    if c.result.dtype == torch.int64:
        return c.write("Range", *scalars)
    return c.write("Cast", c.graph.node("Range", scalars, f"{c.name}.range"), to=element_type(c.result.dtype))


def _full(c: OpContext) -> str:
    value = operand(c, "value", c.result.dtype)
    return c.write("Expand", value, vector(c, sizes(c, c.result), f"{c.name}.shape"))


WRITERS: dict[str, Write] = {"arange": _arange, "full": _full, "cast": _cast}
"""The writers of this family, by kind."""
