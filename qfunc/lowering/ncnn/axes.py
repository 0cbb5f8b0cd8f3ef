"""The axes of the model's tensors in ncnn's blobs, which have no batch axis and at most four others."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx

from qfunc.errors import DeployError
from qfunc.files.ncnn_param import with_axis
from qfunc.lowering.format_checks import require_separate
from qfunc.lowering.qdq_reader import QdqModel

__all__ = ["MOST", "Examples", "batch_axis", "blob_shape", "example_shape", "merged", "permutation"]

MOST = 4
"""The largest number of axes of a blob. Tensors of more axes are blobs of one."""
_RESHAPES = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")


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


class Examples:
    """Where the examples of a batch are in each tensor: along one axis, or in parts of an axis between which they alternate."""

    def __init__(self, source: QdqModel) -> None:
        self.source = source
        self.parts: dict[str, int] = {}  # the number of parts, for tensors of several

    def follow(self, node: onnx.NodeProto) -> None:
        """Record in how many parts the results of a node have the batch.

        Raises:
            DeployError: an example of the results depends on others.
        """
        if node.op_type not in _RESHAPES:
            require_separate(self.source, node)
        parts = max((self.parts.get(name, 1) for name in node.input), default=1)
        if node.op_type in _RESHAPES and node.input[0] not in self.source.initializers:
            parts = self._parts(node, parts)
        if parts > 1:
            self.parts.update(dict.fromkeys(node.output, parts))

    def _parts(self, node: onnx.NodeProto, before: int) -> int:
        names = (node.input[0], node.output[0])
        if not all(map(self.source.has_sizes, names)):
            return 1
        axes = [self.source.varies(name) for name in names]
        shapes = [self.source.shape(name, node.name) for name in names]
        outer = [math.prod(shape[:axis]) for shape, axis in zip(shapes, axes, strict=True) if axis is not None]
        if len(outer) < 2:
            return 1
        if outer[0] * before % outer[1]:
            do = "Reshape so that the batch stays one axis."
            raise DeployError(
                where=f"op {node.name!r}", found="examples in parts of an axis", wanted="the batch as an axis", do=do
            )
        return outer[0] * before // outer[1]

    def require_first(self, name: str, where: str) -> None:
        """Raise unless the examples of a tensor are along its first axis.

        Raises:
            DeployError: they are not.
        """
        axis = self.source.varies(name)
        if axis or self.parts.get(name, 1) > 1:
            found, do = f"examples along axis {axis}" if axis else "examples that alternate", "Make the batch the first axis."
            raise DeployError(where=where, found=found, wanted="axis 0", do=do)

    def name_with_axis(self, name: str, shape: tuple[int, ...]) -> str:
        """Return the name of the blob of that shape with the codes of a tensor, from which a runner knows their axis."""
        axis, example = self.source.varies(name), example_shape(self.source, name, name)
        if not axis and self.parts.get(name, 1) == 1:
            return name
        if self.parts.get(name, 1) > 1 or shape != example:
            return f"{name}.alternating"
        return with_axis(name, axis or 0, len(example) == len(self.source.shape(name, name)))
