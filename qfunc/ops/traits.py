"""The traits of ops: properties that an op has for all arguments.  This file needs no torch, so that specs can name traits."""

from __future__ import annotations

from enum import Flag, auto


class Trait(Flag):
    """Properties that an op has for all arguments.  tests/ops/test_traits.py checks the first eleven on each example.

    >>> Trait.NON_NEGATIVE in Trait.NON_NEGATIVE | Trait.KEEPS_SIGN
    True
    """

    NON_NEGATIVE = auto()
    """No value of the result is below 0."""
    KEEPS_SIGN = auto()
    """No value of the result is below 0 if none of the inputs is."""
    MOVES_VALUES = auto()
    """The result consists of values of the inputs, at places that do not depend on the values: op(f(x)) = f(op(x))."""
    ELEMENTWISE = auto()
    """Each entry of the result depends on one entry of each input, after broadcasting."""
    HOMOGENEOUS = auto()
    """op(s x) = s op(x) for s > 0, where x is all inputs that are not constants."""
    INTEGER_RESULT = auto()
    """The result is of an integer or boolean type, whatever the inputs are."""
    INTEGER_IF_INPUTS = auto()
    """The result is of an integer or boolean type if all inputs are."""
    NEVER_BOOLEAN = auto()
    """The result is not boolean: PyTorch refuses booleans, or returns numbers."""
    VIEW = auto()
    """The result may share the storage of its input."""
    COMMUTATIVE = auto()
    """op(x, y) = op(y, x), of ops with the parameters "input" and "other"."""
    SCALES_WITH_CHANNELS = auto()
    """op(s x) = s op(x) for one s > 0 per channel, as long as the op does not mix channels."""
    KEEPS_CONSTANTS = auto()
    """The result is c everywhere if the input is a number c > 0 everywhere, and padding with zeros is not read."""
    KEEPS_LOW = auto()
    """The result stays near the lowest numbers of its type where an input is near them: of ops that models apply to masks."""

    AVERAGES = auto()
    """The result is a mean of inputs."""
    WEIGHTED = auto()
    """A sum of products with the parameter "weight": convolutions and linear layers."""
    RECURRENT = auto()
    """A recurrent layer, with a state that each step updates."""
    NORM = auto()
    """A normalization by statistics, with weights of one number per channel."""
    ACTIVATION = auto()
    """A nonlinear function that may follow a layer in one unit."""
    CLAMPS = auto()
    """min(max(x, low), high) with constants, either of which may be absent."""
    ARITHMETIC = auto()
    """One of x + y, x - y, x * y and x / y."""
    FOLDABLE = auto()
    """An op of constants that is computed at capture, in float64."""
    CREATES = auto()
    """The result depends on the sizes and the device of its inputs at most, not on their values."""
    POSITION_IF_INPUTS = auto()
    """An op with which models compute positions and masks: its result is one if its inputs are."""


NONE = Trait(0)
