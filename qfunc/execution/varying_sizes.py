"""Axes of the inputs whose sizes vary: those that torch.export left dynamic, and those with several sizes in calibration."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve

from qfunc.graph.record import Record, TensorInfo

Axes = tuple[tuple[str | None, ...], ...]
"""For each input of a model, the names of the axes that vary; None for a fixed axis."""


def join_sizes(first: tuple[TensorInfo, ...], later: tuple[TensorInfo, ...]) -> tuple[TensorInfo, ...]:
    """Return the inputs of the first batch, with the first other size of each axis but the batch that differs later.

    >>> join_sizes((TensorInfo((2, 3, 8, 8), "torch.float32"),), (TensorInfo((2, 3, 8, 16), "torch.float32"),))
    (TensorInfo(shape=(2, 3, 8, 8), dtype='torch.float32', other=(2, 3, 8, 16)),)
    """
    if not first or [len(i.shape) for i in first] != [len(i.shape) for i in later]:
        return first
    batches = first[0].shape[:1], later[0].shape[:1]
    return tuple(_joined(a, b, (a.shape[:1], b.shape[:1]) == batches) for a, b in zip(first, later, strict=True))


def _joined(first: TensorInfo, later: TensorInfo, batched: bool) -> TensorInfo:
    known = first.other or first.shape
    sizes = zip(first.shape, known, later.shape, later.other or later.shape, strict=True)
    other = tuple(next((n for n in more if n not in (size, 0)), size) for size, *more in sizes)
    if batched:  # the batch may always vary
        other = first.shape[:1] + other[1:]
    return first if other == known else evolve(first, other=other)


def axes_of(record: Record, inputs: Sequence[TensorInfo]) -> Axes | None:
    """Return the axes that vary in an artifact; () if the batch alone does, None if nothing does."""
    rows = [(*row, *(None,) * len(i.shape)) for row, i in zip((*record.axes, *((),) * len(inputs)), inputs, strict=False)]
    batch = inputs[0].shape[:1] if inputs and batch_of(record) is not None else None
    found = tuple(
        tuple(_name(row[axis], index, axis, info, batch) for axis in range(len(info.shape)))
        for index, (row, info) in enumerate(zip(rows, inputs, strict=True))
    )
    return found if varying_axes(found) else batch_of(record)


def _name(exported: str | None, index: int, axis: int, info: TensorInfo, batch: tuple[int, ...] | None) -> str | None:
    if exported is not None or (axis == 0 and info.shape[:1] == batch):
        return exported or "batch"
    return f"{index}_{axis}" if info.other and info.other[axis] != info.shape[axis] else None


def batch_of(record: Record) -> Axes | None:
    """Return the axes that vary if all sizes but the batch are fixed; () for the first axes, None if nothing varies."""
    names = [name for row in record.axes for name in row if name is not None]
    if record.batch is not None or (record.sizes and not names) or (names and "batch" not in names):
        return None
    return tuple(tuple(name if name == "batch" else None for name in row) for row in record.axes)


def varying_axes(axes: Axes | None) -> list[tuple[int, int]]:
    """Return (input, axis) of each axis that varies and is not the batch."""
    return [(i, axis) for i, row in enumerate(axes or ()) for axis, name in enumerate(row) if name not in (None, "batch")]
