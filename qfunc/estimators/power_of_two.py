"""PowerOfTwo: any estimator, with scales that are powers of two."""

from __future__ import annotations

from typing import Any

from attrs import field, frozen
from torch import Tensor

from qfunc.errors import SpecError
from qfunc.estimators.minmax import MinMax, Range
from qfunc.estimators.replace_fields import replace_fields
from qfunc.numerics.qparams import Affine
from qfunc.specs import Scheme

ROUNDINGS = ("ceil", "floor", "half_even")


def _inner(instance: object, attribute: object, value: object) -> None:
    if isinstance(value, type) or not all(callable(getattr(value, n, None)) for n in ("init", "update", "finalize")):
        raise SpecError(
            where="PowerOfTwo.inner", found=repr(value), wanted="an estimator", do="Give an estimator such as MinMax()."
        )
    part = value
    while part is not None:
        if hasattr(part, "scheme"):  # its scales already are powers of two
            wanted = "an estimator whose scales are not powers of two already"
            raise SpecError(where="PowerOfTwo.inner", found=repr(value), wanted=wanted, do="Use it without PowerOfTwo.")
        part = getattr(part, "inner", None)


def _rounding(instance: object, attribute: object, value: object) -> None:
    if value not in ROUNDINGS:
        wanted = "one of " + ", ".join(ROUNDINGS)
        do = "Give one of them; PowerOfTwo(Mse(), finest=12) searches for the power of two with the smallest error."
        raise SpecError(where="PowerOfTwo.rounding", found=repr(value), wanted=wanted, do=do)


def position(instance: Any, attribute: Any, value: Any) -> None:
    """Validate `finest`: raise SpecError unless the scale 2^-value is a normal float32."""
    absent = value is None and isinstance(instance, PowerOfTwo)
    if not absent and (type(value) is not int or not -127 <= value <= 126):
        where, wanted = f"{type(instance).__name__}.finest", "an int in [-127, 126]"
        raise SpecError(where=where, found=repr(value), wanted=wanted, do="Give the largest e of a scale 2^-e.")


@frozen
class PowerOfTwo:
    """The inner estimator's result with power-of-two scales: s = 2^k, k = R(log2 s0), k >= -finest, s0 its own scale.

    R rounds up ("ceil": never clips), down ("floor": halves the range at most) or to nearest ("half_even":
    MQBench's `pot_scale`).  `PowerOfTwo(Mse(), finest=12)` chooses the power of two with the smallest error; it is
    MQBench's MinMaxFloorObserver over all batches.  `PowerOfTwo(Ema(MinMax()), finest=12)` does not search.

    Args:
        inner: The estimator.
        rounding: R of log2 s0.
        finest: The largest -k; None for the scheme's own bound.
    Raises:
        SpecError: an inner that is not an estimator, or that chooses powers of two itself as `PotMode` does; an
            unknown rounding; 2^-finest is not a normal float32.
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
        """Return the inner estimator's empty state."""
        return self.inner.init(self.scheme(scheme), like)

    def update(self, state: Any, x: Tensor, scheme: Scheme) -> Any:
        """Return the inner estimator's state after x."""
        return self.inner.update(state, x, self.scheme(scheme))

    def merge(self, a: Any, b: Any) -> Any:
        """Return the merge of two states of the inner estimator."""
        return self.inner.merge(a, b)

    def range(self, state: Any, scheme: Scheme) -> Range:
        """Return the inner estimator's range for power-of-two scales."""
        result: Range = self.inner.range(state, self.scheme(scheme))
        return result

    def finalize(self, state: Any, scheme: Scheme) -> Affine:
        """Return the inner estimator's qparams for power-of-two scales."""
        qparams: Affine = self.inner.finalize(state, self.scheme(scheme))
        return qparams

    def scheme(self, scheme: Scheme) -> Scheme:
        """Return the scheme with power-of-two scales."""
        return with_powers_of_two(scheme, self.rounding, self.finest)


def with_powers_of_two(scheme: Scheme, rounding: str, finest: int | None) -> Scheme:
    """Return the scheme with the additional rule that scales are powers of two, at least 2^-finest.

    >>> with_powers_of_two(Scheme(), "ceil", 12).scale
    Scale(power_of_two=True, low=0.000244140625)
    """
    rule = scheme.scale
    low = rule.low if finest is None else max(rule.low or 0.0, 2.0**-finest)
    return replace_fields(scheme, scale=replace_fields(rule, power_of_two=True, rounding=rounding, low=low))
