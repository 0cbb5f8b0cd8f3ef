"""Placement: which tensors carry qparams, what the runtime fuses, which tensors share qparams."""

from __future__ import annotations

from attrs import field, frozen

from qfunc.specs._check import as_tuple, instance_of, integer, one_of, refuse, tuple_of
from qfunc.specs.selectors import Selector
from qfunc.specs.slots import SLOTS, Cases, Derived, Fixed, Keep, SlotValue
from qfunc.specs.scheme import Scheme

_slot_value = instance_of(Scheme, Derived, Fixed, Cases, Keep, optional=True)
_names_slots = tuple_of(str, at_least=1)


@frozen
class Rule:
    """What the selected ops require of their slots; the first rule that speaks for a slot wins.

    `output` of an op is the output of its fused group.  An edge inside a group never carries a
    quantizer.  `edges` restricts `input` to some of the input edges.

    Raises:
        SpecError: a slot holds no slot value, or the rule is silent on every slot.

    >>> from qfunc.specs.selectors import Op
    >>> Rule(Op("conv"), input=Scheme()).weight is None
    True
    """

    select: Selector = field(validator=instance_of(Selector))
    input: SlotValue | None = field(default=None, kw_only=True, validator=_slot_value)
    weight: SlotValue | None = field(default=None, kw_only=True, validator=_slot_value)
    bias: SlotValue | None = field(default=None, kw_only=True, validator=_slot_value)
    output: SlotValue | None = field(default=None, kw_only=True, validator=_slot_value)
    edges: Selector | None = field(default=None, kw_only=True, validator=instance_of(Selector, optional=True))

    def __attrs_post_init__(self) -> None:
        if all(getattr(self, slot) is None for slot in SLOTS):
            raise refuse(self, "input, weight, bias, output", "None everywhere", "one slot value", "Say something.")
        if self.edges is not None and self.input is None:
            raise refuse(self, "edges", self.edges, "None where `input` is None", "Drop it or give `input`.")


@frozen
class InsideActivation:
    """Holds if the codes cannot leave the activation's own range: s*(qmin-z) >= low and s*(qmax-z) <= high.

    For relu that is z == qmin: the clamp to the codes does the activation's work.
    """


@frozen
class SameQParams:
    """Holds if the named slots carry equal scales and zero points."""

    slots: tuple[str, ...] = field(default=("input", "output"), validator=_names_slots)


Condition = InsideActivation | SameQParams


@frozen
class Step:
    """A link of a fusion's chain: the op that may (or must) follow."""

    op: Selector = field(validator=instance_of(Selector))
    optional: bool = field(default=True, validator=instance_of(bool))


@frozen
class Fusion:
    """`root` and the steps after it run as one unit; no quantizer on the edges inside.

    `when` (structure) decides placement before calibration; `integer_if` (conditions on qparams)
    decides afterwards whether the unit runs on integers.  A binary step joins only if its other
    input is computed before the root.

    Raises:
        SpecError: no steps.
    """

    root: Selector = field(validator=instance_of(Selector))
    then: tuple[Step, ...] = field(converter=as_tuple, validator=tuple_of(Step, at_least=1))
    when: Selector | None = field(default=None, kw_only=True, validator=instance_of(Selector, optional=True))
    integer_if: tuple[Condition, ...] = field(
        default=(), converter=as_tuple, kw_only=True, validator=tuple_of(InsideActivation, SameQParams)
    )


@frozen
class Tie:
    """The slots of the selected ops share qparams; `leader` names whose.

    "input": the output takes the input's.  "output": the inputs take the output's.  "union": one
    estimator sees all of them.  "max_scale": all take the coarsest.
    """

    select: Selector = field(validator=instance_of(Selector))
    slots: tuple[str, ...] = field(converter=as_tuple, validator=_names_slots)
    leader: str = field(validator=one_of(("input", "output", "union", "max_scale")))


@frozen
class Limit:
    """low <= sum(coefficient * position(slot)) <= high, with position = -log2(scale); `adjust` gives way.

    A term's slot may be "input", "weight", "bias", "output" or "input.min", "input.max", "input.sum".

    Raises:
        SpecError: low > high, no terms, or an `adjust` that no term names.
    """

    select: Selector = field(validator=instance_of(Selector))
    terms: tuple[tuple[str, int], ...] = field(validator=tuple_of(tuple, at_least=1))
    low: int = field(validator=integer())
    high: int = field(validator=integer())
    adjust: str = field(validator=instance_of(str))

    def __attrs_post_init__(self) -> None:
        if self.low > self.high:
            raise refuse(self, "low, high", (self.low, self.high), "low <= high", "Swap them.")
        slots = {name.split(".")[0] for name, _ in self.terms}
        if not slots <= set(SLOTS) or self.adjust not in slots:
            raise refuse(self, "adjust", self.adjust, f"a slot of the terms {sorted(slots)}", "Name one of them.")
