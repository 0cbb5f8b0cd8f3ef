"""What a name of a file stands for while the file is read: a constant, numbers computed from sizes, or a node of the graph."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from attrs import frozen
from torch import Tensor, fx

Number = int | float | fx.Node
"""A number that is known, or a node that computes it from sizes."""


@frozen(eq=False)
class Constant:
    """A tensor that the file determines.

    Attributes:
        tensor: Its value.
        name: The name that it gets in the model.
        trains: True if it is stored in the file as a weight: a parameter of the model.
    """

    tensor: Tensor
    name: str
    trains: bool = False


@frozen(eq=False)
class Numbers:
    """A tensor of rank 0 or 1 of numbers, of which at least one is computed from sizes.

    Attributes:
        entries: The numbers in order.
        scalar: True for rank 0.
        dtype: Its type.
    """

    entries: tuple[Number, ...]
    scalar: bool = False
    dtype: torch.dtype = torch.int64


Value = Constant | Numbers | fx.Node
"""The value of a name; a node computes a tensor."""

MOST = 64
"""The largest number of entries of a constant that is taken for numbers."""


def numbers_of(value: Value | None) -> tuple[Number, ...] | None:
    """Return the entries of a small vector or scalar; None for other tensors.

    >>> numbers_of(Constant(torch.tensor([2, 3]), "shape"))
    (2, 3)
    """
    if isinstance(value, Numbers):
        return value.entries
    if isinstance(value, Constant) and value.tensor.ndim <= 1 and value.tensor.numel() <= MOST:
        return tuple(value.tensor.reshape(-1).tolist())
    return None


def made_of(entries: Sequence[Number], scalar: bool, dtype: torch.dtype, name: str) -> Value:
    """Return a constant if all entries are known, else `Numbers`.

    >>> made_of([2, 3], False, torch.int64, "shape").tensor
    tensor([2, 3])
    """
    if any(isinstance(e, fx.Node) for e in entries):
        return Numbers(tuple(entries), scalar, dtype)
    return Constant(torch.tensor(entries[0] if scalar else list(entries), dtype=dtype), name)
