"""The soft rounding of all weights of a unit as one vector, its gradient, and the regulariser's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from attrs import frozen
from torch import Tensor

from qfunc.functions import AdaRound
from qfunc.functions.adaround import Rounding as Parameters
from qfunc.graph.fake_quantize import FakeQuantize
from qfunc.reconstruction.dense import as_line, off_line

_PART = 1 << 16
"""Elements that go through all operations together: they stay in the processor's cache."""


def adaround_of(module: FakeQuantize) -> AdaRound:
    """The function of a weight's quantizer that `with_adaround` made."""
    return cast(AdaRound, module.site.function)


@frozen(eq=False)
class _Part:
    """Some elements of one weight, as views of the vectors; how far the sigmoid is stretched."""

    zeta: float
    low: Tensor
    gap: Tensor
    v: Tensor
    value: Tensor
    sigmoid: Tensor
    gradient: Tensor

    def h(self) -> Tensor:
        """clip(sigmoid(v) (zeta - gamma) + gamma, 0, 1) after `soften`."""
        return self.sigmoid.mul(2 * self.zeta - 1).sub_(self.zeta - 1).clamp_(0, 1)

    def soften(self) -> None:
        """Sets the value."""
        torch.sigmoid(self.v, out=self.sigmoid)
        torch.addcmul(self.low, self.gap, self.h(), out=self.value)

    def differentiate(self, given: Tensor, weight: float, exponent: float | None) -> None:
        """Sets the gradient of v, from that of the value."""
        total, stretch = torch.mul(given, self.gap), 2 * self.zeta - 1
        if exponent is not None:
            centred = self.h().mul_(2).sub_(1)
            power = centred.abs().log2_().mul_(exponent - 1).exp2_()  # twice as fast as pow
            total.addcmul_(power, centred.sign_(), value=-2 * weight * exponent)
        total = torch.ops.aten.sigmoid_backward(total.mul_(stretch), self.sigmoid)
        edge = (self.zeta - 1) / stretch  # the sigmoid from which on h is clipped
        self.gradient.copy_(torch.ops.aten.hardtanh_backward(total, self.sigmoid, edge, 1 - edge))


class Rounding:
    """w(v) = low + (high - low) h(v) for each weight: AdaRound's soft value, between the two that it may be rounded to.

    `weights` are tensors that hold it after `soften`, in the layout of those given, and of which a loss may ask the gradient.

    Args:
        sites: The quantizers of the weights, whose function is `AdaRound`, and the weights.
    """

    def __init__(self, sites: Sequence[tuple[FakeQuantize, Tensor]]) -> None:
        low, high, v = [], [], []
        with torch.no_grad():
            for module, weight in sites:
                function, params = adaround_of(module), module.params()
                ends = [function.apply(params._replace(v=torch.full_like(params.v, s)), weight, module.scheme) for s in (-1, 1)]
                low.append(as_line(ends[0], weight))
                high.append(as_line(ends[1], weight))
                v.append(as_line(params.v, weight))
        lower, self.v = torch.cat(low), torch.cat(v).requires_grad_()
        gap, value, sigmoid, gradient = torch.cat(high) - lower, *(torch.empty_like(lower) for _ in range(3))
        self.v.grad = gradient
        self.sizes = [weight.numel() for _, weight in sites]
        vectors = [torch.split(t, self.sizes) for t in (lower, gap, self.v.detach(), value, sigmoid, gradient)]
        self.parts = [
            [_Part(adaround_of(module).zeta, *some) for some in zip(*(torch.split(t, _PART) for t in own), strict=True)]
            for (module, _), own in zip(sites, zip(*vectors, strict=True), strict=True)
        ]
        # Leaves of their own that share the vector's storage.
        self.weights = [off_line(p, w).detach().requires_grad_() for p, (_, w) in zip(vectors[3], sites, strict=True)]

    @torch.no_grad()
    def soften(self) -> None:
        """Sets the weights from v: h = clip(sigmoid(v) (zeta - gamma) + gamma, 0, 1)."""
        for weight, parts in zip(self.weights, self.parts, strict=True):
            weight.grad = None
            for part in parts:
                part.soften()

    @torch.no_grad()
    def differentiate(self, weight: float, exponent: float | None) -> None:
        """Sets v's gradient from the weights': the loss's, and that of weight * sum(1 - |2 h - 1|^exponent)."""
        for each, parts in zip(self.weights, self.parts, strict=True):
            given = torch.zeros_like(each) if each.grad is None else each.grad
            for part, some in zip(parts, torch.split(as_line(given, each), _PART), strict=True):
                part.differentiate(some, weight, exponent)

    def decided(self) -> list[Tensor]:
        """Of each weight whether it is rounded up."""
        lines = torch.split(self.v.detach(), self.sizes)
        return [off_line(p >= 0, w).contiguous() for p, w in zip(lines, self.weights, strict=True)]


@torch.no_grad()
def harden(module: FakeQuantize, up: Tensor) -> None:
    """Rounds a weight up where `up`, else down, for good: soft is hard from then on; for transforms, on their own models."""
    params = cast(Parameters, module.own())
    module.get_parameter("v").copy_(adaround_of(module).harden(params._replace(v=torch.where(up, 1.0, -1.0).to(params.v))).v)


@torch.no_grad()
def is_up(module: FakeQuantize) -> Tensor:
    """Whether each weight is rounded up."""
    return cast(Parameters, module.own()).v >= 0


__all__ = ["Rounding", "harden", "is_up"]
