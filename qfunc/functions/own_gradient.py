"""User-defined quantize functions, from a value and its gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, NamedTuple

from attrs import field, frozen
from torch import Tensor

from qfunc.errors import SpecError, a_or_an
from qfunc.functions import _steps as steps
from qfunc.numerics._learned_grads import by_rule, summed
from qfunc.numerics.affine import codes_of, quantize, widened
from qfunc.numerics.qparams import Affine, spread
from qfunc.numerics.rounding import round_by
from qfunc.specs import Int, Scheme
from qfunc.specs._check import as_tuple, refuse
from qfunc.specs._values import mutability_error

PARAMETERS = ("scale", "zero_point", "low", "high")


class Bounded(NamedTuple):
    """Scale and bounds in real units, the zero point in codes: float32, in the shape of the qparams."""

    scale: Tensor
    zero_point: Tensor
    low: Tensor
    high: Tensor


def _pure(instance: Any, attribute: Any, value: Any) -> None:
    wanted = "a module-level function or a frozen callable value"
    if not callable(value) or isinstance(value, type):
        do = f"Call it: {value.__name__}()." if isinstance(value, type) else "Write a function of x and the parameters."
        raise refuse(instance, attribute.name, value, wanted, do)
    if reason := mutability_error(value):
        raise refuse(instance, attribute.name, value, f"{wanted}, not {reason}", "Define it with def at the top of a module.")


def _trainable(instance: Any, attribute: Any, value: Any) -> None:
    if type(value) is not tuple or len(set(value)) < len(value) or not set(value) <= set(PARAMETERS):
        wanted = "different names among " + ", ".join(map(repr, PARAMETERS))
        raise refuse(instance, attribute.name, value, wanted, "Name the parameters to train.")


def _qualified_name(function: Any) -> str:
    return f"{function.__module__}.{function.__qualname__}" if isinstance(function, FunctionType) else repr(function)


@frozen
class WithGradient:
    """The result of `with_gradient`: a quantize function with the user's value and gradient.

    >>> from qfunc.numerics.affine import quantize
    >>> WithGradient(quantize, quantize).trains  # any function at the top of its module
    ('scale', 'zero_point', 'low', 'high')
    """

    forward: Callable[..., Tensor] = field(validator=_pure, repr=_qualified_name)
    backward: Callable[..., Sequence[Tensor | None]] = field(validator=_pure, repr=_qualified_name)
    trains: tuple[str, ...] = field(default=PARAMETERS, converter=as_tuple, validator=_trainable)

    def init(self, qparams: Affine, x: Tensor, scheme: Scheme) -> Bounded:
        """Return the estimated scale and zero point, and the real values of the smallest and largest code."""
        steps.refuse_unless(steps.FORMATS_WITH_STEP, scheme, "with_gradient")
        scale = steps.total_scale(qparams)
        low, high = ((end - qparams.zero_point) * scale for end in steps.ends(scheme))
        return Bounded(scale, qparams.zero_point, low, high)

    def learned(self, scheme: Scheme) -> tuple[str, ...]:
        """Return the names of the trained parameters; the zero point only if the scheme leaves it free."""
        return tuple(name for name in self.trains if name != "zero_point" or steps.is_free(scheme))

    def apply(self, params: Bounded, x: Tensor, scheme: Scheme) -> Tensor:
        """Return the value of the code nearest to forward(...), as the hardware represents it."""
        names = self.learned(scheme)
        tensors = (p if name in names else p.detach() for name, p in zip(PARAMETERS, params, strict=True))
        return by_rule(_UserGradient(self, scheme), x, *tensors)

    def export(self, params: Bounded, x: Tensor, scheme: Scheme) -> tuple[Tensor, Affine]:
        """Return the codes of forward(...), and the qparams that the hardware uses."""
        rule, detached = _UserGradient(self, scheme), [p.detach() for p in params]
        qparams = rule.hardware_qparams(*detached[:2])
        return quantize(self.forward(*rule.arguments(x.detach(), *detached)), qparams, scheme), qparams


def with_gradient(
    forward: Callable[..., Tensor],
    backward: Callable[..., Sequence[Tensor | None]],
    trains: tuple[str, ...] = PARAMETERS,
) -> WithGradient:
    """Return a quantize function from a value and its gradient in training.

    forward(x, scale, zero_point, low, high) -> x_hat, and backward(grad, x, scale, zero_point, low, high) ->
    (dx, dscale, dzero_point, dlow, dhigh), each a Tensor or None for no gradient.  Both are pure functions
    of tensors.  x is float32 or float64; the others broadcast against it.  Scale and zero point are those that the
    hardware uses: |scale| rounded to one that the scheme allows, an integer zero point in the code range.  low and
    high are the real bounds, initially the values of the smallest and largest code.  A gradient of a parameter may
    have the shape of the parameter, or that of x; then it is summed over the elements that share the parameter.

    The library uses the code nearest to x_hat and its value, so that codes and value always agree.  A weight is
    deployed as these codes.  The hardware quantizes an activation from x itself, so for activations forward(x)
    must equal the result of the scheme's rounding.

    Args:
        forward, backward: Functions at the top level of a module, or frozen callable values.
        trains: The parameters to train among "scale", "zero_point", "low", "high"; the zero point trains only if
            the scheme leaves it free.
    Raises:
        SpecError: a lambda or a local function, which can neither be compared nor serialised; an unknown name
            in `trains`; from `init`, a `Log` format; in training, a backward that does not return five values.
    Source: the straight-through estimator with a user-defined gradient, Bengio et al., arXiv:1308.3432.

    >>> from qfunc.numerics.affine import quantize
    >>> with_gradient(quantize, quantize) == with_gradient(quantize, quantize)
    True
    >>> with_gradient(lambda x, *_: x, quantize)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    qfunc.errors.SpecError: WithGradient.forward: ...
    """
    return WithGradient(forward, backward, trains)


class _UserGradient(NamedTuple):  # not attrs', whose __init__ Dynamo cannot trace
    function: WithGradient
    scheme: Scheme

    def hardware_qparams(self, scale: Tensor, zero_point: Tensor) -> Affine:
        scheme = self.scheme
        if steps.is_free(scheme) and isinstance(scheme.format, Int):
            zero_point = round_by(zero_point, scheme.zero_point.rounding).clamp(*codes_of(scheme))  # type: ignore[union-attr]
        return steps.quantized_step(scale, zero_point, scheme)

    def arguments(self, x: Tensor, scale: Tensor, zero_point: Tensor, low: Tensor, high: Tensor) -> list[Tensor]:
        wide, qparams = widened(x, self.scheme), self.hardware_qparams(scale, zero_point)
        params = (steps.total_scale(qparams), qparams.zero_point, low, high)
        return [wide, *(spread(p, wide, self.scheme) for p in params)]

    def forward(self, x: Tensor, scale: Tensor, zero_point: Tensor, low: Tensor, high: Tensor) -> Tensor:
        value = self.function.forward(*self.arguments(x, scale, zero_point, low, high))
        return steps.value_of(value, self.hardware_qparams(scale, zero_point), self.scheme).to(x.dtype)

    def backward(self, grad: Tensor, x: Tensor, *tensors: Tensor) -> list[Tensor | None]:
        arguments = self.arguments(x, *tensors)
        result = self.function.backward(grad.to(arguments[0].dtype), *arguments)
        if not isinstance(result, (tuple, list)) or len(result) != 5:
            wanted, do = "(dx, dscale, dzero_point, dlow, dhigh)", "Return None for each tensor without a gradient."
            count = f"{len(result)} values" if isinstance(result, (tuple, list)) else a_or_an(type(result))
            raise SpecError(where="with_gradient, backward", found=count, wanted=wanted, do=do)
        dx, *rest = result
        shared = [None if g is None else self._shared(g, x, p) for g, p in zip(rest, tensors, strict=True)]
        if shared[0] is not None:
            shared[0] = steps.through_magnitude(shared[0], tensors[0], self.scheme)
        return [None if dx is None else dx.expand(x.shape).to(x.dtype), *shared]

    def _shared(self, gradient: Tensor, x: Tensor, parameter: Tensor) -> Tensor:
        if gradient.shape == parameter.shape:
            return gradient.to(parameter.dtype)
        return summed(gradient.expand(x.shape), parameter, self.scheme)
