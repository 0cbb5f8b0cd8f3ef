"""Validators for the specs: each refuses a value with the field, the value, the rule and the cure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from qfunc.errors import SpecError
from qfunc.specs._frozen import is_public_function, mutability_error, short

Validator = Callable[[Any, Any, Any], None]

ROUNDINGS = (
    "half_even", "half_away", "half_up", "half_down", "half_to_zero", "floor", "trunc", "stochastic",
    "half_even_on_index", "negative_ceil_else_half_even",
)  # fmt: skip
"""The names of hardware's rounding modes; `qfunc.numerics.rounding` gives each its equation."""

SLOTS = ("input", "weight", "bias", "output")
"""The slots of an op that can carry qparams."""


def refuse(instance: Any, name: str, value: Any, wanted: str, do: str) -> SpecError:
    """The error for one field of a spec."""
    return SpecError(where=f"{type(instance).__name__}.{name}", found=short(value), wanted=wanted, do=do)


def one_of(options: Iterable[str], do: str = "Choose one of them.") -> Validator:
    """The value must be one of the words `options`."""
    options = tuple(options)

    def check(instance: Any, attribute: Any, value: Any) -> None:
        if type(value) is not str or value not in options:
            raise refuse(instance, attribute.name, value, "one of " + ", ".join(map(repr, options)), do)

    return check


def integer(low: int | None = None, high: int | None = None, *, optional: bool = False) -> Validator:
    """The value must be an int (no bool) in [low, high]."""
    span = f" in [{'-inf' if low is None else low}, {'inf' if high is None else high}]"
    wanted = f"an int{'' if low is high is None else span}{' or None' if optional else ''}"

    def check(instance: Any, attribute: Any, value: Any) -> None:
        if optional and value is None:
            return
        if type(value) is not int or (low is not None and value < low) or (high is not None and value > high):
            do = "Convert it: int(...)." if _number_like(value) else "Give such a number."
            raise refuse(instance, attribute.name, value, wanted, do)

    return check


def number(*, positive: bool = False, optional: bool = False) -> Validator:
    """The value must be a finite Python int or float, so neither a bool nor a tensor or NumPy scalar."""
    wanted = f"a finite {'positive ' if positive else ''}number{' or None' if optional else ''}"

    def check(instance: Any, attribute: Any, value: Any) -> None:
        if optional and value is None:
            return
        good = type(value) in (int, float) and abs(value) <= 1.7976931348623157e308
        if not good or (positive and value <= 0):
            do = "Convert it: float(...)." if _number_like(value) else "Give such a number."
            raise refuse(instance, attribute.name, value, wanted, do)

    return check


def _number_like(value: Any) -> bool:
    return type(value) not in (bool, int, float) and hasattr(value, "item")


def text(*, empty: bool = False, optional: bool = False) -> Validator:
    """The value must be a str, not empty unless `empty`."""
    wanted = f"{'a' if empty else 'a non-empty'} str{' or None' if optional else ''}"

    def check(instance: Any, attribute: Any, value: Any) -> None:
        if optional and value is None:
            return
        if type(value) is not str or not (value or empty):
            raise refuse(instance, attribute.name, value, wanted, "Give a text.")

    return check


def instance_of(*kinds: type, optional: bool = False) -> Validator:
    """The value must be of exactly one of `kinds`: a subclass could hold what can change."""
    wanted = " or ".join(k.__name__ for k in kinds) + (" or None" if optional else "")

    def check(instance: Any, attribute: Any, value: Any) -> None:
        if optional and value is None:
            return
        if type(value) not in kinds:
            raise refuse(instance, attribute.name, value, wanted, _cure(value, kinds))

    return check


def _cure(value: Any, kinds: tuple[type, ...]) -> str:
    if bool in kinds:
        return "Give True or False."
    called = isinstance(value, type) and value in kinds
    return f"Call it: {value.__name__}(...)." if called else f"Give a value such as {kinds[0].__name__}(...)."


def tuple_of(*kinds: type, at_least: int = 0) -> Validator:
    """The value must be a tuple of values of exactly these kinds; a str among them must not be empty."""
    names = " or ".join("non-empty str" if k is str else k.__name__ for k in kinds)
    wanted = f"a tuple of {names}" + (f", at least {at_least}" if at_least else "")

    def check(instance: Any, attribute: Any, value: Any) -> None:
        if type(value) is not tuple or len(value) < at_least:
            raise refuse(instance, attribute.name, value, wanted, "Give a tuple of such values.")
        for v in value:
            if type(v) not in kinds or v == "":
                raise refuse(instance, attribute.name, v, wanted, "Replace this one.")

    return check


def slots_among(*allowed: str) -> Validator:
    """The value must be a tuple of different slots among `allowed`, at least one."""
    wanted = "different slots among " + ", ".join(map(repr, allowed))

    def check(instance: Any, attribute: Any, value: Any) -> None:
        words = type(value) is tuple and len(value) > 0 and all(type(v) is str and v in allowed for v in value)
        if not words or len(set(value)) < len(value):
            raise refuse(instance, attribute.name, value, wanted, "Name each slot once.")

    return check


def frozen_value(instance: Any, attribute: Any, value: Any) -> None:
    """The value must be frozen all the way down."""
    if bad := mutability_error(value):
        do = "Hold numbers, texts, tuples and frozen attrs values only."
        raise refuse(instance, attribute.name, value, f"a value frozen all the way down, not {bad}", do)


def frozen_callable(do: str, *, optional: bool = False) -> Validator:
    """The value must be a module-level function or a frozen callable value, which compare and serialise."""
    wanted = "a module-level function or a frozen callable value"

    def check(instance: Any, attribute: Any, value: Any) -> None:
        if optional and value is None:
            return
        if not callable(value) or isinstance(value, type):
            cure = f"Call it: {value.__name__}()." if isinstance(value, type) else do
            raise refuse(instance, attribute.name, value, wanted, cure)
        if not is_public_function(value) and (bad := mutability_error(value)):
            cure = "Define it with def at the top of a module."
            raise refuse(instance, attribute.name, value, f"{wanted}, not {bad}", cure)

    return check


def has_methods(*names: str, optional: bool = False) -> Validator:
    """The value must have these methods and be frozen all the way down (an algorithm, typed by Protocol)."""
    wanted = "a frozen value with the methods " + ", ".join(names) + (" or None" if optional else "")

    def check(instance: Any, attribute: Any, value: Any) -> None:
        if optional and value is None:
            return
        if isinstance(value, type):
            raise refuse(instance, attribute.name, value, wanted, f"Call it: {value.__name__}().")
        missing = [n for n in names if isinstance(value, str) or not callable(getattr(value, n, None))]
        if missing:
            raise refuse(instance, attribute.name, value, wanted, f"Add {', '.join(missing)}.")
        frozen_value(instance, attribute, value)

    return check


def as_tuple(value: Any) -> Any:
    """A list becomes a tuple, a single value a tuple of one."""
    if isinstance(value, tuple):
        return value
    return tuple(value) if isinstance(value, list) else (value,)
