"""Every autograd.Function of the library."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class _StraightThrough(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(inputs[2])

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        return grad_outputs[0] * ctx.saved_tensors[0], None, None


def straight_through(x: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """`value`, whose gradient goes to x where `mask` holds."""
    result: Tensor = _StraightThrough.apply(x, value, mask)  # type: ignore[no-untyped-call]
    return result
