"""DoReFa: weights go through tanh before they are quantized."""

from __future__ import annotations

from typing import NamedTuple

import torch
from attrs import frozen
from torch import Tensor

from qfunc.functions import _steps as steps
from qfunc.numerics._grads import straight_through
from qfunc.numerics.affine import quantize, widened
from qfunc.numerics.qparams import Affine, from_range
from qfunc.specs import Int, Scheme


class Squashed(NamedTuple):
    """The qparams of transformed weights; an activation's params are a plain `Affine`."""

    scale: Tensor
    zero_point: Tensor
    outer: Tensor | None


@frozen
class DoReFa:
    """Weights: x_hat = Q(tanh(w) / max|tanh(w)|).  Activations: x_hat = Q(clip(x, 0, 1)).

    The maximum is that of the whole tensor.  Q rounds on the hardware's grid of the range [-1, 1], or [0, 1]
    for activations: the paper's grid of weights, 2 k / (2^bits - 1) - 1, has no 0 and so cannot be held
    by hardware whose real 0 is a code.  Nothing trains, and the estimated qparams are not used.  The deployed
    weights are the transformed ones: `export` gives their codes.

    Weights: the gradient passes straight through the rounding alone, and through tanh and the maximum as they
    are (equal maxima share it).  Activations: d x_hat / d x = 1 where 0 <= x <= 1, else 0.  A symmetric signed
    scheme holds activations down to -1, and lets their gradient through there.

    A tensor is a weight if `init` sees its shape, an activation if it sees a scalar or an empty tensor in its
    place, or if the scheme's scale is computed at run time.  All-zero weights give zeros; NaN gives NaN
    everywhere, and so do infinities nothing but +-1.

    Raises:
        SpecError: a format that is no `Int`, from `init`.
    Source: Zhou et al., arXiv:1606.06160, equations 5, 9 and 11.

    >>> scheme, weight = Scheme(Int(4)), torch.tensor([-0.5, 0.1, 1.0])
    >>> params = DoReFa().init(Affine(torch.tensor(1.0), torch.tensor(0.0)), weight, scheme)
    >>> (DoReFa().apply(params, weight, scheme) * 7).round()
    tensor([-4.,  1.,  7.])
    """

    def init(self, qparams: Affine, x: Tensor, scheme: Scheme) -> Squashed | Affine:
        """The qparams of [-1, 1] or [0, 1], in the shape of the estimated ones."""
        steps.refuse_unless((Int,), scheme, "DoReFa")
        one = torch.ones_like(qparams.scale)
        if x.ndim and x.numel() and not scheme.scale.dynamic:
            return Squashed(*from_range(-one, one, scheme))
        return from_range(0 * one, one, scheme)

    def apply(self, params: Squashed | Affine, x: Tensor, scheme: Scheme) -> Tensor:
        """The transformed x as the hardware holds it."""
        wide, qparams = _transformed(params, x, scheme), Affine(*params)
        value = steps.value_of(wide.detach(), qparams, scheme)
        if not torch.is_grad_enabled():
            return value.to(x.dtype)
        mask = torch.ones((), dtype=torch.bool, device=x.device)
        if isinstance(params, Affine):
            mask = (wide >= _lowest(scheme)) & (wide <= 1)
        return straight_through(wide, value, mask).to(x.dtype)

    def export(self, params: Squashed | Affine, x: Tensor, scheme: Scheme) -> tuple[Tensor, Affine]:
        """The codes of the transformed x, and their qparams."""
        qparams = Affine(*params)
        return quantize(_transformed(params, x.detach(), scheme), qparams, scheme), qparams


def _transformed(params: Squashed | Affine, x: Tensor, scheme: Scheme) -> Tensor:
    wide = widened(x, scheme)
    if isinstance(params, Affine) or x.numel() == 0:
        return wide
    squashed = torch.tanh(wide)
    largest = squashed.abs().amax()
    return squashed / torch.where(largest == 0, 1.0, largest)


def _lowest(scheme: Scheme) -> float:
    assert isinstance(scheme.format, Int)  # `init`'s own rule
    return -1.0 if scheme.zero_point is None and scheme.format.qmin < 0 else 0.0
