"""The autograd.Function of learned quantize functions: a forward function with an explicit backward function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd import forward_ad

from qfunc.numerics._grads import with_stored_signature
from qfunc.numerics.qparams import blocks
from qfunc.specs import Scheme


class GradientRule(Protocol):
    """A frozen pair of pure functions of the same tensors."""

    @property
    def forward(self) -> Callable[..., Tensor]:
        """forward(*tensors): the value."""
        ...

    @property
    def backward(self) -> Callable[..., Sequence[Tensor | None]]:
        """backward(grad, *tensors): the gradient of each tensor, or None."""
        ...


@with_stored_signature
class _ByRule(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(rule: GradientRule, *tensors: Tensor) -> Tensor:
        return rule.forward(*tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.rule = inputs[0]
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.rule.backward(grad_outputs[0], *ctx.saved_tensors)


def by_rule(rule: GradientRule, *tensors: Tensor) -> Tensor:
    """Return rule.forward(*tensors) with the gradient of rule.backward, for which only the tensors are saved."""
    if not torch.is_grad_enabled():
        return rule.forward(*tensors)
    if torch.compiler.is_compiling():
        from qfunc.numerics._compiled import differentiable_views, in_derivative, require_first_derivative  # loads Dynamo

        derivative = in_derivative()
        tensors = differentiable_views(tensors) if derivative else tensors
        needs_grad = any(t.requires_grad for t in tensors)
        if derivative and (needs_grad or any(forward_ad.unpack_dual(t).tangent is not None for t in tensors)):  # type: ignore[no-untyped-call]
            require_first_derivative(*tensors)
        if not needs_grad:  # Dynamo rejects an autograd.Function that needs no gradient
            return rule.forward(*tensors)
    result: Tensor = _ByRule.apply(rule, *tensors)  # type: ignore[no-untyped-call]
    return result


def summed(terms: Tensor, like: Tensor, scheme: Scheme) -> Tensor:
    """Return the sum over the elements that share a qparam: terms of x's shape -> the shape and dtype of `like`.

    >>> from qfunc.specs import PerChannel, Scale
    >>> summed(torch.ones(2, 3), torch.zeros(2, 1), Scheme(scale=Scale(PerChannel(0)))).tolist()
    [[3.0], [3.0]]
    """
    if like.ndim == 0:
        return terms.sum().to(like.dtype)
    split, axes = blocks(terms, scheme)
    return split.sum(axes).reshape(like.shape).to(like.dtype)
