"""What edits do to a target: frozen values target -> target, and how a scheme changes."""

from __future__ import annotations

from typing import Any

from attrs import evolve, field, frozen
from attrs.validators import optional

from qfunc.specs._check import ROUNDINGS, has_methods, instance_of, integer, one_of
from qfunc.specs._repr import readable
from qfunc.specs.formats import Int
from qfunc.specs.protocols import Estimator, Function, Lowering
from qfunc.specs.scheme import Granularity, PerBlock, PerChannel, PerTensor, PerToken, Scheme, ZeroPoint
from qfunc.specs.slots import Cases
from qfunc.specs.target import Override, Target


@readable
@frozen(kw_only=True)
class SchemeChange:
    """Changes of schemes; None leaves a property as it is.

    Raises:
        SpecError: a value that the property cannot have.

    >>> SchemeChange(bits=4)(Scheme(Int(8, low=-127))).format
    Int(4, low=-7)
    """

    bits: int | None = field(default=None, validator=integer(2, 64, optional=True))
    signed: bool | None = field(default=None, validator=instance_of(bool, optional=True))
    symmetric: bool | None = field(default=None, validator=instance_of(bool, optional=True))
    granularity: Granularity | None = field(
        default=None, validator=instance_of(PerTensor, PerChannel, PerBlock, PerToken, optional=True)
    )
    power_of_two: bool | None = field(default=None, validator=instance_of(bool, optional=True))
    rounding: str | None = field(default=None, validator=optional(one_of(ROUNDINGS)))

    def __call__(self, value: Any) -> Any:
        """The slot value with the changes made; only Int schemes have them."""
        if isinstance(value, Cases):
            return evolve(value, cases=tuple((s, self(v)) for s, v in value.cases), default=self(value.default))
        if not isinstance(value, Scheme) or not isinstance(value.format, Int):
            return value
        fmt, scale, zero_point = value.format, value.scale, value.zero_point
        if self.bits is not None or self.signed is not None:
            fmt = narrowed(fmt, self._or("bits", fmt.bits), self._or("signed", fmt.signed))
        if self.symmetric is not None:
            zero_point = None if self.symmetric else zero_point or ZeroPoint()
        scale = evolve(
            scale,
            shared=self._or("granularity", scale.shared),
            power_of_two=self._or("power_of_two", scale.power_of_two),
        )
        return evolve(value, format=fmt, scale=scale, zero_point=zero_point, rounding=self._or("rounding", value.rounding))

    def _or(self, name: str, old: Any) -> Any:
        new = getattr(self, name)
        return old if new is None else new


def narrowed(fmt: Int, bits: int, signed: bool) -> Int:
    """The format with other bits; a symmetric range such as [-127, 127] stays symmetric: [-7, 7].

    >>> narrowed(Int(8, low=-127), 4, True), narrowed(Int(8), 4, False)
    (Int(4, low=-7), Int(4, signed=False))
    """
    symmetric = fmt.signed and signed and fmt.qmin == -fmt.qmax
    if (bits, signed) == (fmt.bits, fmt.signed):
        return fmt
    return Int(bits, signed, low=1 - (1 << bits - 1) if symmetric else None)


@frozen
class SetAlgorithm:
    """Gives a role another estimator or function; None leaves it."""

    role: str
    estimator: Estimator | None = field(validator=has_methods("init", "update", "finalize", optional=True))
    function: Function | None = field(validator=has_methods("init", "apply", "export", optional=True))

    def __call__(self, target: Target) -> Target:
        old = getattr(target, self.role)
        new = {n: getattr(self, n) for n in ("estimator", "function") if getattr(self, n) is not None}
        return evolve(target, **{self.role: evolve(old, **new)})


@frozen
class ChangeSlots:
    """Changes the schemes of these slots in every rule."""

    slots: tuple[str, ...]
    change: SchemeChange

    def __call__(self, target: Target) -> Target:
        rules = tuple(evolve(r, **{s: self.change(getattr(r, s)) for s in self.slots}) for r in target.rules)
        return evolve(target, rules=rules)


@frozen
class PutInFront:
    """Puts values in front of one tuple of the target: there they win."""

    where: str
    values: tuple[Any, ...]

    def __call__(self, target: Target) -> Target:
        return evolve(target, **{self.where: self.values + getattr(target, self.where)})


@frozen
class PutBehind:
    """Puts overrides behind the others: of these, the last wins."""

    overrides: tuple[Override, ...]

    def __call__(self, target: Target) -> Target:
        return evolve(target, overrides=target.overrides + self.overrides)


@frozen
class SetLowering:
    """Puts another lowering in."""

    lowering: Lowering = field(validator=has_methods("lower"))

    def __call__(self, target: Target) -> Target:
        return evolve(target, lowering=self.lowering)
