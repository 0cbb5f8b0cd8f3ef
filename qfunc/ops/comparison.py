"""Comparison and logic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from qfunc.ops.binding import pair
from qfunc.ops.definition import Op, Trait, op

_TEST = Trait.ELEMENTWISE | Trait.INTEGER_RESULT | Trait.NON_NEGATIVE | Trait.KEEPS_SIGN
_BITS = Trait.ELEMENTWISE | Trait.INTEGER_RESULT


def _whole(x: Tensor) -> Tensor:
    return (10 * x).int() if x.is_floating_point() else x


def _compare(call: Callable[..., Any], *names: str) -> Op:
    return op("compare", call, "a b", rewrites=dict.fromkeys(names, pair), traits=_TEST, example=lambda x: call(x, x.flip(0)))


def _bitwise(call: Callable[..., Any], *names: str) -> Op:
    names = names + tuple(f"__{n}__" for n in names[1:])
    return op("logic", call, "a b", rewrites=dict.fromkeys(names, pair), traits=_BITS | Trait.KEEPS_SIGN,
              example=lambda x: call(_whole(x), _whole(x.flip(0))))  # fmt: skip


def _logical(call: Callable[..., Any], name: str) -> Op:
    return op("logic", call, "a b", rewrites={name: pair}, traits=_TEST, example=lambda x: call(x > 0, x.flip(0) > 0))


ROWS: tuple[Op, ...] = (
    _compare(torch.ge, "ge", "greater_equal"),
    _compare(torch.gt, "gt", "greater"),
    _compare(torch.le, "le", "less_equal"),
    _compare(torch.lt, "lt", "less"),
    _compare(torch.eq, "eq"),
    _compare(torch.ne, "ne", "not_equal"),
    _bitwise(torch.bitwise_and, "bitwise_and", "and", "iand"),
    _bitwise(torch.bitwise_or, "bitwise_or", "or", "ior"),
    _bitwise(torch.bitwise_xor, "bitwise_xor", "xor", "ixor"),
    _logical(torch.logical_and, "logical_and"),
    _logical(torch.logical_or, "logical_or"),
    op("not", torch.bitwise_not, "value", "bitwise_not", "invert", "__invert__", traits=_BITS,
       example=lambda x: torch.bitwise_not(_whole(x))),
    op("not", torch.logical_not, "value", "logical_not", traits=_TEST),
)  # fmt: skip
