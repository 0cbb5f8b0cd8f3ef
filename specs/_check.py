"""Validators for the specs: each refuses a value with the field, the value, the rule and the cure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from qfunc.errors import SpecError

Validator = Callable[[Any, Any, Any], None]

ROUNDINGS = (
    "half_even", "half_away", "half_up", "half_down", "half_to_zero", "floor", "trunc", "stochastic",
    "half_even_on_index", "negative_ceil_else_half_even",
)  # fmt: skip
"""The names of hardware's rounding modes; `qfunc.numerics.rounding` gives each its equation."""


def refuse(instance: Any, name: str, value: Any, wanted: str, do: str) -> SpecError:
    """The error for one field of a spec."""
    return SpecError(where=f"{type(instance).__name__}.{name}", found=repr(value), wanted=wanted, do=do)


def one_of(options: Iterable[Any], do: str = "Choose one of them.") -> Validator:
    """The value must be one of `options`."""
    options = tuple(options)

    def check(instance: Any, attribute: Any, value: Any) -> None:
        if not isinstance(value, type(options[0])) or value not in options:
            raise refuse(instance, attribute.name, value, "one of " + ", ".join(map(repr, options)), do)

    return check


def integer(low: int | None = None, high: int | None = None, *, optional: bool = False) -> Validator:
    """The value must be an int (no bool) in [low, high]."""
    wanted = f"an int in [{'-inf' if low is None else low}, {'inf' if high is None else high}]"

    def check(instance: Any, attribute: Any, value: Any) -> None:
        if optional and value is None:
            return
        if type(value) is not int or (low is not None and value < low) or (high is not None and value > high):
            raise refuse(instance, attribute.name, value, wanted + (" or None" if optional else ""), "Give such a number.")

    return check


def number(*, positive: bool = False, optional: bool = False) -> Validator:
    """The value must be a finite int or float."""
    wanted = f"a finite {'positive ' if positive else ''}number{' or None' if optional else ''}"

    def check(instance: Any, attribute: Any, value: Any) -> None:
        if optional and value is None:
            return
        good = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")
        if not good or (positive and value <= 0):
            raise refuse(instance, attribute.name, value, wanted, "Give such a number.")

    return check


def instance_of(*kinds: type, optional: bool = False) -> Validator:
    """The value must be an instance of one of `kinds`; bool is not an int here."""
    wanted = " or ".join(k.__name__ for k in kinds) + (" or None" if optional else "")

    def check(instance: Any, attribute: Any, value: Any) -> None:
        if optional and value is None:
            return
        if not isinstance(value, kinds):
            raise refuse(instance, attribute.name, value, wanted, "Give a value of that kind.")

    return check


def tuple_of(*kinds: type, at_least: int = 0) -> Validator:
    """The value must be a tuple of instances of `kinds`."""
    wanted = f"a tuple of {' or '.join(k.__name__ for k in kinds)}" + (f", at least {at_least}" if at_least else "")

    def check(instance: Any, attribute: Any, value: Any) -> None:
        if not isinstance(value, tuple) or len(value) < at_least or not all(isinstance(v, kinds) for v in value):
            raise refuse(instance, attribute.name, value, wanted, "Give a tuple of such values.")

    return check


def has_methods(*names: str, optional: bool = False) -> Validator:
    """The value must be hashable and have these methods (an algorithm, typed by Protocol only)."""
    wanted = "a frozen value with the methods " + ", ".join(names) + (" or None" if optional else "")

    def check(instance: Any, attribute: Any, value: Any) -> None:
        if optional and value is None:
            return
        frozen = not isinstance(value, type) and getattr(type(value), "__hash__", None) is not None
        if not frozen or not all(callable(getattr(value, n, None)) for n in names):
            raise refuse(instance, attribute.name, value, wanted, "Give an instance of such a class.")

    return check


def as_tuple(value: Any) -> Any:
    """A list becomes a tuple, a single value a tuple of one."""
    if isinstance(value, tuple):
        return value
    return tuple(value) if isinstance(value, list) else (value,)
