"""Sizes of inputs that a program does not take, because torch.export fixed others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, fx

from qfunc.errors import CalibrationError, CaptureError
from qfunc.graph.arguments import flatten
from qfunc.graph.record import Record, record_of

_USE_DYNAMIC_SHAPES = (
    "Export it with dynamic_shapes, such as {'x': {0: torch.export.Dim.AUTO}}, and an example of two; "
    "or quantize the nn.Module itself."
)


def require_sizes_of_call(model: fx.GraphModule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse a call of a captured program with tensors of other sizes than in its export.

    Raises:
        CaptureError: a size differs; the message names the input.
    """
    record = record_of(model)
    if record is None or not record.sizes:
        return  # return early, because torch.compile cannot trace the access to the graph
    info = getattr(model.graph._codegen, "pytree_info", None)
    if info is None or info.in_spec is None:
        return
    by_position, by_name = (spec.children() for spec in info.in_spec.children())
    names = info.in_spec.children()[1].context
    inputs = [
        *zip(args, by_position, strict=False),
        *((kwargs[k], s) for k, s in zip(names, by_name, strict=True) if k in kwargs),
    ]
    require_sizes(record, [_in_order(value, spec) for value, spec in inputs])


def require_sizes(record: Record | None, inputs: Iterable[Any]) -> None:
    """Refuse arguments of other sizes, as `require_sizes_of_call` does, given in the order of the program's inputs.

    Raises:
        CaptureError: a size differs; the message names the input.
    """
    if record is None or not record.sizes:
        return
    tensors = [t for t in flatten(list(inputs)) if isinstance(t, Tensor)]
    for tensor, (name, sizes) in zip(tensors, record.sizes, strict=False):
        if tensor.ndim == len(sizes) and all(fixed in (None, n) for fixed, n in zip(sizes, tensor.shape, strict=True)):
            continue
        wanted = ", ".join("any" if n is None else str(n) for n in sizes)
        raise CaptureError(
            where=f"call of an exported program, input {name!r}",
            found=f"a tensor of shape {list(tensor.shape)}",
            wanted=f"[{wanted}], to which torch.export fixed it",
            do=_USE_DYNAMIC_SHAPES,
        )


def require_any_batch(record: Record | None, step: str) -> None:
    """Refuse a program with a fixed batch size, for a step that chooses batch sizes itself.

    Raises:
        CalibrationError: the batch size is fixed; the message names the input and the size.
    """
    if record is None:
        return
    first = next(((name, sizes[0]) for name, sizes in record.sizes if sizes), ("", None))
    count = record.batch if record.batch is not None else first[1]
    if count is None:
        return
    within = f", submodule {record.within!r}" if record.within else ""
    do = _USE_DYNAMIC_SHAPES
    if record.batch is not None:
        do = "Quantize the submodules that accept any batch size: quantize(target, submodules=...)."
    raise CalibrationError(
        where=f"{step}{within}" + (f", input {first[0]!r}" if first[0] else ""),
        found=f"{count} on the first axis, to which torch.export fixed it",
        wanted="a model that accepts any batch size",
        do=do,
    )


def _in_order(value: Any, spec: Any) -> Any:
    # Return the entries of a dict in the order of the program's inputs.
    if isinstance(value, Mapping) and isinstance(spec.context, list) and set(spec.context) == set(value):
        return [_in_order(value[k], s) for k, s in zip(spec.context, spec.children(), strict=True)]
    return value
