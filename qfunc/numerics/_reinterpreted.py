"""The bits of a tensor as another dtype, also in vmap: PyTorch before 2.13 has no batching rule of `Tensor.view(dtype)`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.func import debug_unwrap


class _Reinterpreted(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, dtype: torch.dtype) -> Tensor:
        return x.view(dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Any]:
        return reinterpreted(x, dtype), in_dims[0]


def reinterpreted(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the bits of x as a dtype of the same size; the result has no gradient.

    >>> reinterpreted(torch.tensor([1.0, -0.0]), torch.int32).tolist()
    [1065353216, -2147483648]
    """
    if torch.compiler.is_compiling() or debug_unwrap(x, recurse=False) is x:
        return x.view(dtype)
    result: Tensor = _Reinterpreted.apply(x.detach(), dtype)  # type: ignore[no-untyped-call]
    return result


__all__ = ["reinterpreted"]
