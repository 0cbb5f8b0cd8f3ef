"""Canonical ops on positions, masks and types, and of normalization: what transformers compute beside their products.

Tensors that a model makes itself (positions, masks) stand on the device of its first input, `like`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def cast(value: Tensor, dtype: torch.dtype) -> Tensor:
    """The values in another type, on the device where they are.

    >>> cast(torch.tensor([0, 2]), torch.bool)
    tensor([False,  True])
    """
    return value.to(dtype)


def cast_like(value: Tensor, like: Tensor) -> Tensor:
    """The values in the type of another tensor.

    >>> cast_like(torch.tensor([2]), torch.zeros(1))
    tensor([2.])
    """
    return value.to(like.dtype)


def arange(start: int | float, end: int | float, step: int | float, dtype: torch.dtype | None, like: Tensor | None) -> Tensor:
    """`torch.arange` on the device of `like`.

    >>> arange(1, 6, 2, None, torch.zeros(1))
    tensor([1, 3, 5])
    """
    return torch.arange(start, end, step, dtype=dtype, device=None if like is None else like.device)


def full(shape: Sequence[int], value: bool | int | float, dtype: torch.dtype | None, like: Tensor | None) -> Tensor:
    """`torch.full` on the device of `like`, and of its type where `dtype` is None.

    >>> full((2,), 1, torch.bool, None), full((1,), 3, None, torch.zeros(4))
    (tensor([True, True]), tensor([3.]))
    """
    if like is None:
        return torch.full(tuple(shape), value, dtype=dtype)
    return torch.full(tuple(shape), value, dtype=like.dtype if dtype is None else dtype, device=like.device)


def full_like(like: Tensor, value: bool | int | float, dtype: torch.dtype | None) -> Tensor:
    """A tensor of one value in the shape of another.

    >>> full_like(torch.zeros(2, dtype=torch.int64), 7, None)
    tensor([7, 7])
    """
    return torch.full_like(like, value, dtype=dtype)


def index(input: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """`input[indices]` with tensors of positions; None takes a whole axis.

    >>> index(torch.tensor([[1, 2], [3, 4]]), (None, torch.tensor([1])))
    tensor([[2],
            [4]])
    """
    whole = slice(None)
    return input[tuple(whole if i is None else i.to(input.device) for i in indices)]


def dense(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """input @ weight + bias, a linear layer whose weight is [inputs, outputs].

    >>> dense(torch.ones(1, 2), torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.ones(2))
    tensor([[5., 7.]])
    """
    return input @ weight if bias is None else torch.addmm(bias, input, weight)


def rms_norm(input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, eps: float | None) -> Tensor:
    """`F.rms_norm` with every argument by position: x / sqrt(mean(x^2) + eps), times the weight.

    >>> rms_norm(torch.tensor([3.0, 4.0]), (2,), None, 0.0)
    tensor([0.8485, 1.1314])
    """
    return F.rms_norm(input, list(normalized_shape), weight, eps)


def cumsum(value: Tensor, dim: int, dtype: torch.dtype | None) -> Tensor:
    """`torch.cumsum` with every argument by position.

    >>> cumsum(torch.tensor([True, True]), 0, None)
    tensor([1, 2])
    """
    return torch.cumsum(value, dim, dtype=dtype)


def difference(value: Tensor, dim: int, prepend: Tensor | None) -> Tensor:
    """`torch.diff` of neighbours, once.

    >>> difference(torch.tensor([1, 4, 9]), 0, None)
    tensor([3, 5])
    """
    return torch.diff(value, 1, dim, prepend)


INDEX_OPS = (
    ("cast", cast, "value dtype", "cast"),
    ("cast", cast_like, "value like"),
    ("arange", arange, "start end step=1 dtype=None like=None", "arange"),
    ("full", full, "shape value dtype=None like=None", "full"),
    ("full", full_like, "like value dtype=None", "full_like"),
    ("index", index, "input indices", "index"),
    ("gather", torch.gather, "input dim index", "gather"),
    ("where", torch.where, "condition input other", "where"),
    ("roll", torch.roll, "input shifts dims", "roll"),
    ("cumsum", cumsum, "value dim dtype=None", "cumsum"),
    ("difference", difference, "value dim=-1 prepend=None", "difference"),
    ("detach", torch.detach, "input", "detach"),
    ("tril", torch.tril, "value diagonal=0", "tril"),
    ("triu", torch.triu, "value diagonal=0", "triu"),
    ("repeat", torch.Tensor.repeat, "input repeats", "repeat"),
    ("compare", torch.ge, "a b", "ge"),
    ("compare", torch.gt, "a b", "gt"),
    ("compare", torch.le, "a b", "le"),
    ("compare", torch.lt, "a b", "lt"),
    ("compare", torch.eq, "a b", "eq"),
    ("compare", torch.ne, "a b", "ne"),
    ("logic", torch.bitwise_and, "a b", "bitwise_and"),
    ("logic", torch.bitwise_or, "a b", "bitwise_or"),
    ("logic", torch.bitwise_xor, "a b", "bitwise_xor"),
    ("logic", torch.logical_and, "a b", "logical_and"),
    ("logic", torch.logical_or, "a b", "logical_or"),
    ("not", torch.bitwise_not, "value", "bitwise_not", "invert", "__invert__"),
    ("not", torch.logical_not, "value", "logical_not"),
    ("sin", torch.sin, "input", "sin"),
    ("cos", torch.cos, "input", "cos"),
    ("log", torch.log, "input", "log"),
    ("erf", torch.erf, "input", "erf"),
    ("floor", torch.floor, "input", "floor"),
    ("reciprocal", torch.reciprocal, "input", "reciprocal"),
    ("rms_norm", rms_norm, "input normalized_shape weight=None eps=None", "rms_norm"),
)
"""(kind, callable, parameters, names that spell it).  What is no slot ("value", "a", "b") is no activation."""
