"""Changes of targets and schemes, as frozen functions target -> target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import evolve, field, frozen
from attrs.validators import optional

from qfunc.errors import SpecError
from qfunc.specs._check import ROUNDINGS, implements, instance_of, integer, one_of, refuse
from qfunc.specs._values import readable
from qfunc.specs.cpus import Cpu
from qfunc.specs.number_format import Float, Format, Int, Levels
from qfunc.specs.placement import Rule
from qfunc.specs.protocols import Estimator, Function, Lowering, RunTimeArithmetic
from qfunc.specs.scheme import Granularity, PerBlock, PerChannel, PerTensor, PerToken, Scale, Scheme, ZeroPoint
from qfunc.specs.selectors import Everything
from qfunc.specs.slots import Cases, FixedQParams
from qfunc.specs.target import Override, Slower, Target

Edit = Callable[[Target], Target]
"""A function that returns a new target."""

_POWERS = {"ceil": "ceil", "floor": "floor", "nearest": "half_even"}
"""The roundings of log2 of a scale; "nearest" has no ties, because log2 of a float is never half an odd number."""


def _power_of_two(instance: Any, attribute: Any, value: Any) -> None:
    if value is not None and type(value) is not bool and not (type(value) is str and value in _POWERS):
        do = "Write power_of_two='nearest'."
        raise refuse(instance, attribute.name, value, "a bool, None, 'ceil', 'floor' or 'nearest'", do)


@readable
@frozen(kw_only=True)
class SchemeChange:
    """A change of schemes; None leaves a property as it is.

    If `symmetric` is True and `signed` is not given, unsigned codes with a zero point become signed codes, because
    without a zero point unsigned codes have no negative values.  The number of codes stays.  Unsigned codes without a
    zero point do not change.

    Args:
        bits: The width of the codes.
        signed: Whether codes are signed.
        symmetric: True for no zero point, False for a zero point.
        granularity: The elements that share a scale.
        power_of_two: Whether scales are powers of two; or how log2 of the scale is rounded: "ceil", "floor", "nearest".
        rounding: A name of `specs.ROUNDINGS`.
        division: True for x / s, False for x * (1 / s).
    Raises:
        SpecError: a value that the property cannot have.

    >>> SchemeChange(bits=4)(Scheme(Int(8, low=-127))).format
    Int(4, low=-7)
    >>> SchemeChange(symmetric=True)(Scheme(Int(8, signed=False), zero_point=ZeroPoint()))
    Scheme()
    >>> SchemeChange(power_of_two="nearest")(Scheme()).scale
    Scale(power_of_two=True, rounding='half_even')
    """

    bits: int | None = field(default=None, validator=integer(2, 64, optional=True))
    signed: bool | None = field(default=None, validator=instance_of(bool, optional=True))
    symmetric: bool | None = field(default=None, validator=instance_of(bool, optional=True))
    granularity: Granularity | None = field(
        default=None, validator=instance_of(PerTensor, PerChannel, PerBlock, PerToken, optional=True)
    )
    power_of_two: bool | str | None = field(default=None, validator=_power_of_two)
    rounding: str | None = field(default=None, validator=optional(one_of(ROUNDINGS)))
    division: bool | None = field(default=None, validator=instance_of(bool, optional=True))

    def __call__(self, value: Any) -> Any:
        """Return the slot value with the changes that apply to its format; of fixed qparams only the rounding changes."""
        if isinstance(value, Cases):
            return evolve(value, cases=tuple((s, self(v)) for s, v in value.cases), default=self(value.default))
        if isinstance(value, FixedQParams):
            how = {n: self._or(n, getattr(value.scheme, n), value.scheme.format) for n in ("rounding", "division")}
            return evolve(value, scheme=evolve(value.scheme, **how))
        if not isinstance(value, Scheme):
            return value
        fmt, scale = value.format, value.scale
        scale = evolve(scale, shared=self._or("granularity", scale.shared, fmt), **self._powers(scale, fmt))
        how = {n: self._or(n, getattr(value, n), fmt) for n in ("rounding", "division")}
        if not isinstance(fmt, Int):
            return evolve(value, scale=scale, **how)
        zero_point = value.zero_point
        if self.bits is not None or self.signed is not None:
            fmt = narrowed(fmt, self._or("bits", fmt.bits, fmt), self._or("signed", fmt.signed, fmt))
        if self.symmetric and zero_point is not None:
            fmt, zero_point = fmt if self.signed is not None else around_zero(fmt), None
        elif self.symmetric is False:
            zero_point = zero_point or ZeroPoint()
            scale = evolve(scale, divisor="qmax", signed=False)  # a range with two ends is divided by all codes
        return evolve(value, format=fmt, scale=scale, zero_point=zero_point, **how)

    def _powers(self, scale: Scale, fmt: Format) -> dict[str, Any]:
        new = self._or("power_of_two", None, fmt)
        if isinstance(new, str):
            return {"power_of_two": True, "rounding": _POWERS[new]}
        return {} if new is None else {"power_of_two": new, "rounding": scale.rounding if new else "ceil"}

    def _or(self, name: str, old: Any, fmt: Format) -> Any:
        new = getattr(self, name)
        return old if new is None or type(fmt) not in HAVE[name] else new


HAVE: dict[str, tuple[type, ...]] = {
    "bits": (Int,),
    "signed": (Int,),
    "symmetric": (Int,),
    "granularity": (Int, Float, Levels),
    "power_of_two": (Int, Float, Levels),
    "rounding": (Int, Float),
    "division": (Int, Float),
}
"""The formats whose schemes have a property that edits can change; logarithms have a separate form."""


def narrowed(fmt: Int, bits: int, signed: bool) -> Int:
    """Return the format with other bits; a symmetric range such as [-127, 127] stays symmetric: [-7, 7].

    Args:
        fmt: The format.
        bits: The new width.
        signed: Whether the new codes are signed.

    >>> narrowed(Int(8, low=-127), 4, True), narrowed(Int(8), 4, False)
    (Int(4, low=-7), Int(4, signed=False))
    """
    symmetric = fmt.signed and signed and fmt.qmin == -fmt.qmax
    if (bits, signed) == (fmt.bits, fmt.signed):
        return fmt
    return Int(bits, signed, low=1 - (1 << bits - 1) if symmetric else None)


def around_zero(fmt: Int) -> Int:
    """Return a signed format with as many codes as an unsigned one.

    >>> around_zero(Int(8, signed=False)), around_zero(Int(8, signed=False, low=1)), around_zero(Int(8))
    (Int(8), Int(8, low=-127), Int(8))
    """
    if fmt.signed:
        return fmt
    high = (fmt.qmax - fmt.qmin) // 2
    return Int(fmt.bits, low=high - (fmt.qmax - fmt.qmin), high=high)


@frozen
class SetAlgorithm:
    """Replaces the estimator or function of a role, also in overrides; None keeps it."""

    role: str
    estimator: Estimator | None = field(validator=implements(Estimator, optional=True))
    function: Function | None = field(validator=implements(Function, optional=True))

    def __call__(self, target: Target) -> Target:
        old = getattr(target, self.role)
        new = {n: getattr(self, n) for n in ("estimator", "function") if getattr(self, n) is not None}
        overrides = (o if o.role != self.role else without(o, *new) for o in target.overrides)
        return evolve(target, overrides=tuple(o for o in overrides if o is not None), **{self.role: evolve(old, **new)})


def without(override: Override, *names: str) -> Override | None:
    """Return an override without some of its values; None if no value is left.

    >>> from qfunc.specs.selectors import Name
    >>> without(Override(Name("head"), "weight", bits=8), "estimator")
    Override(Name('head'), role='weight', bits=8)
    """
    left: dict[str, Any] = {n: None if n in names else getattr(override, n) for n in ("estimator", "function", "bits")}
    return evolve(override, **left) if any(v is not None for v in left.values()) else None


@frozen
class ChangeSlots:
    """Changes the schemes of these slots in every rule, but for those that a kernel computes at run time.

    Raises:
        SpecError: (on a target) a property that none of these schemes has.
    """

    slots: tuple[str, ...]
    change: SchemeChange

    def __call__(self, target: Target) -> Target:
        computed = [k.arithmetic.run_time_input for k in target.kernels if isinstance(k.arithmetic, RunTimeArithmetic)]
        schemes = [s for r in target.rules for slot in self.slots for s in _schemes(getattr(r, slot)) if s not in computed]
        for name, formats in HAVE.items():
            asked = getattr(self.change, name)
            if asked is not None and not any(_takes(asked, name, s.format) for s in schemes):
                raise self._refused(name, formats, schemes, target)

        def changed(rule: Rule) -> Rule:
            held = {slot: getattr(rule, slot) for slot in self.slots}
            return evolve(rule, **{slot: self.change(value) for slot, value in held.items() if value not in computed})

        return evolve(target, rules=tuple(map(changed, target.rules)))

    def _refused(self, name: str, formats: tuple[type, ...], schemes: list[Scheme], target: Target) -> SpecError:
        role = "weights" if self.slots == ("weight",) else "activations"
        held = dict.fromkeys(repr(s.format) for s in schemes)
        rule = " or ".join(f"edit.{s}s(selector, Scheme(...))" for s in self.slots if s != "weight")
        return SpecError(
            where=f"edit.{role}({name}={getattr(self.change, name)!r}), target {target.name!r}",
            found=f"{role} in {', '.join(held)}" if held else self._none(role, target),
            wanted=f"{' or '.join(f.__name__ for f in formats)}, whose schemes have that",
            do=f"Drop {name}, or give rules another scheme: {rule or 'edit.add(selector, weight=Scheme(...))'}.",
        )

    def _none(self, role: str, target: Target) -> str:
        computed = self.slots != ("weight",) and any(_schemes(getattr(r, s)) for r in target.rules for s in self.slots)
        return f"{role} that kernels quantize at run time" if computed else f"no scheme of {role}"


def _schemes(value: Any) -> list[Scheme]:
    if isinstance(value, Cases):
        return [s for v in (*(v for _, v in value.cases), value.default) for s in _schemes(v)]
    return [value] if isinstance(value, Scheme) else []


def _takes(asked: Any, name: str, fmt: Format) -> bool:
    # A zero point dropped where there is none holds already.
    return type(fmt) in HAVE[name] or (name == "symmetric" and asked is True)


@frozen
class PutInFront:
    """Adds values before the others of one tuple of the target, so that they apply first."""

    where: str
    values: tuple[Any, ...]

    def __call__(self, target: Target) -> Target:
        return evolve(target, **{self.where: self.values + getattr(target, self.where)})


@frozen
class AddRule:
    """Adds a rule before the others.  Earlier overrides of bits do not narrow its weights."""

    rule: Rule

    def __call__(self, target: Target) -> Target:
        weight, overrides = self.rule.weight, target.overrides
        bits = weight.format.bits if isinstance(weight, Scheme) and isinstance(weight.format, Int) else None
        if bits in range(2, 17) and any(o.bits for o in overrides):
            overrides = (*overrides, Override(Everything() & self.rule.select, "weight", bits=bits))
        return evolve(target, rules=(self.rule, *target.rules), overrides=overrides)


@frozen
class PutBehind:
    """Adds overrides after the others; the last override that matches applies."""

    overrides: tuple[Override, ...]

    def __call__(self, target: Target) -> Target:
        return evolve(target, overrides=target.overrides + self.overrides)


@frozen
class SetLowering:
    """Replaces the lowering."""

    lowering: Lowering = field(validator=implements(Lowering))

    def __call__(self, target: Target) -> Target:
        return evolve(target, lowering=self.lowering)


@frozen
class SetCpu:
    """Replaces the processor, and the arithmetic of kernels that the runtime has there.

    Raises:
        SpecError: (on a target) a runtime without a build for it.
    """

    cpu: Cpu

    def __call__(self, target: Target) -> Target:
        runtime = target.runtime
        builds = {build.cpu: build for build in runtime.builds}
        if self.cpu not in builds:
            raise SpecError(
                where=f"edit.cpu({str(self.cpu)!r}), target {target.name!r}",
                found=f"the runtime {runtime.name} with {', '.join(map(str, builds)) or 'no build but its own'}",
                wanted="a build for this processor",
                do="Choose one of these." if builds else "Describe its arithmetic: Runtime(builds=(Build(cpu, pairs), ...)).",
            )
        first = {new: old for old, new in builds[runtime.cpu].replaces} if runtime.cpu in builds else {}
        there = dict(builds[self.cpu].replaces)
        plain = (first.get(kernel, kernel) for kernel in target.kernels)
        kernels = tuple(there.get(kernel, kernel) for kernel in plain)
        return evolve(target, kernels=kernels, runtime=evolve(runtime, cpu=self.cpu))


@readable
@frozen
class SetSlower:
    """Replaces what is slower on integers on the processor of the runtime.

    Raises:
        SpecError: (on a target) a runtime without a build for its processor.
    """

    rows: tuple[Slower, ...]

    def __call__(self, target: Target) -> Target:
        runtime = target.runtime
        if not any(build.cpu == runtime.cpu for build in runtime.builds):
            found, wanted = f"the runtime {runtime.name} without builds", "a build for its processor"
            where, do = f"edit.slower, target {target.name!r}", "Describe one: Runtime(cpu=cpu, builds=(Build(cpu),))."
            raise SpecError(where=where, found=found, wanted=wanted, do=do)
        builds = tuple(evolve(b, slower=self.rows) if b.cpu == runtime.cpu else b for b in runtime.builds)
        return evolve(target, runtime=evolve(runtime, builds=builds))


def require_change(where: str, *given: Any) -> None:
    """Raise an error if an edit changes nothing.

    Raises:
        SpecError: every value is None.
    """
    if all(v is None for v in given):
        do = "Give bits, an estimator, a function, or a property of the scheme."
        raise SpecError(where=where, found="nothing to change", wanted="at least one keyword", do=do)


def known_keys(where: str, given: Mapping[str, Any], known: tuple[str, ...]) -> None:
    """Raise an error if a keyword is unknown.

    Raises:
        SpecError: a key of `given` that is not `known`.
    """
    if unknown := [k for k in given if k not in known]:
        raise SpecError(where=where, found=", ".join(map(str, unknown)), wanted=", ".join(known), do="Use those keywords.")
