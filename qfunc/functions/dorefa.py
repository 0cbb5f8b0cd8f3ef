"""DoReFa: weights go through tanh before they are quantized."""

from __future__ import annotations

from typing import NamedTuple

import torch
from attrs import field, frozen
from torch import Tensor

from qfunc.functions import _steps as steps
from qfunc.numerics._grads import straight_through
from qfunc.numerics.affine import in_range, quantize, widened
from qfunc.numerics.qparams import Affine, blocks, from_range, spread
from qfunc.specs import Int, Scheme
from qfunc.specs._check import number


class Squashed(NamedTuple):
    """The qparams of transformed weights; an activation's params are a plain `Affine`."""

    scale: Tensor
    zero_point: Tensor
    outer: Tensor | None


@frozen
class DoReFa:
    """Weights: x_hat = Q(m tanh(w) / max|tanh(w)|).  Activations: x_hat = Q(clip(x, 0, m)).

    m is 1 in the paper, whose networks have a BatchNorm behind each layer to take the scale back, and the maximum is that of
    the whole tensor.  Where BatchNorms are folded into the weights nothing does: with `largest=None` each block of weights
    that shares a scale keeps its own maximum, m = max|w| and x_hat = Q(m tanh(w) / tanh(m)), and activations are held in
    the range that calibration estimated.

    Q rounds on the hardware's grid of the range [-m, m], or [0, m] for activations: the paper's grid of weights,
    2 k / (2^bits - 1) - 1, has no 0 and so cannot be held by hardware whose real 0 is a code.  Nothing trains, and weights do
    not use the estimated qparams.  The deployed weights are the transformed ones: `export` gives their codes.

    Weights: the gradient passes straight through the rounding alone, and through tanh and the maximum as they
    are (equal maxima share it).  Activations: d x_hat / d x = 1 inside the range, else 0.  A symmetric signed
    scheme holds activations down to -m, and lets their gradient through there.

    A tensor is a weight if `init` sees its shape, an activation if it sees a scalar or an empty tensor in its
    place, or if the scheme's scale is computed at run time.  All-zero weights give zeros; NaN gives NaN
    everywhere that its maximum counts, and so do infinities nothing but +-m.

    Args:
        largest: m in real units, or None for the largest |w| of each block and the estimated range of activations.
    Raises:
        SpecError: a `largest` that is not positive; a format that is no `Int`, from `init`.
    Source: Zhou et al., arXiv:1606.06160, equations 5, 9 and 11.

    >>> scheme, weight = Scheme(Int(4)), torch.tensor([-0.5, 0.1, 1.0])
    >>> params = DoReFa().init(Affine(torch.tensor(1.0), torch.tensor(0.0)), weight, scheme)
    >>> (DoReFa().apply(params, weight, scheme) * 7).round()
    tensor([-4.,  1.,  7.])
    >>> DoReFa(largest=None).apply(params, 3 * weight, scheme)
    tensor([-2.5714,  0.8571,  3.0000])
    """

    largest: float | None = field(default=1.0, validator=number(positive=True, optional=True))

    def init(self, qparams: Affine, x: Tensor, scheme: Scheme) -> Squashed | Affine:
        """The qparams of [-m, m] or [0, m], in the shape of the estimated ones, or these where m is None."""
        steps.refuse_unless((Int,), scheme, "DoReFa")
        weight = x.ndim and x.numel() and not scheme.scale.dynamic
        if self.largest is None:
            return Squashed(*qparams) if weight else qparams
        most = torch.full_like(qparams.scale, self.largest)
        return Squashed(*from_range(-most, most, scheme)) if weight else from_range(0 * most, most, scheme)

    def apply(self, params: Squashed | Affine, x: Tensor, scheme: Scheme) -> Tensor:
        """The transformed x as the hardware holds it."""
        wide, qparams = self._transformed(params, x, scheme)
        value = steps.value_of(wide.detach(), qparams, scheme)
        if not torch.is_grad_enabled():
            return value.to(x.dtype)
        if isinstance(params, Squashed):
            mask = torch.ones((), dtype=torch.bool, device=x.device)
        elif self.largest is None:
            mask = in_range(wide.detach(), qparams, scheme)
        else:
            mask = (wide >= (-self.largest if _is_even(scheme) else 0.0)) & (wide <= self.largest)
        return straight_through(wide, value, mask).to(x.dtype)

    def export(self, params: Squashed | Affine, x: Tensor, scheme: Scheme) -> tuple[Tensor, Affine]:
        """The codes of the transformed x, and their qparams."""
        wide, qparams = self._transformed(params, x.detach(), scheme)
        return quantize(wide, qparams, scheme), qparams

    def _transformed(self, params: Squashed | Affine, x: Tensor, scheme: Scheme) -> tuple[Tensor, Affine]:
        # What is quantized, and the qparams of its range.
        wide = widened(x, scheme)
        if isinstance(params, Affine) or x.numel() == 0:
            return wide, Affine(*params)
        squashed = torch.tanh(wide)
        if self.largest is not None:
            most = squashed.abs().amax()
            return squashed / torch.where(most == 0, 1.0, most) * self.largest, Affine(*params)
        split, axes = blocks(wide, scheme)
        kept = split.abs().amax(axes).clamp(max=torch.finfo(torch.float32).max)
        top = kept.detach().float().reshape(params.scale.shape)
        most = spread(kept.reshape(params.scale.shape), wide, scheme)
        return squashed * (most / torch.where(most == 0, 1.0, torch.tanh(most))), from_range(-top, top, scheme)


def _is_even(scheme: Scheme) -> bool:
    # Whether activations have a negative half.
    assert isinstance(scheme.format, Int)  # `init`'s own rule
    return scheme.zero_point is None and scheme.format.qmin < 0
