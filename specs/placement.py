"""Placement: which tensors carry qparams, what the runtime fuses, which tensors share qparams."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import field, frozen

from qfunc.specs._check import (
    SLOTS,
    as_tuple,
    frozen_callable,
    instance_of,
    integer,
    one_of,
    refuse,
    slots_among,
    text,
    tuple_of,
)
from qfunc.specs._values import readable
from qfunc.specs.scheme import Scheme
from qfunc.specs.selectors import Selector, selector
from qfunc.specs.slots import Cases, DerivedQParams, FixedQParams, KeepFloat, SlotValue

_slot_value = instance_of(Scheme, DerivedQParams, FixedQParams, Cases, KeepFloat, optional=True)
_names_slots = slots_among(*SLOTS)


@readable
@frozen
class Rule:
    """What the selected ops require of their slots; the first rule that speaks for a slot wins.

    `output` of an op is the output of its fused group.  An edge inside a group never carries a
    quantizer.  `edges` restricts `input` to some of the input edges.

    Raises:
        SpecError: a slot holds no slot value or is derived from itself, or the rule is silent on every slot.

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

    def __attrs_post_init__(self) -> None:
        if all(getattr(self, slot) is None for slot in SLOTS):
            raise refuse(self, "input, weight, bias, output", "None everywhere", "one slot value", "Say something.")
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

    For relu that is z == qmin: the clamp to the codes does the activation's work.

    >>> ClampImplied()
    ClampImplied()
    """


@readable
@frozen
class SameQParams:
    """Holds if the named slots carry equal scales and zero points.

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


Condition = ClampImplied | SameQParams | NoZeroPoint


@readable
@frozen
class FusionStep:
    """A link of a fusion's chain: the op that may (or must) follow.

    With `fold` the step becomes part of the root's weight and bias, before anything is quantized, and is gone:
    `fold(weight, bias, *operands) -> (weight, bias)` gets float64 copies, the weight's output channels first
    (also of a transposed conv), a bias of zeros where there is none, and what the step reads besides the
    root's output: its own module, in evaluation mode and float64, or the constants of a function.  The root
    is then a conv, a conv_transpose, or a linear, whose channels are its last axis.  `fold` may be a module-level
    function or a frozen callable value.

    Raises:
        SpecError: a `fold` that is neither, or that must follow.

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
    """`root` and the steps after it run as one unit; no quantizer on the edges inside.

    `when` (structure) decides placement before calibration; `integer_if` (conditions on qparams)
    decides afterwards whether the unit runs on integers.  A binary step joins only if its other
    input is computed before the root.

    Raises:
        SpecError: no steps.

    >>> from qfunc.specs.selectors import Op
    >>> Fusion(Op("conv"), (FusionStep(Op("relu")),), integer_if=ClampImplied()).integer_if
    (ClampImplied(),)
    """

    root: Selector = field(validator=selector())
    then: tuple[FusionStep, ...] = field(converter=as_tuple, validator=tuple_of(FusionStep, at_least=1))
    when: Selector | None = field(default=None, kw_only=True, validator=selector(optional=True))
    integer_if: tuple[Condition, ...] = field(
        default=(), converter=as_tuple, kw_only=True, validator=tuple_of(ClampImplied, SameQParams, NoZeroPoint)
    )


@readable
@frozen
class Tie:
    """The slots of the selected ops share qparams; `leader` names whose.

    "input": the output takes the input's.  "output": the inputs take the output's.  "union": one
    estimator sees all of them.  "max_scale": all take the coarsest.

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
    """low <= sum(coefficient * position(slot)) <= high, with position = -log2(scale); `adjust` gives way.

    A term's slot may be "input", "weight", "bias", "output" or "input.min", "input.max", "input.sum".

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
