"""What a compiler's tracer does not see by itself of the gradients of `torch.func`.

Dynamo says of a tensor that torch.func differentiates that it needs no gradient, and of a view of it that it does; and of
an autograd.Function it knows the first derivative in reverse mode, outside of vmap.  What it makes of the others is 0.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import debug_unwrap

from qfunc.errors import SpecError


def seen(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The tensors, which say whether a gradient is wanted of them, while a compiler traces too.

    >>> seen((torch.ones(1),))[0].requires_grad
    False
    """
    return tuple(t if t.requires_grad else t.view_as(t) for t in tensors)


@torch.compiler.allow_in_graph  # type: ignore[untyped-decorator]
def levels(*tensors: Tensor) -> Tensor:
    """An empty tensor of as many rows as transformations of torch.func are going on with these tensors.

    >>> levels(torch.ones(1)).shape
    torch.Size([0, 0])
    """
    return torch.empty(len(_within(tensors)), 0)


@torch.compiler.allow_in_graph  # type: ignore[untyped-decorator]
def require_first(*tensors: Tensor) -> Tensor:
    """Refuses the derivatives that a compiled autograd.Function does not have; to be called of what is differentiated.

    Raises:
        SpecError: forward mode, a derivative of a derivative, a derivative in a vmap.

    >>> require_first(torch.ones(1, requires_grad=True)).shape
    torch.Size([0])
    """
    around = _within(tensors)
    if around and (len(around) > 1 or not around[0].requires_grad):
        raise SpecError(
            where="torch.compile of torch.func over a quantize function",
            found="forward mode, a derivative of a derivative, or a derivative in a vmap",
            wanted="first derivatives in reverse mode, which is what Dynamo traces of an autograd.Function",
            do="Leave torch.compile out: eager mode has vmaps of derivatives, and derivatives of derivatives.",
        )
    return torch.empty(0)


def _within(tensors: tuple[Tensor, ...]) -> list[Tensor]:
    # What torch.func has wrapped around a number computed of all tensors, from outside to inside.
    first, *rest = (t.reshape(-1)[:0].sum() for t in tensors)
    found, now = list[Tensor](), sum(rest, first)
    while (inner := debug_unwrap(now, recurse=False)) is not now:
        found.append(now)
        now = inner
    return found


__all__ = ["levels", "require_first", "seen"]
