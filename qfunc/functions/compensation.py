"""Compensation: quantize each weight plus a fixed shift, which makes up for the errors of others."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from attrs import field, frozen
from torch import Tensor

from qfunc.errors import SpecError
from qfunc.functions._inner import learned_by, plain, scaled_by
from qfunc.functions.fixed import Fixed
from qfunc.numerics.qparams import Affine
from qfunc.specs import Scheme


class Shifted(NamedTuple):
    """The parameters of the inner function, and the shift of every weight in real units."""

    inner: Any
    shift: Tensor


@frozen
class Compensation:
    """x_hat = Q(x + d): a weight x gets the code of x + d, for a shift d in real units that methods such as `gptq` choose.

    Initially d = 0, so that x_hat = Q(x).  Training moves x and leaves d; x and the parameters of `inner` get the gradients
    of `inner` at x + d.  The sum is computed in float32, or in float64 for float64 x.

    Args:
        inner: Q, the function with the scale; it must have no training surrogate.
    Raises:
        SpecError: at construction, an inner function with a `relax`; from `init`, a scalar or empty x, which stands for an
            activation, because only constants have a shift for each element.
    Source: Frantar et al., arXiv:2210.17323: each weight is rounded after those before it have moved it.

    >>> function, x, scheme = Compensation(), torch.tensor([0.3, 0.7]), Scheme()
    >>> params = function.init(Affine(torch.tensor(1.0), torch.tensor(0.0)), x, scheme)
    >>> function.apply(params, x, scheme), function.apply(params._replace(shift=torch.tensor([0.7, 0.3])), x, scheme)
    (tensor([0., 1.]), tensor([1., 1.]))
    """

    inner: Any = field(default=Fixed(), validator=plain)

    def init(self, qparams: Affine, x: Tensor, scheme: Scheme) -> Shifted:
        """Return the parameters of `inner`, and a shift of 0 in float32 and in the shape of x."""
        if x.ndim == 0 or x.numel() == 0:
            wanted = "a weight, whose elements can be shifted"
            do = "Use Compensation for weights, another function for activations."
            raise SpecError(where="Compensation", found=f"a tensor of shape {tuple(x.shape)}", wanted=wanted, do=do)
        return Shifted(self.inner.init(qparams, x, scheme), torch.zeros_like(x, dtype=torch.float32))

    def learned(self, scheme: Scheme) -> tuple[str, ...]:
        """Return the names that `inner` trains."""
        return tuple(f"inner_{name}" for name in learned_by(self.inner, scheme))

    def scaled(self, params: Shifted, factor: Tensor) -> Shifted | None:
        """Return the parameters for factor * x, factor > 0 in their shape: its values are factor times the values of x."""
        inner = scaled_by(self.inner, params.inner, factor)
        return None if inner is None else Shifted(inner, params.shift * _each(factor, params.shift))

    def apply(self, params: Shifted, x: Tensor, scheme: Scheme) -> Tensor:
        """Return the value that the hardware represents, in the dtype of x."""
        value: Tensor = self.inner.apply(params.inner, x + params.shift, scheme)
        return value.to(x.dtype)

    def export(self, params: Shifted, x: Tensor, scheme: Scheme) -> tuple[Tensor, Affine]:
        """Return the codes of x + d and their qparams."""
        codes, qparams = self.inner.export(params.inner, x + params.shift, scheme)
        return codes, qparams


def _each(factor: Tensor, like: Tensor) -> Tensor:
    # One factor for each element: blocks of equal size along each axis share one.
    for axis in range(factor.ndim):
        factor = factor.repeat_interleave(like.shape[axis] // factor.shape[axis], axis)
    return factor
