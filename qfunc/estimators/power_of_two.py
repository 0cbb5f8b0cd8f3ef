"""Any estimator, with scales that are powers of two."""

from __future__ import annotations

from typing import Any

from attrs import field, frozen
from torch import Tensor

from qfunc.errors import SpecError
from qfunc.estimators.altered import altered
from qfunc.estimators.minmax import MinMax, Range
from qfunc.numerics.qparams import Affine
from qfunc.specs import Scheme

ROUNDINGS = ("ceil", "floor", "half_even")


def _inner(instance: object, attribute: object, value: object) -> None:
    if isinstance(value, type) or not all(callable(getattr(value, n, None)) for n in ("init", "update", "finalize")):
        raise SpecError(where="PowerOfTwo.inner", found=repr(value), wanted="an estimator", do="Give one, such as MinMax().")
    part = value
    while part is not None:
        if hasattr(part, "scheme"):  # its own powers of two would leave nothing to round
            wanted = "an estimator without powers of two of its own"
            raise SpecError(where="PowerOfTwo.inner", found=repr(value), wanted=wanted, do="Use it as it is.")
        part = getattr(part, "inner", None)


def _rounding(instance: object, attribute: object, value: object) -> None:
    if value not in ROUNDINGS:
        wanted = "one of " + ", ".join(ROUNDINGS)
        do = "Give one of them; PowerOfTwo(Mse(), finest=12) takes the power of two of the smallest error."
        raise SpecError(where="PowerOfTwo.rounding", found=repr(value), wanted=wanted, do=do)


def position(instance: Any, attribute: Any, value: Any) -> None:
    """A validator: the scale 2^-value is a normal float32."""
    absent = value is None and isinstance(instance, PowerOfTwo)
    if not absent and (type(value) is not int or not -127 <= value <= 126):
        where, wanted = f"{type(instance).__name__}.finest", "an int in [-127, 126]"
        raise SpecError(where=where, found=repr(value), wanted=wanted, do="Give the largest e of a scale 2^-e.")


@frozen
class PowerOfTwo:
    """The inner estimator's result for a scheme whose scales are powers of two: s = 2^k, k = R(log2 s0), k >= -finest.

    R rounds up ("ceil": never clips), down ("floor": halves the range at most) or to nearest ("half_even":
    MQBench's `pot_scale`).  `PowerOfTwo(Mse(), finest=12)` chooses the power of two of the smallest error:
    MQBench's MinMaxFloorObserver, over all batches.  `PowerOfTwo(Ema(MinMax()), finest=12)` has no search.

    Args:
        inner: The estimator.
        rounding: R of log2 s0.
        finest: The largest -k, or None: as the scheme says.
    Raises:
        SpecError: an inner that is no estimator, or makes powers of two itself as `PotMode` does; an unknown
            rounding; a finest outside float32.
    Source: NVIDIA/AMD practice as listed in MQBench (MinMaxFloorObserver, `pot_scale`); Jain et al.,
        arXiv:1903.08066, equation 3 ("ceil").

    >>> import torch
    >>> x = torch.tensor([-1.0, 2.0])
    >>> estimator, scheme = PowerOfTwo(rounding="half_even"), Scheme()
    >>> estimator.finalize(estimator.update(estimator.init(scheme, x), x, scheme), scheme).scale.item()
    0.015625
    """

    inner: Any = field(default=MinMax(), validator=_inner)
    rounding: str = field(default="ceil", validator=_rounding)
    finest: int | None = field(default=None, validator=position)

    def init(self, scheme: Scheme, like: Tensor) -> Any:
        """The inner estimator's empty state."""
        return self.inner.init(self.scheme(scheme), like)

    def update(self, state: Any, x: Tensor, scheme: Scheme) -> Any:
        """The inner estimator's state after x."""
        return self.inner.update(state, x, self.scheme(scheme))

    def merge(self, a: Any, b: Any) -> Any:
        """The inner estimator's."""
        return self.inner.merge(a, b)

    def range(self, state: Any, scheme: Scheme) -> Range:
        """The inner estimator's range for scales that are powers of two."""
        found: Range = self.inner.range(state, self.scheme(scheme))
        return found

    def finalize(self, state: Any, scheme: Scheme) -> Affine:
        """The inner estimator's qparams for scales that are powers of two."""
        found: Affine = self.inner.finalize(state, self.scheme(scheme))
        return found

    def scheme(self, scheme: Scheme) -> Scheme:
        """The scheme with powers of two as scales."""
        return with_powers_of_two(scheme, self.rounding, self.finest)


def with_powers_of_two(scheme: Scheme, rounding: str, finest: int | None) -> Scheme:
    """The scheme whose scales are powers of two besides what they were, and at least 2^-finest.

    >>> with_powers_of_two(Scheme(), "ceil", 12).scale
    Scale(power_of_two=True, low=0.000244140625)
    """
    rule = scheme.scale
    low = rule.low if finest is None else max(rule.low or 0.0, 2.0**-finest)
    return altered(scheme, scale=altered(rule, power_of_two=True, rounding=rounding, low=low))
