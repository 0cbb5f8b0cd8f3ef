"""The order of examples in results of runtimes that take one example a call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor


def in_model_order(value: Any, like: Tensor, examples: int, *, joined: bool = False) -> Tensor:
    """Return a tensor of a runtime in the shape of the model's tensor.

    A runtime that takes one example a call joins them along the first axis, also where the batch of the model is another
    axis or a part of one, or where no example changes the tensor.

    Args:
        value: The runtime's tensor.
        like: The emulation's tensor.
        examples: The batch size.
        joined: The runtime takes one example a call.  An axis of L * N entries may then hold the examples at any place of
            its factors; the place with the fewest differences from `like` counts.

    >>> model = torch.arange(4.0)  # [L, N] = [2, 2], flattened
    >>> in_model_order(torch.tensor([0.0, 2.0, 1.0, 3.0]), model, 2, joined=True)
    tensor([0., 1., 2., 3.])
    """
    tensor = torch.as_tensor(value)
    same = tensor.shape == like.shape
    if (same and not joined) or tensor.ndim == 0 or tensor.shape[0] % examples:
        return tensor.reshape(like.shape) if tensor.numel() == like.numel() else tensor
    each = torch.split(tensor, len(tensor) // examples)
    found = [*_orders(each, like)] if joined else [torch.cat(each, i) for i in _axes(each[0], like, examples)][:1]
    if found:
        return min(found, key=lambda order: int((order != like).sum()))
    if each[0].numel() == like.numel() and all(_equal(each[0], e) for e in each[1:]):
        return each[0].reshape(like.shape)
    return tensor.reshape(like.shape) if tensor.numel() == like.numel() else tensor


def _axes(example: Tensor, like: Tensor, examples: int) -> list[int]:
    # The axes along which the examples may be joined.
    shape, wanted = list(example.shape), list(like.shape)
    return [i for i in range(len(shape)) if wanted == [*shape[:i], shape[i] * examples, *shape[i + 1 :]]]


def _orders(each: Sequence[Tensor], like: Tensor) -> Iterator[Tensor]:
    # The examples, joined after the first p of p * q entries of an axis, for all p.
    for axis in _axes(each[0], like, len(each)):
        length = each[0].shape[axis]
        for outer in (p for p in range(1, length + 1) if length % p == 0):
            parts = [e.unflatten(axis, (outer, length // outer)) for e in each]
            yield torch.stack(parts, axis + 1).flatten(axis, axis + 2)


def _equal(a: Tensor, b: Tensor) -> bool:
    return bool(((a == b) | (a.isnan() & b.isnan())).all())


__all__ = ["in_model_order"]
