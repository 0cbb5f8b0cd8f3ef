"""Sizes that vary in an artifact: formats that fix them, and the sizes with which an artifact is checked."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from attrs import evolve
from torch import fx

from qfunc.errors import DeployError
from qfunc.execution.batches import infos
from qfunc.execution.varying_sizes import Axes, axes_of, varying_axes
from qfunc.graph.record import TensorInfo, attach, record_of
from qfunc.specs import Target
from qfunc.specs.file_format import format_of


def fixes_sizes(target: Target, axes: Axes | None) -> bool:
    """Return True if axes vary that the files of a target fix."""
    return bool(format_of(target.lowering).one_size and varying_axes(axes))


def require_one_size(target: Target, axes: Axes | None, inputs: Sequence[TensorInfo], names: Sequence[str]) -> None:
    """Refuse axes that vary and that the files fix.

    Raises:
        DeployError: names the input and its sizes.
    """
    if axes is None or not fixes_sizes(target, axes):
        return
    index, _ = varying_axes(axes)[0]
    shapes = [shape for shape in (inputs[index].shape, inputs[index].other) if shape]
    seen = [f"[{', '.join(_sizes(shape, axes[index], 'n'))}]" for shape in shapes]
    given = ", ".join(f"torch.zeros({', '.join(_sizes(i.shape, row, '1'))})" for i, row in zip(inputs, axes, strict=True))
    raise DeployError(
        where=f"deploy({target.name}), input {names[index]!r}",
        found=f"sizes that vary: {' and '.join(seen)}",
        wanted=f"one size for {format_of(target.lowering).one_size}; only the batch may vary",
        do=f"Give the size: deploy(target, example_inputs=({given},)), a file for each size.",
    )


def _sizes(shape: Sequence[int], row: Sequence[str | None], batch: str) -> list[str]:
    return [batch if name == "batch" else str(n) for n, name in zip(shape, row, strict=True)]


def other_sizes(inputs: tuple[TensorInfo, ...], axes: Axes | None) -> list[tuple[TensorInfo, ...]]:
    """Return the inputs in the other sizes that calibration saw, if there are any and they vary in the artifact."""
    if not varying_axes(axes) or not any(i.other for i in inputs):
        return []
    return [tuple(evolve(i, shape=i.other) if i.other else i for i in inputs)]


def with_sizes_of(model: fx.GraphModule, arguments: tuple[Any, ...], target: Target) -> fx.GraphModule:
    """Return a copy of a quantized model that records the shapes of these arguments, alone if the target's files fix sizes."""
    record = record_of(model)
    assert record is not None
    inputs = infos(arguments)
    if fixes_sizes(target, axes_of(record, inputs)):
        rows = tuple(tuple(name if name == "batch" else None for name in row) for row in record.axes)
        record = evolve(record, axes=rows)
    return attach(copy.deepcopy(model), evolve(record, inputs=inputs))
