"""The autograd.Functions of fake quantization: straight-through gradients, and bits as another dtype."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.func import debug_unwrap

F = TypeVar("F", bound=type[torch.autograd.Function])


def with_stored_signature(function: F) -> F:
    """Store the signature of an autograd.Function's `forward`, which `apply` otherwise builds anew in each call."""
    function.forward.__signature__ = inspect.signature(function.forward)  # type: ignore[attr-defined]
    return function


@with_stored_signature
class _StraightThrough(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        return _with_traced_gradient(x, value, mask) if torch.compiler.is_compiling() else value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(inputs[2])

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        return grad_outputs[0] * ctx.saved_tensors[0], None, None


@with_stored_signature
class _MaskedStraightThrough(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor, fake: Fake, mask: Mask, scale: Tensor, zero_point: Tensor, outer: Tensor | None
    ) -> tuple[Tensor, Tensor]:  # no *arguments: Dynamo decides by their number whether there is a ctx
        value, unclamped = fake(x.detach(), scale, zero_point, outer)
        return _with_traced_gradient(x, value, mask(unclamped)) if torch.compiler.is_compiling() else value, unclamped

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)  # no zeros for `unclamped`
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(inputs[2](output[1]))

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        return grad_outputs[0] * ctx.saved_tensors[0], None, None, None, None, None


def _with_traced_gradient(x: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    # Inside torch.func's transforms Dynamo differentiates `forward` itself and never calls `backward`: the
    # gradient then comes from x - x, which is 0.  Subtracting 0 keeps the sign of a zero.
    return value - torch.where(mask != 0, x.detach() - x, 0)


def _check_derivative(x: Tensor) -> None:
    if torch.compiler.is_compiling() and x.requires_grad and torch.is_grad_enabled():
        from qfunc.numerics._compiled import in_derivative, require_first_derivative  # loads Dynamo

        if in_derivative():
            require_first_derivative(x)


Fake = Callable[..., tuple[Tensor, Tensor]]
Mask = Callable[[Tensor], Tensor]


def straight_through(x: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """Return `value`; its gradient goes to x where `mask` is not 0."""
    _check_derivative(x)
    result: Tensor = _StraightThrough.apply(x, value, mask)  # type: ignore[no-untyped-call]
    return result


def masked_straight_through(
    x: Tensor, fake: Fake, mask: Mask, scale: Tensor, zero_point: Tensor, outer: Tensor | None
) -> Tensor:
    """Return value, with (value, unclamped) = fake(x, scale, zero_point, outer); its gradient goes to x, times mask(unclamped).

    Only the mask is saved for the backward pass, and it is not computed if x needs no gradient.
    """
    _check_derivative(x)
    value: Tensor = _MaskedStraightThrough.apply(x, fake, mask, scale, zero_point, outer)[0]  # type: ignore[no-untyped-call]
    return value


@with_stored_signature
class _Reinterpreted(torch.autograd.Function):
    """`Tensor.view(dtype)`, of which PyTorch has a batching rule since 2.13."""

    @staticmethod
    def forward(x: Tensor, dtype: torch.dtype) -> Tensor:
        return x.view(dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, Any]:
        return reinterpreted(*args), in_dims[0]


def reinterpreted(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the bits of x as a dtype of the same size; the result has no gradient.

    >>> reinterpreted(torch.tensor([1.0, -0.0]), torch.int32).tolist()
    [1065353216, -2147483648]
    """
    if torch.compiler.is_compiling() or debug_unwrap(x, recurse=False) is x:
        return x.view(dtype)
    result: Tensor = _Reinterpreted.apply(x.detach(), dtype)  # type: ignore[no-untyped-call]
    return result
