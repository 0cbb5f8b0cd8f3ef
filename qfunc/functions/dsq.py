"""DSQ: learn the bounds and the steepness of a soft staircase of tanh, whose gradient replaces the gradient of rounding."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from attrs import field, frozen
from torch import Tensor

from qfunc.functions import _steps as steps
from qfunc.numerics._learned_grads import by_rule, summed
from qfunc.numerics.affine import codes_of, quantize, step
from qfunc.numerics.qparams import Affine, from_range, spread
from qfunc.specs import Int, Scheme
from qfunc.specs._check import instance_of, number, refuse


class Staircase(NamedTuple):
    """Bounds (low, high) and None, or None and (width, zero point), in the shape of the qparams; alpha, a scalar."""

    low: Tensor | None
    high: Tensor | None
    width: Tensor | None
    zero_point: Tensor | None
    alpha: Tensor


def _steepness(instance: Any, attribute: Any, value: Any) -> None:
    number(positive=True)(instance, attribute, value)
    if not _LOW <= value <= _HIGH:
        raise refuse(instance, attribute.name, value, f"a number in [{_LOW}, {_HIGH}]", "Use the usual 0.4 or 0.2.")


_LOW, _HIGH = 0.001, 0.499


@frozen
class Dsq:
    """x_hat is x rounded on the grid l + i D of [l, u]; its gradient is the gradient of a soft staircase.

    D = (u - l) / (qmax - qmin).  In the interval i, l + i D <= x < l + (i+1) D with middle m_i,

        Q_S(x) = l + D (i + (phi(x) + 1) / 2),  phi(x) = s tanh(k (x - m_i))
        s = 1 / tanh(k D / 2) = 1 / (1 - alpha),  k = ln(2 / alpha - 1) / D

    and Q_S(x) = l below l, u above u.  As in the paper, the value in training is the hard one, which replaces
    phi by its sign, and x, l, u and alpha get the derivatives of Q_S.  Schemes with a zero point train l and u, and
    from_range(l, u) gives D and the grid.  Other schemes train only the width u - l, with l = qmin D and u = qmax D:
    the gradient of a bound fits learning rates for bounds, while the gradient of a step is (qmax - qmin) times larger.
    alpha is clamped to [0.001, 0.499] with a straight-through gradient; for the paper's L2 penalty on it, use the
    optimizer's weight decay.  The curve assumes rounding to nearest.

    NaN in x gives NaN there and in the gradients of the learned parameters; infinities saturate.

    Args:
        alpha: The initial distance of the curve from the staircase; small values are steep.
        trains_alpha: True to train alpha, as in the paper; MQBench fixes it at 0.4.
    Raises:
        SpecError: an alpha outside [0.001, 0.499]; a format other than `Int`, from `init`.
    Source: Gong et al., arXiv:1908.05033, equations 3 to 9.

    >>> x = torch.tensor([0.5, 0.9], requires_grad=True)
    >>> params = Dsq().init(Affine(torch.tensor(1.0), torch.tensor(0.0)), x, Scheme())
    >>> value = Dsq().apply(params, x, Scheme())
    >>> value.sum().backward()
    >>> value.tolist(), [round(g, 4) for g in x.grad.tolist()]  # ln(4) / 1.2 in the middle, flatter at the ends
    ([0.0, 1.0], [1.1552, 0.8619])
    """

    alpha: float = field(default=0.4, validator=_steepness)
    trains_alpha: bool = field(default=True, validator=instance_of(bool))

    def init(self, qparams: Affine, x: Tensor, scheme: Scheme) -> Staircase:
        """Return the range that the estimated qparams represent."""
        steps.refuse_unless((Int,), scheme, "Dsq")
        scale, zero = steps.total_scale(qparams), qparams.zero_point
        alpha = torch.full((), self.alpha, device=scale.device)
        if not steps.is_free(scheme):
            return Staircase(None, None, _span(scheme) * scale, zero, alpha)
        low, high = codes_of(scheme)
        return Staircase((low - zero) * scale, (high - zero) * scale, None, None, alpha)

    def learned(self, scheme: Scheme) -> tuple[str, ...]:
        """Return the bounds or the width, and alpha if it trains."""
        return (*(("low", "high") if steps.is_free(scheme) else ("width",)), *(("alpha",) if self.trains_alpha else ()))

    def scaled(self, params: Staircase, factor: Tensor) -> Staircase:
        """Return the parameters for factor * x, factor > 0 in their shape: its values are factor times the values of x."""
        if params.width is not None:
            return params._replace(width=params.width * factor)
        assert params.low is not None and params.high is not None  # noqa: PT018
        return params._replace(low=params.low * factor, high=params.high * factor)

    def apply(self, params: Staircase, x: Tensor, scheme: Scheme) -> Tensor:
        """Return the value that the hardware represents for x."""
        first, second = (p.detach() if name == "zero_point" else p for name, p in _grid_parameters(params))
        return by_rule(_SoftGradient(scheme), x, first, second, params.alpha)

    def export(self, params: Staircase, x: Tensor, scheme: Scheme) -> tuple[Tensor, Affine]:
        """Return the codes of x and the qparams that the hardware uses."""
        first, second = (p.detach() for _, p in _grid_parameters(params))
        qparams = _hardware_qparams(first, second, scheme)
        return quantize(x.detach(), qparams, scheme), qparams


def _grid_parameters(params: Staircase) -> list[tuple[str, Tensor]]:
    # The two tensors that define the grid.
    return [(name, p) for name, p in zip(params._fields[:4], params[:4], strict=True) if p is not None]


def _hardware_qparams(first: Tensor, second: Tensor, scheme: Scheme) -> Affine:
    return (
        from_range(first, second, scheme)
        if steps.is_free(scheme)
        else steps.quantized_step(first / _span(scheme), second, scheme)
    )


def _span(scheme: Scheme) -> int:
    low, high = codes_of(scheme)
    return high - low


class _SoftGradient(NamedTuple):  # not attrs', whose __init__ Dynamo cannot trace
    scheme: Scheme

    def forward(self, x: Tensor, first: Tensor, second: Tensor, alpha: Tensor) -> Tensor:
        return steps.value_of(x, _hardware_qparams(first, second, self.scheme), self.scheme)

    def backward(
        self, grad: Tensor, x: Tensor, first: Tensor, second: Tensor, alpha: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
        scheme, qparams = self.scheme, _hardware_qparams(first, second, self.scheme)
        qmin, qmax = codes_of(scheme)
        # In codes: t = (x - l) / D + qmin, and the staircase h(t) = Q_S / D + z.
        t = steps.in_codes(x, qparams, scheme)
        zero = spread(qparams.zero_point, t, scheme)
        inside = (t >= qmin) & (t <= qmax)
        clamped_alpha = alpha.clamp(_LOW, _HIGH).to(t.dtype)
        s, k = 1 / (1 - clamped_alpha), torch.log(2 / clamped_alpha - 1)
        t = t.clamp(qmin, qmax)
        index = torch.floor(t).clamp(max=qmax - 1)
        offset = t - index - 0.5
        curve = torch.tanh(k * offset)
        derivative = 1 - curve * curve
        height, slope = index + 0.5 + 0.5 * s * curve, 0.5 * s * k * derivative * inside
        d_alpha = 0.5 * (s * s * curve - s * derivative * offset * 2 / (clamped_alpha * (2 - clamped_alpha))) * inside
        per_alpha = summed(grad * d_alpha * step(qparams, t, scheme), alpha, scheme)
        through = (grad * slope).to(grad.dtype)
        if not steps.is_free(scheme):
            total = summed(grad * (height - zero - slope * (t - zero)) / (qmax - qmin), first, scheme)
            return through, steps.through_magnitude(total, first, scheme), None, per_alpha
        to_high = (height - qmin - slope * (t - qmin)) / (qmax - qmin)
        to_low = 1 - slope - to_high
        return through, summed(grad * to_low, first, scheme), summed(grad * to_high, second, scheme), per_alpha
