"""The soft rounding of all weights of a unit, its gradient, and the regulariser's."""

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

_PART = 1 << 16
"""Elements that go through all operations together: they stay in the processor's cache."""


def adaround_of(module: FakeQuantize) -> AdaRound:
    """Return the function of a weight's quantizer that `with_adaround` made."""
    return cast(AdaRound, module.site.function)


@frozen(eq=False)
class _Part:
    """Some elements of one weight, as views of the vectors; how far the sigmoid is stretched."""

    zeta: float
    low: Tensor
    gap: Tensor
    v: Tensor
    value: Tensor

    def soften(self) -> None:
        """Sets the value: low + gap clip(sigmoid(v) (zeta - gamma) + gamma, 0, 1)."""
        h = torch.sigmoid(self.v).mul_(2 * self.zeta - 1).sub_(self.zeta - 1).clamp_(0, 1)
        torch.addcmul(self.low, self.gap, h, out=self.value)

    def differentiate(self, given: Tensor, weight: float, exponent: float | None) -> None:
        """Makes the gradient of v from that of the value, in its place."""
        sigmoid, stretch = torch.sigmoid(self.v), 2 * self.zeta - 1
        given.mul_(self.gap)
        if exponent is not None:
            centred = sigmoid.mul(2 * stretch).sub_(stretch).clamp_(-1, 1)  # 2 h - 1
            power = centred.abs().sub_(1).log1p_().mul_((exponent - 1) / log(2)).exp2_()  # a third of what pow takes
            given.addcmul_(power, centred.sign_(), value=-2 * weight * exponent)
        through = torch.ops.aten.sigmoid_backward(given.mul_(stretch), sigmoid)
        edge = (self.zeta - 1) / stretch  # the sigmoid from which on h is clipped
        torch.ops.aten.hardtanh_backward(through, sigmoid, edge, 1 - edge, grad_input=given)


class Rounding:
    """w(v) = low + (high - low) h(v) for each weight: AdaRound's soft value, between the two that it may be rounded to.

    `weights` are tensors that hold it after `soften`, in the layout of those given, and of which a loss may ask the gradient;
    `v` are the vectors that train.

    Args:
        sites: The quantizers of the weights, whose function is `AdaRound`, and the weights.
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
            lines = (torch.split(t, _PART) for t in (low, high - low, v, value))
            self.parts.append([_Part(function.zeta, *some) for some in zip(*lines, strict=True)])
            self.v.append(v.requires_grad_())
            self.weights.append(unflatten_memory(value, weight).requires_grad_())

    @torch.no_grad()
    def soften(self) -> None:
        """Sets the weights from v: h = clip(sigmoid(v) (zeta - gamma) + gamma, 0, 1)."""
        for weight, parts in zip(self.weights, self.parts, strict=True):
            weight.grad = None
            for part in parts:
                part.soften()

    @torch.no_grad()
    def differentiate(self, weight: float, exponent: float | None) -> None:
        """Makes v's gradient of the weights', the loss's, and that of weight * sum(1 - |2 h - 1|^exponent)."""
        for v, each, parts in zip(self.v, self.weights, self.parts, strict=True):
            v.grad = torch.zeros_like(v) if each.grad is None else flatten_memory(each.grad, each)
            for part, some in zip(parts, torch.split(v.grad, _PART), strict=True):
                part.differentiate(some, weight, exponent)

    def decided(self) -> list[Tensor]:
        """Of each weight whether it is rounded up."""
        return [unflatten_memory(v.detach() >= 0, w).contiguous() for v, w in zip(self.v, self.weights, strict=True)]


@torch.no_grad()
def harden(module: FakeQuantize, up: Tensor) -> None:
    """Rounds a weight up where `up`, else down, for good: soft is hard from then on; for transforms, on their own models."""
    params = cast(Parameters, module.own())
    module.get_parameter("v").copy_(adaround_of(module).harden(params._replace(v=torch.where(up, 1.0, -1.0).to(params.v))).v)


@torch.no_grad()
def rounds_up(module: FakeQuantize) -> Tensor:
    """Return True if each weight is rounded up."""
    return cast(Parameters, module.own()).v >= 0


__all__ = ["Rounding", "harden", "rounds_up"]
