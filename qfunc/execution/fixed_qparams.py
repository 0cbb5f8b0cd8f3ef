"""Observe tensors with qparams that the hardware fixes: the part of their values that rounds to 0."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from attrs import evolve, frozen
from torch import Tensor

from qfunc.functions import Fixed
from qfunc.numerics.qparams import Affine
from qfunc.quantizers.site import Site
from qfunc.specs import FixedQParams, Scheme
from qfunc.specs.protocols import Estimator

_FUNCTION = Fixed()
_LARGEST_LOSS = 0.5


class Sums(NamedTuple):
    """Sums over all batches, and the state of the estimator if the hardware also takes smaller scales.

    number: The number of values.
    total: The sum of |x|.
    lost: The sum of |x| over the values that round to 0 at the fixed qparams.
    """

    number: Tensor
    total: Tensor
    lost: Tensor
    estimated: Any


@frozen
class FixedScale:
    """The fixed qparams, or estimated ones where the hardware takes them and the mean value would round to 0.

    The mean of a softmax over n entries is 1/n.  At the fixed scale s it rounds to 0 if 1/n <= s/2: above n = 512 for
    s = 1/256.  If the hardware also takes smaller scales, and the estimated scale is smaller, it applies from there on.

    Args:
        value: The value of the slot.
        inner: The estimator of the site.
    """

    value: FixedQParams
    inner: Estimator

    def init(self, scheme: Scheme, like: Tensor) -> Sums:
        """Return the sums of no values: the identity of merge."""
        zero = torch.zeros((), dtype=torch.float64, device=like.device)
        return Sums(zero, zero, zero, self.inner.init(scheme, like) if self.value.smaller else None)

    def update(self, state: Sums, x: Tensor, scheme: Scheme) -> Sums:
        """Return the sums with the values of x."""
        size, codes = x.detach().abs(), _FUNCTION.apply(self._fixed(x.device), x.detach(), scheme)
        lost = torch.where(codes == 0, size, 0).sum(dtype=torch.float64)
        estimated = self.inner.update(state.estimated, x, scheme) if self.value.smaller else None
        return Sums(state.number + x.numel(), state.total + size.sum(dtype=torch.float64), state.lost + lost, estimated)

    def merge(self, a: Sums, b: Sums) -> Sums:
        """Return the sums of both."""
        inner: Any = self.inner
        estimated = inner.merge(a.estimated, b.estimated) if self.value.smaller else None
        return Sums(a.number + b.number, a.total + b.total, a.lost + b.lost, estimated)

    def finalize(self, state: Sums, scheme: Scheme) -> Affine:
        """Return the estimated qparams if they apply, else the fixed ones."""
        fixed = self._fixed(state.number.device)
        if self.value.smaller and self._mean_is_lost(state, fixed):
            estimated: Affine = self.inner.finalize(state.estimated, scheme)
            return estimated if bool((estimated.scale < fixed.scale).all()) else fixed
        return fixed

    def lost_part(self, state: Sums, scheme: Scheme) -> float:
        """Return the part of the sum of |x| that rounds to 0 if it is more than half of it, else 0.

        It is 0 where estimated qparams represent the mean value.
        """
        part = float(state.lost / state.total) if float(state.total) else 0.0
        cured = self.value.smaller and not self._mean_is_lost(state, self.finalize(state, scheme))
        return part if part > _LARGEST_LOSS and not cured else 0.0

    def _mean_is_lost(self, state: Sums, qparams: Affine) -> bool:
        return bool(state.total / state.number <= qparams.scale.double().max() / 2)

    def _fixed(self, device: torch.device) -> Affine:
        scale, zero_point = (torch.tensor(float(v), device=device) for v in (self.value.scale, self.value.zero_point))
        return Affine(scale, zero_point)


def observed_site(site: Site) -> Site:
    """Return a site with the estimator and the scheme that observe it: those of fixed qparams, and of outer scales."""
    value = site.value
    if site.outer:
        return evolve(site, value=Scheme(site.scheme.format))
    return evolve(site, estimator=FixedScale(value, site.estimator)) if isinstance(value, FixedQParams) else site


def loss_text(site: Site, part: float) -> str:
    """Return the warning about a site that loses a part of the sum of its values."""
    value = site.value
    assert isinstance(value, FixedQParams)
    return (
        f"calibrate, site {site.name!r}: found values that round to 0 and are {part:.0%} of the sum of all, at the scale "
        f"{value.scale:g} that the target fixes, wanted at most {_LARGEST_LOSS:.0%}. "
        f"Leave the op in float by edit.skip(edit.name({site.op!r})), or compute it over fewer entries."
    )
