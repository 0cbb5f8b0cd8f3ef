"""The soft rounding of all weights of a unit, with its gradient and the regulariser's gradient."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import cast

import torch
from attrs import frozen
from torch import Tensor

from qfunc.functions import AdaRound
from qfunc.functions.adaround import Rounding as Parameters
from qfunc.quantizers.fake_quantize import FakeQuantize
from qfunc.reconstruction.layout import flatten_memory, unflatten_memory

_PART = 1 << 17
"""Number of elements processed together; they fit into the processor's cache."""


def adaround_of(module: FakeQuantize) -> AdaRound:
    """Return the AdaRound function of a weight's quantizer, which `with_adaround` set."""
    return cast(AdaRound, module.site.function)


@frozen(eq=False)
class _Part:
    """Some elements of one weight, as views of flat tensors: w = start + span clip(sigmoid(v), edge, 1 - edge).

    That is low + (high - low) h(v), with h = 0 at a sigmoid of `edge`, and h = 1/2 at 1/2.
    """

    edge: float
    start: Tensor
    span: Tensor
    v: Tensor
    value: Tensor

    def soften(self) -> None:
        """Set the value to the value at v."""
        clipped = torch.sigmoid(self.v, out=self.value).clamp_(self.edge, 1 - self.edge)
        torch.addcmul(self.start, self.span, clipped, out=self.value)

    def differentiate(self, grad: Tensor, weight: float, exponent: float | None) -> None:
        """Replace the gradient of the value by the gradient of v, in place."""
        sigmoid = torch.sigmoid(self.v)
        grad.mul_(self.span)
        if exponent is not None:
            slope = 2 / (1 - 2 * self.edge)
            centred = sigmoid.sub(0.5).mul_(slope)  # 2 h - 1, beyond 1 where h is clipped
            power = centred.abs().sub_(1).log1p_().mul_((exponent - 1) / log(2)).exp2_()  # three times as fast as pow
            grad.addcmul_(power, centred.sign_(), value=-weight * exponent * slope)
        through = torch.ops.aten.sigmoid_backward(grad, sigmoid)
        torch.ops.aten.hardtanh_backward(through, sigmoid, self.edge, 1 - self.edge, grad_input=grad)


class RoundingState:
    """AdaRound's soft value of each weight: w(v) = low + (high - low) h(v), between its two rounded values.

    `weights` are leaf tensors with these values after `soften`, in the memory layout of the given weights.  `v` are the
    flat tensors that train.

    Args:
        sites: The weights and their quantizers, which must have the function `AdaRound`.
    """

    def __init__(self, sites: Sequence[tuple[FakeQuantize, Tensor]]) -> None:
        self.v: list[Tensor] = []
        self.weights: list[Tensor] = []  # leaves
        self.parts: list[list[_Part]] = []
        for module, weight in sites:
            function, params = adaround_of(module), module.params()
            with torch.no_grad():
                ends = [function.apply(params._replace(v=torch.full_like(params.v, s)), weight, module.scheme) for s in (-1, 1)]
                low, high = (flatten_memory(end, weight) for end in ends)
                v, value = flatten_memory(params.v, weight).clone(), torch.empty_like(low)
            stretch = 2 * function.zeta - 1
            edge, span = (function.zeta - 1) / stretch, stretch * (high - low)
            splits = (torch.split(t, _PART) for t in (low - edge * span, span, v, value))
            self.parts.append([_Part(edge, *tensors) for tensors in zip(*splits, strict=True)])
            self.v.append(v.requires_grad_())
            self.weights.append(unflatten_memory(value, weight).requires_grad_())

    @torch.no_grad()
    def soften(self) -> None:
        """Set the weights from v: h = clip(sigmoid(v) (zeta - gamma) + gamma, 0, 1)."""
        for weight, parts in zip(self.weights, self.parts, strict=True):
            weight.grad = None
            for part in parts:
                part.soften()

    @torch.no_grad()
    def differentiate(self, weight: float, exponent: float | None) -> None:
        """Set the gradient of v for the loss, from the weights' gradient, plus weight * sum(1 - |2 h - 1|^exponent)."""
        for v, tensor, parts in zip(self.v, self.weights, self.parts, strict=True):
            v.grad = torch.zeros_like(v) if tensor.grad is None else flatten_memory(tensor.grad, tensor)
            for part, gradient in zip(parts, torch.split(v.grad, _PART), strict=True):
                part.differentiate(gradient, weight, exponent)

    def rounds_up(self) -> list[Tensor]:
        """Return a boolean tensor for each weight: True where it is rounded up."""
        return [unflatten_memory(v.detach() >= 0, w).contiguous() for v, w in zip(self.v, self.weights, strict=True)]


@torch.no_grad()
def harden(module: FakeQuantize, up: Tensor) -> None:
    """Round a weight up where `up`, else down, permanently: soft and hard values become equal; only for owned models."""
    params = cast(Parameters, module.stored_params())
    module.get_parameter("v").copy_(adaround_of(module).harden(params._replace(v=torch.where(up, 1.0, -1.0).to(params.v))).v)


@torch.no_grad()
def rounds_up(module: FakeQuantize) -> Tensor:
    """Return a boolean tensor: True where a weight is rounded up."""
    return cast(Parameters, module.stored_params()).v >= 0
