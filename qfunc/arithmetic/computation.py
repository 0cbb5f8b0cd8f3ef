"""Computations: what an arithmetic returns, a pure function of codes as a tree of calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import field, frozen
from torch import Tensor

from qfunc.arithmetic.unit import Operand, OpItself, UnitSpec
from qfunc.numerics.kernels.requantize import clamp_to_bounds
from qfunc.specs._check import as_tuple


@frozen(eq=False)
class Computation:
    """A call of a function; `name` is the suffix of an inner result, such as "acc" for "conv_acc".

    An argument is an `Operand` (its codes, or its values if it is real), `Real(operand)`, `Constant(tensor, name)`, `Size`,
    another computation, a plain value, or a list, tuple or dict of arguments.  The function is defined at the top of a module,
    so that emulations pickle, compile and export.

    >>> import torch
    >>> Computation(torch.add, (1, 2)).function.__name__
    'add'
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...] = field(converter=as_tuple)
    name: str = ""
    of: Operand | None = None
    """The operand before whose name the inner result has its suffix; None: the unit."""


@frozen(eq=False)
class Real:
    """The real values of an operand in float32, or in float64 with `wide`."""

    operand: Operand
    wide: bool = False


@frozen(eq=False)
class Constant:
    """A tensor that the emulation holds as a buffer: `name` below the unit's path, or the name of the operand `of`."""

    value: Tensor
    name: str = ""
    of: Operand | None = None


@frozen
class Size:
    """A number that the model computes from sizes; `UnitSpec.arguments` contain it."""

    name: str


def substituted(value: Any, sources: Mapping[Operand, Any]) -> Any:
    """Return arguments with other values in place of operands."""
    if isinstance(value, list | tuple):
        return type(value)(substituted(v, sources) for v in value)
    if isinstance(value, dict):
        return {k: substituted(v, sources) for k, v in value.items()}
    return sources.get(value, value) if isinstance(value, Operand) else value


def per_axis(unit: UnitSpec, parameter: str) -> Any:
    """Return an argument with one number for each axis of a pool, or the computation of such numbers from a size."""
    value = unit.arguments[parameter]
    if isinstance(value, Size):
        return Computation(one_per_axis, (value, unit.spatial), parameter)
    return one_per_axis(value, unit.spatial)


def one_per_axis(value: Any, rank: int) -> list[Any]:
    """Return one number for each axis."""
    return list(value) if isinstance(value, list | tuple) else [value] * rank


def bounded(unit: UnitSpec, value: Computation | OpItself) -> Computation:
    """Return real values within the bounds of the clamps that are fused with the root."""
    return Computation(clamp_to_bounds, (value, unit.every_clamp))
