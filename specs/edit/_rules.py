"""The functions of `specs.edit` that return edits which add a rule before all others."""

from __future__ import annotations

from typing import Unpack

from qfunc.specs._check import SLOTS
from qfunc.specs.edit._keywords import Slots
from qfunc.specs.edit._rewrites import AddRule, Edit, known_keys
from qfunc.specs.placement import Rule
from qfunc.specs.selectors import Selector, require_selector
from qfunc.specs.slots import KeepFloat, SlotValue


def add(selector: Selector, **slots: Unpack[Slots]) -> Edit:
    """Return an edit that adds a rule before all others: `add(op("gelu"), input=scheme, output=scheme)`.

    Args:
        selector: The ops of the rule.
        slots: The fields of `specs.Rule`: a value for each slot, `edges`, which restricts the input edges, and
            `beside_integers`.
    Raises:
        SpecError: no selector, a slot that does not exist, or a value that no slot can have.

    >>> from qfunc import targets
    >>> from qfunc.specs import Op
    >>> add(Op("gelu"), input=KeepFloat())(targets.onnxruntime).rules[0]
    Rule(Op('gelu'), input=KeepFloat())
    """
    require_selector("edit.add", selector)
    known_keys("edit.add", slots, (*SLOTS, "edges"))
    return AddRule(Rule(selector, **slots))


def skip(selector: Selector) -> Edit:
    """Return an edit that leaves the selected ops in float.

    A fused unit is split before a selected op, if its first op is not selected, too: the ops before it stay quantized.

    Args:
        selector: The ops.
    Raises:
        SpecError: no selector.

    >>> from qfunc import targets
    >>> from qfunc.specs import Op
    >>> skip(Op("softmax"))(targets.onnxruntime).rules[0].output
    KeepFloat()
    """
    require_selector("edit.skip", selector)
    return add(selector, input=KeepFloat(), weight=KeepFloat(), bias=KeepFloat(), output=KeepFloat())


def inputs(selector: Selector, value: SlotValue) -> Edit:
    """Return an edit that quantizes the inputs of the selected ops by `value`.

    Args:
        selector: The ops.
        value: A `Scheme`, `FixedQParams`, `KeepFloat` or another value of a slot.
    Raises:
        SpecError: no selector, or a value that no slot can have.

    >>> from qfunc import targets
    >>> from qfunc.specs import Op
    >>> inputs(Op("gelu"), KeepFloat())(targets.onnxruntime).rules[0]
    Rule(Op('gelu'), input=KeepFloat())
    """
    require_selector("edit.inputs", selector)
    return add(selector, input=value)


def outputs(selector: Selector, value: SlotValue) -> Edit:
    """Return an edit that quantizes the outputs of the selected ops by `value`.

    Args:
        selector: The ops.
        value: A `Scheme`, `FixedQParams`, `KeepFloat` or another value of a slot.
    Raises:
        SpecError: no selector, or a value that no slot can have.

    >>> from qfunc import targets
    >>> from qfunc.specs import Op
    >>> outputs(Op("gelu"), KeepFloat())(targets.onnxruntime).rules[0]
    Rule(Op('gelu'), output=KeepFloat())
    """
    require_selector("edit.outputs", selector)
    return add(selector, output=value)
