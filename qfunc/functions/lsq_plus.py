"""LSQ+: learn the scale and the offset."""

from __future__ import annotations

from typing import NamedTuple

import torch
from attrs import field, frozen
from torch import Tensor

from qfunc.functions import _steps as steps
from qfunc.functions.lsq import axis, factor, factor_of
from qfunc.numerics._learned_grads import by_rule
from qfunc.numerics.affine import codes_of, quantize
from qfunc.numerics.qparams import Affine
from qfunc.numerics.rounding import round_by
from qfunc.specs import Int, Scheme


class Offset(NamedTuple):
    """The trained scale and offset in real units, float32 in the shape of the qparams."""

    scale: Tensor
    beta: Tensor


@frozen
class LsqPlus:
    """x_hat = clamp(R((x - beta)/s), qmin, qmax) s + beta; scale s and offset beta train.

    The hardware has an integer zero point z = clamp(R(-beta/s), qmin, qmax) instead of a real offset, so the value
    is x_hat = (clamp(R(x/s) + z, qmin, qmax) - z) s, with the paper's gradients at v = x/s + z:

        d x_hat / d s = g * {R(v) - v where qmin < v < qmax;  qmin where v <= qmin;  qmax where v >= qmax}
        d x_hat / d beta = g * {0 where qmin < v < qmax;  1 elsewhere}
        d x_hat / d x = 1 where qmin < v < qmax or x = 0, else 0

    g = 1 / sqrt(N qmax) as in LSQ, for both, because they have the same unit.  Without a free zero point only s
    trains, as in `Lsq`.  x = 0, the hardware's scale, NaN and infinities are as in `Lsq`.

    Args:
        gradient_scale: True for g as above, False for 1, or g itself.
        batch_axis: As in `Lsq`: 0 for activations excludes the examples from N.
    Raises:
        SpecError: a gradient scale that is not a positive number, an axis that is not an int; a format other than
            `Int`, from `init`.
    Source: Bhalgat et al., arXiv:2004.09576, equations 3 to 5.

    >>> from qfunc.specs import ZeroPoint
    >>> scheme, x = Scheme(Int(8, signed=False), zero_point=ZeroPoint()), torch.tensor([0.6, -100.0])
    >>> beta = torch.tensor(-1.4, requires_grad=True)
    >>> value = LsqPlus(gradient_scale=False).apply(Offset(torch.tensor(0.5), beta), x, scheme)
    >>> value.sum().backward()
    >>> value.tolist(), beta.grad.item()
    ([0.5, -1.5], 1.0)
    """

    gradient_scale: bool | float = field(default=True, validator=factor)
    batch_axis: int | None = field(default=None, validator=axis)

    def init(self, qparams: Affine, x: Tensor, scheme: Scheme) -> Offset:
        """Return the estimated scale, and beta = -z s."""
        steps.refuse_unless((Int,), scheme, "LsqPlus")
        scale = steps.total_scale(qparams)
        return Offset(scale, -qparams.zero_point * scale)

    def learned(self, scheme: Scheme) -> tuple[str, ...]:
        """Return the names of the trained parameters: the scale, and beta if the zero point is free."""
        return ("scale", "beta") if steps.is_free(scheme) else ("scale",)

    def scaled(self, params: Offset, factor: Tensor) -> Offset:
        """Return the parameters for factor * x, factor > 0 in their shape: its values are factor times the values of x."""
        return Offset(params.scale * factor, params.beta * factor)

    def apply(self, params: Offset, x: Tensor, scheme: Scheme) -> Tensor:
        """Return the value that the hardware represents for x."""
        beta = params.beta if steps.is_free(scheme) else params.beta.detach()
        return by_rule(_OffsetGradient(scheme, self.gradient_scale, self.batch_axis), x, params.scale, beta)

    def export(self, params: Offset, x: Tensor, scheme: Scheme) -> tuple[Tensor, Affine]:
        """Return the codes of x, and the qparams with the integer zero point."""
        qparams = _hardware_qparams(params.scale.detach(), params.beta.detach(), scheme)
        return quantize(x.detach(), qparams, scheme), qparams


def _hardware_qparams(scale: Tensor, beta: Tensor, scheme: Scheme) -> Affine:
    qparams = steps.quantized_step(scale, torch.zeros_like(scale), scheme)
    rule = scheme.zero_point
    if rule is None:
        return qparams
    if rule.value is not None:
        return qparams._replace(zero_point=torch.full_like(scale, rule.value))
    low, high = codes_of(scheme)
    zero = round_by(-beta.double() / steps.total_scale(qparams).double(), rule.rounding).clamp(low, high)
    return qparams._replace(zero_point=zero.float())


class _OffsetGradient(NamedTuple):  # not attrs', whose __init__ Dynamo cannot trace
    scheme: Scheme
    gradient_scale: bool | float
    batch_axis: int | None

    def forward(self, x: Tensor, scale: Tensor, beta: Tensor) -> Tensor:
        return steps.value_of(x, _hardware_qparams(scale, beta, self.scheme), self.scheme)

    def backward(self, grad: Tensor, x: Tensor, scale: Tensor, beta: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        scheme, qparams = self.scheme, _hardware_qparams(scale, beta, self.scheme)
        result = steps.gradients(grad, x, qparams, scheme, outside=steps.is_free(scheme))
        g, total, outside = factor_of(self.gradient_scale, self.batch_axis, x, scale, scheme), result.step, result.outside
        if outside is not None:
            total = total + outside * qparams.zero_point  # n or p, not n - z or p - z
        total = steps.through_magnitude(total * g, scale, scheme)
        return result.x, total, outside if outside is None else outside * g
