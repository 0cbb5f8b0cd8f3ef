"""The order of examples in results of runtimes that take one example a call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


def in_model_order(value: Any, like: Tensor, examples: int, *, joined: bool = False) -> Tensor:
    """Return a tensor of a runtime in the shape of the model's tensor.

    A runtime that takes one example a call joins them along the first axis, also where the batch of the model is another
    axis or a part of one, or where no example changes the tensor.  Of all ways to place the examples in the shape of `like`,
    the one with the least sum of |difference| counts.  Each of them moves examples as a whole, so that a wrong value stays
    wrong.

    Args:
        value: The runtime's tensor.
        like: The emulation's tensor.
        examples: The batch size.
        joined: The runtime takes one example a call, so that a tensor of the shape of `like` may have another order, too.

    >>> model = torch.arange(4.0)  # [L, N] = [2, 2], flattened
    >>> in_model_order(torch.tensor([0.0, 2.0, 1.0, 3.0]), model, 2, joined=True)
    tensor([0., 1., 2., 3.])
    """
    tensor = torch.as_tensor(value)
    if tensor.numel() == like.numel():
        same = tensor.reshape(like.shape)
        if examples == 1 or (tensor.shape == like.shape and not joined):
            return same
        return min([same, *_orders(tensor, like, examples)], key=lambda order: _distance(order, like))
    if tensor.ndim and tensor.shape[0] and tensor.shape[0] % examples == 0:
        each = torch.split(tensor, len(tensor) // examples)
        if each[0].numel() == like.numel() and all(_equal(each[0], e) for e in each[1:]):
            return each[0].reshape(like.shape)
    return tensor


def _orders(tensor: Tensor, like: Tensor, examples: int) -> Iterator[Tensor]:
    # The examples, joined after the first p of p * q entries of an axis of each, for all such axes and p.
    if tensor.ndim == 0 or tensor.shape[0] % examples:
        return
    each = torch.split(tensor, len(tensor) // examples)
    for axis, size in enumerate(like.shape):
        before, length, after = like.shape[:axis], size // examples, like.shape[axis + 1 :]
        held = [n for n in each[0].shape if n != 1]
        if size % examples or (len(held) > 1 and held != [n for n in (*before, length, *after) if n != 1]):
            continue
        for outer in (p for p in range(1, length + 1) if length % p == 0):
            parts = [e.reshape(*before, outer, length // outer, *after) for e in each]
            yield torch.stack(parts, axis + 1).reshape(like.shape)


def _distance(a: Tensor, b: Tensor) -> tuple[int, float]:
    # The differences that are not finite, and the sum of the others.
    apart = (a.double() - b.double()).abs()
    apart = torch.where((a == b) | (a.isnan() & b.isnan()), 0.0, apart)
    finite = apart.isfinite()
    return int((~finite).sum()), float(apart[finite].sum())


def _equal(a: Tensor, b: Tensor) -> bool:
    return bool(((a == b) | (a.isnan() & b.isnan())).all())
