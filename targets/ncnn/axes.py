"""The axes of the model's tensors in ncnn's blobs, which have no batch axis and at most four others."""

from __future__ import annotations

import math
from collections.abc import Sequence

from qfunc.errors import DeployError
from qfunc.files.ncnn_param import with_axis
from qfunc.lowering.format_checks import SeparateExamples
from qfunc.lowering.qdq.reader import QdqModel

MOST = 4
"""The largest number of axes of a blob. Tensors of more axes are blobs of one."""


def batch_axis(source: QdqModel, name: str, node: str) -> int | None:
    """Return the axis that the blob lacks: the batch, or the first axis of a tensor that is the same for all examples.

    It is None if the axis has several entries for each example.
    """
    shape, axis = source.shape(name, node), source.varies(name)
    axis = 0 if axis is None else axis
    return axis if shape[axis : axis + 1] == (1,) else None


def example_shape(source: QdqModel, name: str, node: str) -> tuple[int, ...]:
    """Return the sizes of a tensor without its batch axis, the outermost first."""
    shape, gone = source.shape(name, node), batch_axis(source, name, node)
    return tuple(n for i, n in enumerate(shape) if i != gone) or (1,)


def blob_shape(source: QdqModel, name: str, node: str) -> tuple[int, ...]:
    """Return the sizes of a tensor's blob, the outermost first: `example_shape`, or one axis for a tensor of more than four."""
    shape = example_shape(source, name, node)
    return shape if len(shape) <= MOST else (math.prod(shape),)


def merged(shapes: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return shapes that broadcast as the given ones of equal rank do, with neighbouring axes merged where all allow it.

    >>> merged([(2, 3, 4, 5), (1, 1, 4, 5)]), merged([(2, 3, 4), (2, 3, 4)])
    ([[6, 20], [1, 20]], [[24], [24]])
    """
    columns = [c for c in zip(*shapes, strict=True) if any(n != 1 for n in c)]
    groups: list[list[tuple[int, ...]]] = []
    for column in columns:
        if groups and [n == 1 for n in groups[-1][-1]] == [n == 1 for n in column]:
            groups[-1].append(column)
        else:
            groups.append([column])
    return [[math.prod(c[i] for c in group) for group in groups] or [1] for i in range(len(shapes))]


def permutation(shape: Sequence[int], order: Sequence[int]) -> tuple[list[int], tuple[int, ...]]:
    """Return (a shape, an order) with the fewest axes whose transposition moves the entries as the given one does.

    >>> permutation((1, 4, 2, 3, 5), (0, 2, 1, 3, 4)), permutation((2, 1, 3), (1, 0, 2))
    (([4, 2, 15], (1, 0, 2)), ([6], (0,)))
    """
    axes = [a for a in range(len(shape)) if shape[a] != 1]
    groups: list[list[int]] = []
    for axis in (a for a in order if shape[a] != 1):
        if groups and axes.index(axis) == axes.index(groups[-1][-1]) + 1:
            groups[-1].append(axis)
        else:
            groups.append([axis])
    by_place = sorted(groups) or [[]]
    return [math.prod(shape[a] for a in g) for g in by_place], tuple(by_place.index(g) for g in groups or [[]])


def require_first(examples: SeparateExamples, name: str, where: str) -> None:
    """Raise unless the examples of a tensor are along its first axis.

    Raises:
        DeployError: they are not.
    """
    if axis := examples.source.varies(name):
        do = "Make the batch the first axis."
        raise DeployError(where=where, found=f"examples along axis {axis}", wanted="axis 0", do=do)
    examples.require_together(name, where)


def name_with_axis(examples: SeparateExamples, name: str, shape: tuple[int, ...]) -> str:
    """Return the name of the blob of that shape with the codes of a tensor, from which a runner knows their axis."""
    source = examples.source
    axis, example = source.varies(name), example_shape(source, name, name)
    if not axis and examples.parts_of(name) == 1:
        return name
    if examples.parts_of(name) > 1 or shape != example:
        return f"{name}.alternating"
    return with_axis(name, axis or 0, len(example) == len(source.shape(name, name)))
