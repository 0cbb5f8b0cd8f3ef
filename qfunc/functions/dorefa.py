"""DoReFa: quantize tanh of the weights."""

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

    In the paper m is 1 and the maximum is that of the whole tensor; a BatchNorm after each layer restores the scale.
    If BatchNorms are folded into the weights, nothing restores it.  Then use `largest=None`: each block of weights that
    shares a scale keeps its own maximum, m = max|w| and x_hat = Q(m tanh(w) / tanh(m)), and activations are clipped to
    the range that calibration estimated.

    The tensor w is the one that the chip stores.  With a folded BatchNorm it is w f, and tanh(w f) depends on the factor f,
    although the float network does not depend on how a factor is shared by w and f.  The smaller the weights, the nearer
    tanh is to the identity.

    Q rounds on the hardware's grid of the range [-m, m], or [0, m] for activations.  The paper's grid of weights,
    2 k / (2^bits - 1) - 1, has no 0, so hardware in which real 0 is a code cannot represent it.  There are no learned
    parameters, and weights do not use the estimated qparams.  The deployed weights are the transformed ones: `export`
    returns their codes.

    Weights: the gradient is straight-through for the rounding only, and exact for tanh and the maximum (equal
    maxima share it).  Activations: d x_hat / d x = 1 inside the range, else 0.  A symmetric signed scheme
    represents activations down to -m, and passes their gradient there.

    A tensor is a weight if `init` gets its shape.  It is an activation if `init` gets a scalar or an empty tensor
    in its place, or if the scheme's scale is computed at run time.  All-zero weights give zeros.  NaN gives NaN
    everywhere in the tensor or block of its maximum; infinities give +-m.

    Args:
        largest: m in real units, or None for the largest |w| of each block and the estimated range of activations.
    Raises:
        SpecError: a `largest` that is not positive; a format other than `Int`, from `init`.
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
        """Return the qparams of [-m, m] or [0, m] in the shape of the estimated ones; the latter if m is None."""
        steps.refuse_unless((Int,), scheme, "DoReFa")
        weight = x.ndim and x.numel() and not scheme.scale.dynamic
        if self.largest is None:
            return Squashed(*qparams[:3]) if weight else qparams
        most = torch.full_like(qparams.scale, self.largest)
        return Squashed(*from_range(-most, most, scheme)[:3]) if weight else from_range(0 * most, most, scheme)

    def apply(self, params: Squashed | Affine, x: Tensor, scheme: Scheme) -> Tensor:
        """Return the value that the hardware represents for the transformed x."""
        wide, qparams = self._transformed(params, x, scheme)
        value = steps.value_of(wide.detach(), qparams, scheme)
        if not torch.is_grad_enabled():
            return value.to(x.dtype)
        if isinstance(params, Squashed):
            mask = torch.ones((), dtype=torch.bool, device=x.device)
        elif self.largest is None:
            mask = in_range(wide.detach(), qparams, scheme)
        else:
            mask = (wide >= (-self.largest if _is_two_sided(scheme) else 0.0)) & (wide <= self.largest)
        return straight_through(wide, value, mask).to(x.dtype)

    def export(self, params: Squashed | Affine, x: Tensor, scheme: Scheme) -> tuple[Tensor, Affine]:
        """Return the codes of the transformed x, and their qparams."""
        wide, qparams = self._transformed(params, x.detach(), scheme)
        return quantize(wide, qparams, scheme), qparams

    def _transformed(self, params: Squashed | Affine, x: Tensor, scheme: Scheme) -> tuple[Tensor, Affine]:
        # The tensor that is quantized, and the qparams of its range.
        wide = widened(x, scheme)
        if isinstance(params, Affine) or x.numel() == 0:
            return wide, Affine(*params[:2], params.outer)
        squashed = torch.tanh(wide)
        if self.largest is not None:
            most = squashed.abs().amax()
            return squashed / torch.where(most == 0, 1.0, most) * self.largest, Affine(*params)
        split, axes = blocks(wide, scheme)
        absmax = split.abs().amax(axes).clamp(max=torch.finfo(torch.float32).max)
        top = absmax.detach().float().reshape(params.scale.shape)
        most = spread(absmax.reshape(params.scale.shape), wide, scheme)
        return squashed * (most / torch.where(most == 0, 1.0, torch.tanh(most))), from_range(-top, top, scheme)


def _is_two_sided(scheme: Scheme) -> bool:
    # True if the range of activations has a negative half.
    assert isinstance(scheme.format, Int)  # `init` requires it
    return scheme.zero_point is None and scheme.format.qmin < 0
