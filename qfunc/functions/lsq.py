"""LSQ: learn the scale."""

from __future__ import annotations

from typing import Any, NamedTuple

from attrs import field, frozen
from torch import Tensor

from qfunc.functions import _steps as steps
from qfunc.numerics._learned_grads import by_rule
from qfunc.numerics.affine import quantize
from qfunc.numerics.qparams import Affine
from qfunc.specs import Scheme
from qfunc.specs._check import refuse


class Learned(NamedTuple):
    """The trained scale, float32 in the shape of the qparams, and the zero point, which does not train."""

    scale: Tensor
    zero_point: Tensor


def factor(instance: Any, attribute: Any, value: Any) -> None:
    """Validate a gradient scale: raise SpecError unless it is True, False or a positive number."""
    if type(value) is bool or (type(value) in (int, float) and 0 < value < float("inf")):
        return
    do = "True is the paper's 1 / sqrt(N Q_p), False is 1."
    raise refuse(instance, attribute.name, value, "True, False or a positive number", do)


def axis(instance: Any, attribute: Any, value: Any) -> None:
    """Validate an axis: raise SpecError unless it is None or an int."""
    if value is not None and type(value) is not int:
        do = "0 leaves the first axis of activations out of N; None is for weights."
        raise refuse(instance, attribute.name, value, "None or a whole number", do)


def factor_of(gradient_scale: bool | float, batch_axis: int | None, x: Tensor, scale: Tensor, scheme: Scheme) -> float:
    """Return g: 1 / sqrt(N Q_p) for True, 1 for False, else the number itself."""
    if gradient_scale is not True:
        return float(gradient_scale or 1)
    return float((steps.elements_per_scale(x, scale, batch_axis) * steps.largest_level(scheme)) ** -0.5)


@frozen
class Lsq:
    """x_hat = (clamp(R(x/s) + z, qmin, qmax) - z) s; the scale s trains, the zero point z does not.

    With t = x/s + z in the dtype of the computation:

        d x_hat / d s = g * {R(x/s) - x/s where qmin < t < qmax;  qmin - z where t <= qmin;  qmax - z where t >= qmax}
        d x_hat / d x = 1 where qmin < t < qmax or x = 0, else 0
        g = 1 / sqrt(N qmax), N the number of elements of x that share the scale, without those along `batch_axis`

    The paper has no gradient at x = 0 if its code is qmin: there a tensor that begins with zeros only, as after a BatchNorm
    with gamma = 0, would never change.  After a ReLU, whose own gradient at 0 is 0, both are the same.

    `Float` and `Levels` formats have their smallest and largest value in place of qmin and qmax.

    The hardware uses `allowed(max(|s|, 2^-126))`: if training makes s negative, its magnitude is used (unless
    `Scale.signed` allows negative scales).  The gradient is straight-through for the rounding to a power of two or
    to the scale's format.  A scale of two levels trains as one number.

    NaN in x gives NaN there and in the scale's gradient; infinities saturate.

    Args:
        gradient_scale: True for g as above, False for 1, or g itself.
        batch_axis: The axis of x over examples, which N excludes: 0 for activations, as in `recipes.lsq()`, so that
            g does not depend on how a batch is split.  None for weights; for an activation, None counts all
            elements of x, as most implementations do.
    Raises:
        SpecError: a gradient scale that is not a positive number, an axis that is not an int; a `Log` format, from
            `init`.
    Source: Esser et al., arXiv:1902.08153, equations 3 and 5, section 2.2.

    >>> import torch
    >>> scheme, lsq, x = Scheme(), Lsq(gradient_scale=False), torch.tensor([0.6, 100.0])
    >>> scale = torch.tensor(0.5, requires_grad=True)
    >>> lsq.apply(Learned(scale, torch.tensor(0.0)), x, scheme).sum().backward()
    >>> scale.grad.item()  # R(1.2) - 1.2 + 127
    126.80000305175781
    """

    gradient_scale: bool | float = field(default=True, validator=factor)
    batch_axis: int | None = field(default=None, validator=axis)

    def init(self, qparams: Affine, x: Tensor, scheme: Scheme) -> Learned:
        """Return the estimated scale and zero point."""
        steps.refuse_unless(steps.FORMATS_WITH_STEP, scheme, "Lsq")
        return Learned(steps.total_scale(qparams), qparams.zero_point)

    def learned(self, scheme: Scheme) -> tuple[str, ...]:
        """Return the names of the trained parameters: the scale."""
        return ("scale",)

    def scaled(self, params: Learned, factor: Tensor) -> Learned:
        """Return the parameters for factor * x, factor > 0 in their shape: its values are factor times the values of x."""
        return params._replace(scale=params.scale * factor)

    def apply(self, params: Learned, x: Tensor, scheme: Scheme) -> Tensor:
        """Return the value that the hardware represents for x."""
        return by_rule(
            _ScaleGradient(scheme, self.gradient_scale, self.batch_axis), x, params.scale, params.zero_point.detach()
        )

    def export(self, params: Learned, x: Tensor, scheme: Scheme) -> tuple[Tensor, Affine]:
        """Return the codes of x and the qparams that the hardware uses."""
        qparams = steps.quantized_step(params.scale.detach(), params.zero_point.detach(), scheme)
        return quantize(x.detach(), qparams, scheme), qparams


class _ScaleGradient(NamedTuple):  # not attrs', whose __init__ Dynamo cannot trace
    scheme: Scheme
    gradient_scale: bool | float
    batch_axis: int | None

    def forward(self, x: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
        return steps.value_of(x, steps.quantized_step(scale, zero_point, self.scheme), self.scheme)

    def backward(self, grad: Tensor, x: Tensor, scale: Tensor, zero_point: Tensor) -> tuple[Tensor, Tensor, None]:
        scheme, qparams = self.scheme, steps.quantized_step(scale, zero_point, self.scheme)
        result = steps.gradients(grad, x, qparams, scheme)
        total = result.step * factor_of(self.gradient_scale, self.batch_axis, x, scale, scheme)
        return result.x, steps.through_magnitude(total, scale, scheme), None
