"""PACT: learn the clipping level."""

from __future__ import annotations

from typing import NamedTuple

import torch
from attrs import field, frozen
from torch import Tensor

from qfunc.functions import _steps as steps
from qfunc.numerics._learned_grads import by_rule, summed
from qfunc.numerics.affine import quantize, widened
from qfunc.numerics.qparams import Affine, from_range, spread
from qfunc.numerics.scales import TINY, divisor
from qfunc.specs import Int, Scheme
from qfunc.specs._check import number


class Clipping(NamedTuple):
    """The trained bounds in real units, float32 in the shape of the qparams; `low` is 0 in symmetric schemes."""

    alpha: Tensor
    low: Tensor


@frozen
class Pact:
    """x_hat = R(y / s) s with y = clip(x, 0, alpha), s = alpha / qmax; alpha trains.

        d x_hat / d alpha = 1 where x >= alpha, else 0
        d x_hat / d x = 1 where 0 <= x < alpha, else 0

    Signed symmetric schemes clip to [-alpha, alpha]; where x < -alpha, the gradient of alpha is -1.  Schemes with a
    zero point clip to [low, alpha] with low <= 0, which the paper does not have: the gradient of low is 1 where
    x < low, so a low of 0 stays 0 if x is never negative.  The value is the hardware's: from_range(low, alpha)
    gives scale and zero point, and codes saturate at the ends of the format.  A bound that the scheme cannot
    represent (a power-of-two scale, a nudged zero point, the code -128) is therefore clipped where the codes end.
    The magnitude of alpha is used, at least 2^-126.  For the paper's penalty on alpha, use the optimizer's weight
    decay.  NaN in x stays NaN, and infinities saturate.

    Args:
        alpha: The initial alpha in real units (6 to 10 in the paper's networks, 6.0 in MQBench), and -low where the
            estimated range extends below 0; None for the estimated range.
    Raises:
        SpecError: an alpha that is not positive; a `Log` format or a signed scale, from `init`.
    Source: Choi et al., arXiv:1805.06085, equations 1 to 3.

    >>> alpha, scheme = torch.tensor(6.0, requires_grad=True), Scheme(Int(4, signed=False))
    >>> value = Pact().apply(Clipping(alpha, torch.tensor(0.0)), torch.tensor([-1.0, 2.1, 8.0]), scheme)
    >>> value.sum().backward()
    >>> value.tolist(), alpha.grad.item()
    ([0.0, 2.0, 6.0], 1.0)
    """

    alpha: float | None = field(default=None, validator=number(positive=True, optional=True))

    def init(self, qparams: Affine, x: Tensor, scheme: Scheme) -> Clipping:
        """Return the bounds of the estimated qparams, or the bounds of `alpha`."""
        steps.refuse_unless(steps.FORMATS_WITH_STEP, scheme, "Pact")
        steps.refuse_signed(scheme, "Pact")
        scale = steps.total_scale(qparams)
        if scheme.zero_point is None:
            low, high = torch.zeros_like(scale), scale.abs() * divisor(scheme)
        else:
            fmt = scheme.format
            assert isinstance(fmt, Int)  # Scheme requires it
            low, high = (fmt.qmin - qparams.zero_point) * scale, (fmt.qmax - qparams.zero_point) * scale
        if self.alpha is not None:
            low, high = torch.where(low < 0, -self.alpha, 0.0).to(scale), torch.full_like(scale, self.alpha)
        return Clipping(high, low)

    def learned(self, scheme: Scheme) -> tuple[str, ...]:
        """Return the names of the trained parameters: alpha, and the lower bound if the scheme has a zero point."""
        return ("alpha",) if scheme.zero_point is None else ("alpha", "low")

    def scaled(self, params: Clipping, factor: Tensor) -> Clipping:
        """Return the parameters for factor * x, factor > 0 in their shape: its values are factor times the values of x."""
        return Clipping(params.alpha * factor, params.low * factor)

    def apply(self, params: Clipping, x: Tensor, scheme: Scheme) -> Tensor:
        """Return the value that the hardware represents for x."""
        return by_rule(_ClipGradient(scheme), x, params.alpha, params.low)

    def export(self, params: Clipping, x: Tensor, scheme: Scheme) -> tuple[Tensor, Affine]:
        """Return the codes of x, and the qparams of the clipping range."""
        qparams = from_range(*_bounds(params.alpha.detach(), params.low.detach(), scheme), scheme)
        return quantize(x.detach(), qparams, scheme), qparams


def _bounds(alpha: Tensor, low: Tensor, scheme: Scheme) -> tuple[Tensor, Tensor]:
    high = alpha.abs().clamp(min=TINY * steps.largest_level(scheme))
    if scheme.zero_point is not None:
        return low.clamp(max=0), high
    return (-high if _is_signed(scheme) else torch.zeros_like(high)), high


def _is_signed(scheme: Scheme) -> bool:
    return steps.ends(scheme)[0] < 0


class _ClipGradient(NamedTuple):  # not attrs', whose __init__ Dynamo cannot trace
    scheme: Scheme

    def forward(self, x: Tensor, alpha: Tensor, low: Tensor) -> Tensor:
        return steps.value_of(x, from_range(*_bounds(alpha, low, self.scheme), self.scheme), self.scheme)

    def backward(self, grad: Tensor, x: Tensor, alpha: Tensor, low: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        scheme, wide = self.scheme, widened(x, self.scheme)
        bottom, top = (spread(bound, wide, scheme) for bound in _bounds(alpha, low, scheme))
        below, above = wide < bottom, wide >= top
        inside = (wide >= bottom) & (wide < top)  # not ~(below | above): NaN is in no region
        to_high, to_low = grad * above, grad * below
        if scheme.zero_point is not None:
            per_low = summed(to_low.to(wide.dtype), low, scheme)
        else:
            per_low, to_high = None, to_high - to_low if _is_signed(scheme) else to_high
        per_alpha = summed(to_high.to(wide.dtype), alpha, scheme)
        return grad * inside, torch.where(alpha < 0, -per_alpha, per_alpha), per_low
