"""LSQ: the scale is learned."""

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
    """The trained scale, float32 in the shape of the qparams, and the zero point, which stays."""

    scale: Tensor
    zero_point: Tensor


def factor(instance: Any, attribute: Any, value: Any) -> None:
    """Validator: True, False or a positive number."""
    if type(value) is bool or (type(value) in (int, float) and 0 < value < float("inf")):
        return
    do = "True is the paper's 1 / sqrt(N Q_p), False is 1."
    raise refuse(instance, attribute.name, value, "True, False or a positive number", do)


def axis(instance: Any, attribute: Any, value: Any) -> None:
    """Validator: None or a whole number."""
    if value is not None and type(value) is not int:
        do = "0 leaves the first axis of activations out of N; None is for weights."
        raise refuse(instance, attribute.name, value, "None or a whole number", do)


def factor_of(gradient_scale: bool | float, batch_axis: int | None, x: Tensor, scale: Tensor, scheme: Scheme) -> float:
    """g: 1 / sqrt(N Q_p) for True, 1 for False, else the number itself."""
    if gradient_scale is not True:
        return float(gradient_scale or 1)
    return float((steps.sharing(x, scale, batch_axis) * steps.largest_level(scheme)) ** -0.5)


@frozen
class Lsq:
    """x_hat = (clamp(R(x/s) + z, qmin, qmax) - z) s; the scale s trains, the zero point z stays.

    With t = x/s + z, as computed in the dtype of the computation:

        d x_hat / d s = g * {R(x/s) - x/s where qmin < t < qmax;  qmin - z where t <= qmin;  qmax - z where t >= qmax}
        d x_hat / d x = 1 where qmin < t < qmax, else 0
        g = 1 / sqrt(N qmax), N the elements of x that share the scale, but for `batch_axis`

    `Float` and `Levels` formats have their smallest and largest value in place of qmin and qmax.

    The hardware holds `allowed(max(|s|, 2^-126))`: a scale that training drives below 0 counts by its
    magnitude (a negative one stays where `Scale.signed` allows it), and the gradient passes straight through
    the choice of a power of two or of a stored scale.  A scale of two levels trains as one number.

    NaN in x gives NaN there and in the scale's gradient; infinities saturate.

    Args:
        gradient_scale: True for g as above, False for 1, or g itself.
        batch_axis: The axis of x that runs over examples, which N leaves out: 0 for activations, as in `recipes.lsq()`,
            so that g does not depend on how a batch is split.  None for weights; with it an activation's N has all
            elements of x, as in most implementations.
    Raises:
        SpecError: a gradient scale that is no positive number, an axis that is no number; a `Log` format, from `init`.
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
        """The estimated scale and zero point."""
        steps.refuse_unless(steps.EVERY_STEP, scheme, "Lsq")
        return Learned(steps.whole(qparams), qparams.zero_point)

    def learned(self, scheme: Scheme) -> tuple[str, ...]:
        """The scale."""
        return ("scale",)

    def scaled(self, params: Learned, factor: Tensor) -> Learned:
        """The parameters for factor * x, factor > 0 in their shape: its values are factor times those of x."""
        return params._replace(scale=params.scale * factor)

    def apply(self, params: Learned, x: Tensor, scheme: Scheme) -> Tensor:
        """x as the hardware holds it."""
        return by_rule(
            _ScaleGradient(scheme, self.gradient_scale, self.batch_axis), x, params.scale, params.zero_point.detach()
        )

    def export(self, params: Learned, x: Tensor, scheme: Scheme) -> tuple[Tensor, Affine]:
        """The codes of x and the qparams that the hardware holds."""
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
        found = steps.gradients(grad, x, qparams, scheme)
        total = found.step * factor_of(self.gradient_scale, self.batch_axis, x, scale, scheme)
        return found.x, steps.through_magnitude(total, scale, scheme), None
