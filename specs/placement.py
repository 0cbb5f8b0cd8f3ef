"""Placement: which tensors carry qparams, what the runtime fuses, which tensors share qparams."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

from attrs import field, frozen

from qfunc.specs._check import (
    SLOTS, as_tuple, frozen_callable, instance_of, integer, number, one_of, refuse, scale_number, slots_among, text, tuple_of,
)  # fmt: skip
from qfunc.specs._values import readable
from qfunc.specs.scheme import Scheme
from qfunc.specs.selectors import Selector, selector
from qfunc.specs.slots import Cases, DerivedQParams, FixedQParams, KeepFloat, SlotValue

_slot_value = instance_of(Scheme, DerivedQParams, FixedQParams, Cases, KeepFloat, optional=True)
_names_slots = slots_among(*SLOTS)


@readable
@frozen
class Rule:
    """The slot values of the selected ops; for each slot, the first rule that gives it a value applies.

    The output of an op is the output of its fused group.  An edge inside a group never has a quantizer.  A rule before
    those of the group's root that keeps the input and the output of a later op in float splits the group before that op.

    Args:
        select: The ops.
        input, weight, bias, output: The value of the slot: a `Scheme`, `DerivedQParams`, `FixedQParams`, `Cases` or
            `KeepFloat`; None leaves the slot to later rules.
        edges: Restricts `input` to the selected input edges.
        beside_integers: True if the rule selects an op only where an op that runs on integers by another rule reads it,
            directly or through ops of such rules, or where no float op is beside it and nothing is joined.  Other such ops
            stay in float, because their quantizers would cost accuracy and time.
    Raises:
        SpecError: a slot has another value or is derived from itself, or no slot has a value.

    >>> from qfunc.specs.selectors import Op
    >>> Rule(Op("conv"), input=Scheme()).weight is None
    True
    """

    select: Selector = field(validator=selector())
    input: SlotValue | None = field(default=None, kw_only=True, validator=_slot_value)
    weight: SlotValue | None = field(default=None, kw_only=True, validator=_slot_value)
    bias: SlotValue | None = field(default=None, kw_only=True, validator=_slot_value)
    output: SlotValue | None = field(default=None, kw_only=True, validator=_slot_value)
    edges: Selector | None = field(default=None, kw_only=True, validator=selector(optional=True))
    beside_integers: bool = field(default=False, kw_only=True, validator=instance_of(bool))

    def __attrs_post_init__(self) -> None:
        if all(getattr(self, slot) is None for slot in SLOTS):
            raise refuse(self, "input, weight, bias, output", "None everywhere", "one slot value", "Give a value for a slot.")
        for slot in SLOTS:
            value = getattr(self, slot)
            if isinstance(value, DerivedQParams) and slot in value.of:
                raise refuse(
                    self, slot, value, f"a product of slots other than {slot!r}", "Name the others in DerivedQParams(of=...)."
                )
        if self.edges is not None and self.input is None:
            raise refuse(self, "edges", self.edges, "None where `input` is None", "Drop it or give `input`.")


@readable
@frozen
class ClampImplied:
    """Holds if the codes cannot leave the activation's own range: s*(qmin-z) >= low and s*(qmax-z) <= high.

    For relu this means z == qmin. Then clamping to the codes computes the activation.

    >>> ClampImplied()
    ClampImplied()
    """


@readable
@frozen
class SameQParams:
    """Holds if the named slots have equal scales and zero points.

    >>> SameQParams().slots
    ('input', 'output')
    """

    slots: tuple[str, ...] = field(default=("input", "output"), converter=as_tuple, validator=_names_slots)


@readable
@frozen
class NoZeroPoint:
    """Holds if the zero point of the `operand`-th input is 0.

    >>> NoZeroPoint(1)
    NoZeroPoint(1)
    """

    operand: int = field(validator=integer(0))


@readable
@frozen
class InputRatios:
    """Holds if s_x / s_y, in float32, is at least `least` and below `below` for each input x.

    >>> InputRatios(2**-10, 2**8)
    InputRatios(0.0009765625, below=256)
    """

    least: float = field(validator=number())
    below: float = field(validator=number())


@readable
@frozen
class ProductRatio:
    """Holds if s_x * s_w / s_y, in float32 and with the largest scale of each, is at least `least` and below `below`.

    >>> ProductRatio(0, 2**8)
    ProductRatio(0, below=256)
    """

    least: float = field(validator=number())
    below: float = field(validator=number())


@readable
@frozen
class OutputQParams:
    """Holds if the output has this scale, in float32, and this zero point.

    >>> OutputQParams(1 / 256, -128)
    OutputQParams(0.00390625, zero_point=-128)
    """

    scale: float = field(validator=scale_number())
    zero_point: int = field(validator=integer(-(2**31)))


@readable
@frozen
class FusesOnly:
    """Holds if every op that is fused with the first one is of these kinds.

    >>> FusesOnly("relu")
    FusesOnly('relu')
    """

    kinds: tuple[str, ...] = field(converter=as_tuple, validator=tuple_of(str))


Condition = ClampImplied | SameQParams | NoZeroPoint | InputRatios | ProductRatio | OutputQParams | FusesOnly
CONDITIONS: tuple[type, ...] = get_args(Condition)


@readable
@frozen
class FusionStep:
    """One step of a fusion: an op that may (or must) follow.

    If a step has `fold`, it is folded into the root's weight and bias before anything is quantized, and the op is
    removed.  `fold(weight, bias, *operands) -> (weight, bias)` gets float64 copies.  The output channels of the weight
    come first (also of a transposed conv), and a missing bias is zeros.  The operands are the other values that the step
    reads: its module, in evaluation mode and float64, or the constants of a function.  The root is a conv, a
    conv_transpose, or a linear whose channels are the last axis.

    Args:
        op: The ops that match the step.
        optional: False if the step must follow.
        fold: A module-level function or a frozen callable value.
    Raises:
        SpecError: a `fold` that is neither, or a step with `fold` that is not optional.

    >>> from qfunc.specs.selectors import Op
    >>> FusionStep(Op("add")), FusionStep(Op("batch_norm"), optional=False)
    (FusionStep(Op('add')), FusionStep(Op('batch_norm'), optional=False))
    """

    op: Selector = field(validator=selector())
    optional: bool = field(default=True, validator=instance_of(bool))
    fold: Callable[..., Any] | None = field(
        default=None, kw_only=True, validator=frozen_callable("Write a function of weight, bias and operands.", optional=True)
    )

    def __attrs_post_init__(self) -> None:
        if self.fold is not None and not self.optional:
            wanted = "True where a step folds, for then nothing of it is left to follow"
            raise refuse(self, "optional", False, wanted, "Leave it out.")


@readable
@frozen
class Fusion:
    """`root` and the steps after it run as one unit, without quantizers on the edges inside.

    A step with two inputs joins only if its other input is computed before the root.

    Args:
        root: The first op.
        then: The steps after it, in order.
        when: A selector of the root that decides about the fusion before calibration.
        integer_if: Conditions on the qparams that decide after calibration whether the unit runs on integers.
    Raises:
        SpecError: no steps.

    >>> from qfunc.specs.selectors import Op
    >>> Fusion(Op("conv"), (FusionStep(Op("relu")),), integer_if=ClampImplied()).integer_if
    (ClampImplied(),)
    """

    root: Selector = field(validator=selector())
    then: tuple[FusionStep, ...] = field(converter=as_tuple, validator=tuple_of(FusionStep, at_least=1))
    when: Selector | None = field(default=None, kw_only=True, validator=selector(optional=True))
    integer_if: tuple[Condition, ...] = field(default=(), converter=as_tuple, kw_only=True, validator=tuple_of(*CONDITIONS))


@readable
@frozen
class Tie:
    """Slots of the selected ops that share qparams.

    Args:
        select: The ops.
        slots: The tied slots.
        leader: "input": the output takes the input's qparams. "output": the inputs take the output's. "union": one
            estimator reads all of the tensors. "max_scale": all take the largest scale.
    Raises:
        SpecError: a leader that is none of the slots.

    >>> from qfunc.specs.selectors import Op
    >>> Tie(Op("concat"), ("input", "output"), leader="union").slots
    ('input', 'output')
    """

    select: Selector = field(validator=selector())
    slots: tuple[str, ...] = field(converter=as_tuple, validator=_names_slots)
    leader: str = field(validator=one_of(("input", "output", "union", "max_scale")))

    def __attrs_post_init__(self) -> None:
        if self.leader in SLOTS and self.leader not in self.slots:
            raise refuse(self, "leader", self.leader, f"one of the tied slots {self.slots}", "Tie that slot too.")


_POSITIONS = (*SLOTS, "input.min", "input.max", "input.sum")


@readable
@frozen
class Limit:
    """low <= sum(coefficient * position(slot)) <= high, with position = -log2(scale).

    Args:
        select: The ops.
        terms: Pairs (slot, coefficient). The slot is "input", "weight", "bias", "output", "input.min", "input.max" or
            "input.sum".
        low, high: The bounds of the sum.
        adjust: The slot whose scale changes if the sum is outside the bounds.
    Raises:
        SpecError: low > high, no terms, a slot that does not exist, or an `adjust` that no term names.

    >>> from qfunc.specs.selectors import Op
    >>> cut = (("weight", 1), ("input", 1), ("output", -1))
    >>> Limit(Op("conv"), cut, low=0, high=16, adjust="weight").high
    16
    """

    select: Selector = field(validator=selector())
    terms: tuple[tuple[str, int], ...] = field(validator=tuple_of(tuple, at_least=1))
    low: int = field(validator=integer())
    high: int = field(validator=integer())
    adjust: str = field(validator=text())

    def __attrs_post_init__(self) -> None:
        for term in self.terms:
            if (
                len(term) != 2
                or type(term[0]) is not str
                or term[0] not in _POSITIONS
                or type(term[1]) is not int
                or not term[1]
            ):
                wanted = "(slot, coefficient other than 0) with a slot among " + ", ".join(_POSITIONS)
                raise refuse(self, "terms", term, wanted, "Pair a slot with an int.")
        if len({name for name, _ in self.terms}) < len(self.terms):
            raise refuse(self, "terms", self.terms, "each slot once", "Add the coefficients up.")
        if self.low > self.high:
            raise refuse(self, "low, high", (self.low, self.high), "low <= high", "Swap them.")
        slots = {name.split(".")[0] for name, _ in self.terms}
        if self.adjust not in slots:
            raise refuse(self, "adjust", self.adjust, f"a slot of the terms {sorted(slots)}", "Name one of them.")
