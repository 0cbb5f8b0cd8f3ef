"""The images of all processes, in parts whose gradients are computed apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
from attrs import frozen
from torch import Tensor

from qfunc.errors import CalibrationError, SpecError
from qfunc.reconstruction.layout import Layout, MixedBatchAxis


class Drawn(NamedTuple):
    """The images of a mini-batch that are in one part: their places in the mini-batch, and their rows in the cache."""

    places: Tensor
    rows: Tensor


@frozen
class Parts:
    """Numbers of images of the parts of each process, in order of rank; `rank` is this process.

    >>> parts = Parts(((2, 1), (3,)), rank=1)
    >>> parts.images, [drawn.rows.tolist() for drawn in parts.drawn(torch.tensor([4, 0, 3]))]
    (6, [[1, 0]])
    """

    sizes: tuple[tuple[int, ...], ...]
    rank: int = 0

    @property
    def images(self) -> int:
        """The number of images of all processes."""
        return sum(map(sum, self.sizes))

    @property
    def single(self) -> bool:
        """True if the gradient of a mini-batch is computed at once."""
        return sum(map(len, self.sizes)) == 1

    def counts(self, index: Tensor) -> list[list[int]]:
        """Return how many images of a mini-batch are in each part of each process."""
        each = torch.bincount(self._part_of(index), minlength=sum(map(len, self.sizes))).tolist()
        ends = accumulate(map(len, self.sizes), initial=0)
        return [each[start:stop] for start, stop in pairwise(ends)]

    def drawn(self, index: Tensor) -> list[Drawn]:
        """Return the images of a mini-batch in each part of this process; `index` has numbers in order of rank."""
        if self.single:
            return [Drawn(torch.arange(len(index)), index)]
        before = self.sizes[: self.rank]
        first, start, part = sum(map(len, before)), sum(map(sum, before)), self._part_of(index)
        own = ((part == first + number).nonzero()[:, 0] for number in range(len(self.sizes[self.rank])))
        return [Drawn(places, index[places] - start) for places in own]

    def _part_of(self, index: Tensor) -> Tensor:
        ends = torch.tensor(list(accumulate(n for sizes in self.sizes for n in sizes)))
        return torch.bucketize(index, ends, right=True)


def require_parts(parts: Any) -> None:
    """Raise unless `parts` is None or the numbers of batches of the parts.

    Raises:
        SpecError: `parts` is neither None nor a sequence of positive integers.
    """
    if parts is None:
        return
    if not isinstance(parts, tuple | list) or not parts or not all(type(n) is int and n > 0 for n in parts):
        wanted, do = "the numbers of batches of the parts, positive integers, or None", "Write parts=(4, 4)."
        raise SpecError(where="reconstruct, parts", found=repr(parts), wanted=wanted, do=do)


def require_sums(names: Iterable[str], layout: Mapping[str, Layout], parts: Parts) -> None:
    """Refuse units whose gradient is no sum over several parts, because they mix the images of a mini-batch.

    Args:
        names: The values in units.
        layout: The layouts of all values.
        parts: The parts.
    Raises:
        CalibrationError: a value depends on the images, but has no batch axis.
    """
    for name in names:
        if not parts.single and isinstance(layout[name], MixedBatchAxis):
            raise CalibrationError(
                where=f"reconstruct, tensor {name!r}",
                found="a value without a batch axis inside a unit",
                wanted="a batch axis in every tensor, in several parts or processes",
                do="Call reconstruct in one process without parts=, or exclude the ops around it with select=.",
            )


def sizes_of_parts(parts: Sequence[int] | None, batches: int, counts: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """Return the number of images of each part of this process.

    Args:
        parts: The number of batches of each part; None for one part.
        batches: The number of batches.
        counts: The number of its batch, from 1, and the number of images of each call.
    Raises:
        CalibrationError: the parts have another number of batches.

    >>> sizes_of_parts((1, 2), 3, [(1, 8), (2, 8), (3, 4)])
    (8, 12)
    """
    if parts is None:
        return (sum(images for _, images in counts),)
    if sum(parts) != batches:
        found, wanted = f"{batches} batch{'es' * (batches != 1)}", f"{sum(parts)}, the sum of {tuple(parts)}"
        do = "Give the number of batches of each part."
        raise CalibrationError(where="reconstruct, parts", found=found, wanted=wanted, do=do)
    bounds = pairwise(accumulate(parts, initial=0))
    return tuple(sum(images for number, images in counts if first < number <= last) for first, last in bounds)
