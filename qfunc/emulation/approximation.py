"""Real values with a bound of their error, and what an op computes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from attrs import frozen
from torch import Tensor, fx

from qfunc.ops.node import op_of

UNIT = 2.0**-23
"""A bound of the relative error of one rounding to float32, twice over."""


@frozen(eq=False)
class Approximation:
    """Real values in float64, and a bound of the magnitude of their error, of the same shape."""

    value: Tensor
    error: Tensor

    @classmethod
    def exact(cls, value: Tensor) -> Approximation:
        """Return values without an error."""
        wide = value.detach().double()
        return cls(wide, torch.zeros_like(wide))


def approximations(arguments: Any) -> list[Approximation]:
    """Return the approximations among the arguments of an op, also those in lists."""
    found: list[Approximation] = []

    def collect(a: Any) -> None:
        if isinstance(a, Approximation):
            found.append(a)
        elif isinstance(a, tuple | list):
            for item in a:
                collect(item)

    collect(arguments)
    return found


def call(node: fx.Node, arguments: Any, of: Callable[[Approximation], Any]) -> Any:
    """Return what an op computes of tensors that stand for its approximations."""
    assert callable(node.target)
    return node.target(*_mapped(arguments, of))


def setting(node: fx.Node, arguments: Any, name: str) -> Any:
    """Return an argument of an op by its canonical name; numbers that are computed from sizes have their values."""
    op = op_of(node)
    assert op is not None
    return arguments[op.parameters.index(name)]


def _mapped(argument: Any, of: Callable[[Approximation], Any]) -> Any:
    if isinstance(argument, Approximation):
        return of(argument)
    if isinstance(argument, tuple | list):
        return type(argument)(_mapped(a, of) for a in argument)
    return argument
