"""Workarounds for Dynamo's support of `torch.func` gradients.

For a tensor that torch.func differentiates, Dynamo reports `requires_grad` as False; for a view of it, as True.  Of an
autograd.Function it compiles only the first derivative in reverse mode, outside of vmap.  Any other derivative silently
becomes 0.

`torch.compiler.allow_in_graph` loads Dynamo, which takes a second: import this module only where a compiler traces.  PyTorch
stores no graph with such a function in its cache of AOTAutograd, so only derivatives of torch.func have one.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import debug_unwrap

from qfunc.errors import SpecError


def differentiable_views(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the tensors or views of them, so that `requires_grad` is also right while a compiler traces.

    >>> differentiable_views((torch.ones(1),))[0].requires_grad
    False
    """
    return tuple(t if t.requires_grad else t.view_as(t) for t in tensors)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def in_derivative() -> bool:
    """Return True inside of a derivative of torch.func, which wraps every new tensor.

    >>> in_derivative(), torch.func.grad(lambda x: x * in_derivative())(torch.ones(()))
    (False, tensor(1.))
    """
    new = torch.empty(0)
    return debug_unwrap(new, recurse=False) is not new


@torch.compiler.allow_in_graph  # type: ignore[untyped-decorator]
def require_first_derivative(*tensors: Tensor) -> Tensor:
    """Raise for derivatives that a compiled autograd.Function does not support; the tensors are the differentiated ones.

    Raises:
        SpecError: forward mode, a derivative of a derivative, a derivative in a vmap.

    >>> require_first_derivative(torch.ones(1, requires_grad=True)).shape
    torch.Size([0])
    """
    wrappers = _wrappers(tensors)
    if wrappers and (len(wrappers) > 1 or not wrappers[0].requires_grad):
        raise SpecError(
            where="torch.compile of torch.func over a quantize function",
            found="forward mode, a derivative of a derivative, or a derivative in a vmap",
            wanted="a first derivative in reverse mode, the only one that Dynamo traces through an autograd.Function",
            do="Remove torch.compile: eager mode supports these derivatives.",
        )
    return torch.empty(0)


def _wrappers(tensors: tuple[Tensor, ...]) -> list[Tensor]:
    # The wrappers that torch.func puts around a number computed from all tensors, outermost first.
    first, *rest = (t.reshape(-1)[:0].sum() for t in tensors)
    wrappers, current = list[Tensor](), sum(rest, first)
    while (inner := debug_unwrap(current, recurse=False)) is not current:
        wrappers.append(current)
        current = inner
    return wrappers
