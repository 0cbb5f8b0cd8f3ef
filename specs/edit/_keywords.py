"""The keywords of edits, so that type checkers refuse others."""

from __future__ import annotations

from typing import TypedDict

from qfunc.specs.scheme import Granularity
from qfunc.specs.selectors import Selector
from qfunc.specs.slots import SlotValue


class WeightProperties(TypedDict, total=False):
    """The properties of the schemes of weights that `edit.weights` changes, besides `bits`."""

    signed: bool
    symmetric: bool
    granularity: Granularity
    power_of_two: bool | str
    rounding: str
    division: bool


class ActivationProperties(WeightProperties, total=False):
    """The properties of the schemes of activations that `edit.activations` changes."""

    bits: int


class Slots(TypedDict, total=False):
    """The fields of a `Rule` besides its selector."""

    input: SlotValue
    weight: SlotValue
    bias: SlotValue
    output: SlotValue
    edges: Selector
    beside_integers: bool
