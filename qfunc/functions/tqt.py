"""TQT: learn the logarithm of the clipping threshold."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from attrs import frozen
from torch import Tensor

from qfunc.functions import _steps as steps
from qfunc.numerics._learned_grads import by_rule
from qfunc.numerics.affine import in_range, quantize
from qfunc.numerics.qparams import Affine
from qfunc.specs import Int, Scheme


class Threshold(NamedTuple):
    """log2 of the trained threshold, float32 in the shape of the qparams, and the zero point, which does not train."""

    log2_t: Tensor
    zero_point: Tensor


@frozen
class Tqt:
    """x_hat = clamp(R(x/s), n, p) s with s = 2^ceil(log2 t) / 2^(b-1); log2 t trains.

    Unsigned formats divide by 2^b; n = qmin - z and p = qmax - z with z the zero point, 0 in the paper.

        d x_hat / d log2 t = s ln 2 * {R(x/s) - x/s where n <= R(x/s) <= p;  n below;  p above}
        d x_hat / d x = 1 where n <= R(x/s) <= p, else 0

    R is the scheme's rounding, in the value and in the mask.  The scale is a power of two for every scheme; the
    bounds and the format of the scheme's scale apply to it.  NaN and infinities are as in `Lsq`.

    Raises:
        SpecError: a format other than `Int`, or a signed scale, from `init`.
    Source: Jain et al., arXiv:1903.08066, equations 4, 7 and 8.

    >>> params = Threshold(torch.tensor(0.4, requires_grad=True), torch.tensor(0.0))
    >>> value = Tqt().apply(params, torch.tensor([0.3, 9.0]), Scheme(Int(4)))
    >>> value.tolist()
    [0.25, 1.75]
    """

    def init(self, qparams: Affine, x: Tensor, scheme: Scheme) -> Threshold:
        """Return t = s 2^(b-1), so that s is the estimated scale, or the next power of two above it."""
        steps.refuse_unless((Int,), scheme, "Tqt")
        steps.refuse_signed(scheme, "Tqt")
        fraction, exponent = torch.frexp(steps.total_scale(qparams))  # log2 of a power of two must not miss the integer
        return Threshold(torch.log2(2 * fraction) + (exponent - 1 + _half_bits(scheme)), qparams.zero_point)

    def learned(self, scheme: Scheme) -> tuple[str, ...]:
        """Return the names of the trained parameters: log2 t."""
        return ("log2_t",)

    def apply(self, params: Threshold, x: Tensor, scheme: Scheme) -> Tensor:
        """Return the value that the hardware represents for x."""
        return by_rule(_ThresholdGradient(scheme), x, params.log2_t, params.zero_point.detach())

    def export(self, params: Threshold, x: Tensor, scheme: Scheme) -> tuple[Tensor, Affine]:
        """Return the codes of x, and qparams with a power-of-two scale."""
        qparams = _hardware_qparams(params.log2_t.detach(), params.zero_point.detach(), scheme)
        return quantize(x.detach(), qparams, scheme), qparams


def _half_bits(scheme: Scheme) -> int:
    assert isinstance(scheme.format, Int)  # `init` requires it
    return scheme.format.bits - scheme.format.signed


def _hardware_qparams(log2_t: Tensor, zero_point: Tensor, scheme: Scheme) -> Affine:
    exponent = (torch.ceil(log2_t) - _half_bits(scheme)).clamp(-126, 127)
    scale = torch.ldexp(torch.ones_like(log2_t), exponent.int()) + 0 * log2_t  # NaN stays NaN
    return steps.quantized_step(scale, zero_point, scheme)


class _ThresholdGradient(NamedTuple):  # not attrs', whose __init__ Dynamo cannot trace
    scheme: Scheme

    def forward(self, x: Tensor, log2_t: Tensor, zero_point: Tensor) -> Tensor:
        return steps.value_of(x, _hardware_qparams(log2_t, zero_point, self.scheme), self.scheme)

    def backward(self, grad: Tensor, x: Tensor, log2_t: Tensor, zero_point: Tensor) -> tuple[Tensor, Tensor, None]:
        scheme, qparams = self.scheme, _hardware_qparams(log2_t, zero_point, self.scheme)
        result = steps.gradients(grad, x, qparams, scheme, lambda g, x, t, q: g * in_range(x, q, scheme))
        return result.x, result.step * steps.total_scale(qparams) * math.log(2), None
