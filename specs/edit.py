"""Edits: functions target -> target, which compose; later edits win."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import evolve, field, frozen

from qfunc.errors import SpecError
from qfunc.specs.formats import Int
from qfunc.specs.placement import Fusion, Rule
from qfunc.specs.protocols import Estimator, Function, Lowering
from qfunc.specs.scheme import Granularity, Scheme, ZeroPoint
from qfunc.specs.selectors import Everything, ModuleType, Name, Op, Selector, Where
from qfunc.specs.slots import Cases, Fixed, Keep, SlotValue
from qfunc.specs.target import Algorithm, OpKind, Override, Target

Edit = Callable[[Target], Target]


def pipe(target: Target, *edits: Edit) -> Target:
    """The target after every edit, in order.

    >>> from qfunc import targets
    >>> pipe(targets.tensorrt, weights(bits=4), name("layer4.*") and skip(name("head.*"))).rules[0]
    Rule(select=Name(glob='head.*'), input=Keep(), weight=Keep(), bias=Keep(), output=Keep(), edges=None)
    """
    for edit in edits:
        target = edit(target)
    return target


def name(glob: str) -> Selector:
    """Ops and tensors whose path matches: `name("layer4.*")`."""
    return Name(glob)


def op(*kinds: str) -> Selector:
    """Ops of these kinds: `op("conv", "linear")`."""
    return Op(kinds)


def module(class_name: str) -> Selector:
    """Ops inside modules of this class: `module("Bottleneck")`."""
    return ModuleType(class_name)


def where(predicate: Callable[..., bool]) -> Selector:
    """Ops that a module-level function or frozen value accepts; lambdas are refused."""
    return Where(predicate)


@frozen
class SchemeChange:
    """Changes of schemes; None leaves a property as it is."""

    bits: int | None = None
    signed: bool | None = None
    symmetric: bool | None = None
    granularity: Granularity | None = None
    power_of_two: bool | None = None
    rounding: str | None = None

    def __call__(self, value: Any) -> Any:
        """The slot value with the changes made; only Int schemes have them."""
        if isinstance(value, Cases):
            return evolve(value, cases=tuple((s, self(v)) for s, v in value.cases), default=self(value.default))
        if not isinstance(value, Scheme) or not isinstance(value.format, Int):
            return value
        fmt, scale = value.format, value.scale
        if self.bits is not None or self.signed is not None:
            fmt = narrowed(fmt, self.bits or fmt.bits, fmt.signed if self.signed is None else self.signed)
        if self.granularity is not None:
            scale = evolve(scale, shared=self.granularity)
        if self.power_of_two is not None:
            scale = evolve(scale, power_of_two=self.power_of_two)
        zero_point = value.zero_point
        if self.symmetric is not None:
            zero_point = None if self.symmetric else zero_point or ZeroPoint()
        return evolve(value, format=fmt, scale=scale, zero_point=zero_point, rounding=self.rounding or value.rounding)


def narrowed(fmt: Int, bits: int, signed: bool) -> Int:
    """The format with other bits; a symmetric range such as [-127, 127] stays symmetric: [-7, 7]."""
    symmetric = fmt.signed and signed and fmt.qmin == -fmt.qmax
    return Int(bits, signed, low=1 - (1 << bits - 1) if symmetric else None)


@frozen
class _Algorithm:
    role: str
    estimator: Estimator | None = None
    function: Function | None = None

    def __call__(self, target: Target) -> Target:
        old = getattr(target, self.role) or target.weight
        new = Algorithm(self.estimator or old.estimator, self.function or old.function)
        return evolve(target, **{self.role: new})


@frozen
class _Slots:
    slots: tuple[str, ...]
    change: SchemeChange

    def __call__(self, target: Target) -> Target:
        rules = tuple(evolve(r, **{s: self.change(getattr(r, s)) for s in self.slots}) for r in target.rules)
        return evolve(target, rules=rules)


@frozen
class _Then:
    edits: tuple[Any, ...] = field(converter=tuple)

    def __call__(self, target: Target) -> Target:
        return pipe(target, *self.edits)


@frozen
class _Add:
    """Puts values in front of one tuple of the target."""

    where: str
    values: tuple[Any, ...]
    behind: bool = False

    def __call__(self, target: Target) -> Target:
        old = getattr(target, self.where)
        return evolve(target, **{self.where: old + self.values if self.behind else self.values + old})


@frozen
class _Lower:
    lowering: Lowering

    def __call__(self, target: Target) -> Target:
        return evolve(target, lowering=self.lowering)


def weights(
    *, bits: int | None = None, estimator: Estimator | None = None, function: Function | None = None, **scheme: Any
) -> Edit:
    """Edits every weight: narrower codes, another estimator or function; or another scheme.

    `bits` narrows the codes inside what the hardware stores (weights are written offline); `signed`,
    `symmetric`, `granularity`, `power_of_two` and `rounding` describe other hardware.

    Raises:
        SpecError: bits outside [2, 16]; an unknown keyword is a TypeError.

    >>> from qfunc import targets
    >>> weights(bits=4)(targets.tensorrt).overrides
    (Override(select=Everything(), role='weight', estimator=None, function=None, bits=4),)
    """
    edits: list[Any] = [_Algorithm("weight", estimator, function)] if estimator or function else []
    if scheme:
        edits.append(_Slots(("weight",), SchemeChange(**scheme)))
    if bits is not None:
        edits.append(_Add("overrides", (Override(Everything(), "weight", bits=bits),), behind=True))
    return _Then(edits)


def activations(*, estimator: Estimator | None = None, function: Function | None = None, **scheme: Any) -> Edit:
    """Edits every activation: another estimator or function; or another scheme, which is other hardware.

    `scheme` takes `bits`, `signed`, `symmetric`, `granularity`, `power_of_two`, `rounding`.

    >>> from qfunc import targets
    >>> activations(bits=4)(targets.onnxruntime).rules[0].input.format
    Int(bits=4, signed=False)
    """
    edits: list[Any] = [_Algorithm("activation", estimator, function)] if estimator or function else []
    if scheme:
        edits.append(_Slots(("input", "output"), SchemeChange(**scheme)))
    return _Then(edits)


def override(selector: Selector, *, weights: dict[str, Any] | None = None, activations: dict[str, Any] | None = None) -> Edit:
    """For the selected ops only: `weights=dict(bits=8, estimator=...)`, `activations=dict(estimator=...)`.

    Raises:
        SpecError: a key that is no field of `specs.Override`, or nothing to change.
    """
    made = [(role, keys) for role, keys in (("weight", weights), ("activation", activations)) if keys]
    if not made:
        raise SpecError(where="edit.override", found="nothing to change", wanted="weights or activations", do="Give one.")
    for _, keys in made:
        if unknown := keys.keys() - {"bits", "estimator", "function"}:
            wanted = "bits, estimator, function"
            raise SpecError(where="edit.override", found=", ".join(sorted(unknown)), wanted=wanted, do="Use those keys.")
    return _Add("overrides", tuple(Override(selector, role, **keys) for role, keys in made), behind=True)


def skip(selector: Selector) -> Edit:
    """Leaves the selected ops in float."""
    return add(selector, input=Keep(), weight=Keep(), bias=Keep(), output=Keep())


def add(selector: Selector, **slots: Any) -> Edit:
    """Puts a rule in front: `add(op("gelu"), input=scheme, output=scheme)`."""
    return _Add("rules", (Rule(selector, **slots),))


def inputs(selector: Selector, value: SlotValue) -> Edit:
    """Quantizes the inputs of the selected ops by `value`."""
    return add(selector, input=value)


def outputs(selector: Selector, value: SlotValue) -> Edit:
    """Quantizes the outputs of the selected ops by `value`."""
    return add(selector, output=value)


def fuse(fusion: Fusion, *ops: OpKind) -> Edit:
    """Puts a fusion in front of the others, with the definitions of the user's own ops that it names."""
    return _Then((_Add("fusions", (fusion,)), _Add("ops", ops)))


def deploy(lowering: Lowering) -> Edit:
    """Lowers to another artifact."""
    return _Lower(lowering)


__all__ = [
    "Edit", "Fixed", "SchemeChange", "activations", "add", "deploy", "fuse", "inputs", "module", "name", "narrowed", "op",
    "outputs", "override", "pipe", "skip", "weights", "where",
]  # fmt: skip
