"""The soft rounding of all weights of a unit as one vector, its gradient, and the regulariser's."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from qfunc.functions import AdaRound
from qfunc.graph.fake_quantize import FakeQuantize


class Rounding:
    """w(v) = low + (high - low) h(v) for each weight: AdaRound's soft value, between the two that it may be rounded to.

    `weights` are tensors that hold it after `soften`, and of which a loss may ask the gradient.

    Args:
        sites: The quantizers of the weights, whose function is `AdaRound`, and the weights.
    """

    def __init__(self, sites: Sequence[tuple[FakeQuantize, Tensor]]) -> None:
        self.modules = [module for module, _ in sites]
        functions: list[AdaRound] = [module.site.function for module in self.modules]  # type: ignore[misc]
        low, high, v, zeta = [], [], [], []
        with torch.no_grad():
            for (module, weight), function in zip(sites, functions, strict=True):
                params = module.params()
                ends = [function.apply(params._replace(v=torch.full_like(params.v, s)), weight, module.scheme) for s in (-1, 1)]
                low.append(ends[0].flatten())
                high.append(ends[1].flatten())
                v.append(params.v.flatten())
                zeta.append(torch.full_like(v[-1], function.zeta))
        self.low, self.v = torch.cat(low), torch.cat(v).requires_grad_()
        self.gap = torch.cat(high) - self.low
        self.stretch = torch.cat(zeta) * 2 - 1  # zeta - gamma
        self.value = torch.empty_like(self.low)
        self.h = torch.empty_like(self.v)
        self.slope = torch.empty_like(self.v)
        self.sizes = [weight.numel() for _, weight in sites]
        parts = torch.split(self.value, self.sizes)
        # Leaves of their own that share the vector's storage.
        self.weights = [p.view_as(w).detach().requires_grad_() for p, (_, w) in zip(parts, sites, strict=True)]

    @torch.no_grad()
    def soften(self) -> None:
        """Sets the weights from v: h = clip(sigmoid(v) (zeta - gamma) + gamma, 0, 1)."""
        sigmoid = torch.sigmoid(self.v)
        raw = torch.lerp(torch.full_like(sigmoid, 0.5), sigmoid, self.stretch)  # sigmoid (zeta - gamma) + gamma
        torch.clamp(raw, 0, 1, out=self.h)
        torch.addcmul(self.low, self.gap, self.h, out=self.value)
        torch.mul(sigmoid.mul_(1 - sigmoid), self.stretch, out=self.slope)
        self.slope.mul_(raw == self.h)
        for weight in self.weights:
            weight.grad = None

    @torch.no_grad()
    def differentiate(self, weight: float, exponent: float | None) -> None:
        """Sets v's gradient from the weights': the loss's, and that of weight * sum(1 - |2 h - 1|^exponent)."""
        gradients = [torch.zeros_like(w) if w.grad is None else w.grad for w in self.weights]
        total = torch.cat([g.flatten() for g in gradients]).mul_(self.gap)
        if exponent is not None:
            centred = self.h.mul(2).sub_(1)
            total.addcmul_(centred.abs().pow_(exponent - 1), centred.sign(), value=-2 * weight * exponent)
        self.v.grad = total.mul_(self.slope)

    def decided(self) -> list[Tensor]:
        """Of each weight whether it is rounded up."""
        return [(p >= 0).view_as(w) for p, w in zip(torch.split(self.v.detach(), self.sizes), self.weights, strict=True)]


@torch.no_grad()
def harden(module: FakeQuantize, up: Tensor) -> None:
    """Rounds a weight up where `up`, else down, for good: soft is hard from then on; for transforms, on their own models."""
    function: AdaRound = module.site.function  # type: ignore[assignment]
    params = module.own()
    module.get_parameter("v").copy_(function.harden(params._replace(v=torch.where(up, 1.0, -1.0).to(params.v))).v)


@torch.no_grad()
def is_up(module: FakeQuantize) -> Tensor:
    """Whether each weight is rounded up."""
    found: Tensor = module.own().v >= 0
    return found


__all__ = ["Rounding", "harden", "is_up"]
