"""Validators for the specs: each refuses a value with the field, the value, the rule and the cure."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

from qfunc.errors import SpecError
from qfunc.specs._values import is_public_function, mutability_error, short
from qfunc.specs.protocols import FORMER_METHODS, OF_FORMATS, OPTIONAL

Validator = Callable[[Any, Any, Any], None]

ROUNDINGS = (
    "half_even", "half_away", "half_up", "half_down", "half_to_zero", "floor", "trunc", "stochastic",
    "half_even_on_index", "half_up_on_index", "negative_ceil_else_half_even",
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


FLOAT32_LEAST, FLOAT32_MAX = 2.0**-149, 2.0**128 - 2.0**104
"""The smallest and the largest positive number of float32, in which qparams are stored."""


def scale_number(*, optional: bool = False) -> Validator:
    """The value must be a positive number within those of float32, since another one would be 0 or infinite there."""
    positive = number(positive=True, optional=optional)

    def check(instance: Any, attribute: Any, value: Any) -> None:
        positive(instance, attribute, value)
        if value is not None and not FLOAT32_LEAST <= value <= FLOAT32_MAX:
            wanted, do = "a number in [2^-149, 2^128), as float32 holds scales", "Give such a number."
            raise refuse(instance, attribute.name, value, wanted, do)

    return check


def known_rounding(instance: Any, name: str, value: str) -> None:
    """Refuse a rounding that needs noise: it belongs to a quantize function, not to hardware."""
    if value == "stochastic":
        wanted, do = "a rounding without noise", "Round weights stochastically by edit.weights(function=Stochastic())."
        raise refuse(instance, name, value, wanted, do)


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
            raise refuse(instance, attribute.name, value, wanted, cure(value, kinds))

    return check


def cure(value: Any, kinds: tuple[type, ...]) -> str:
    """Return what to do about a value of another kind than these."""
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


def implements(protocol: type, *, optional: bool = False) -> Validator:
    """The value must be frozen all the way down and have the methods of `protocol`, and optional ones as declared."""
    names = members(protocol)
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
        if bad := misfit(type(value), protocol):
            found, declared, do = bad
            where = f"{type(instance).__name__}.{attribute.name}"
            raise SpecError(where=where, found=f"{short(value)} with {found}", wanted=declared, do=do)

    return check


def as_tuple(value: Any) -> Any:
    """A list becomes a tuple, a single value a tuple of one."""
    if isinstance(value, tuple):
        return value
    return tuple(value) if isinstance(value, list) else (value,)


def members(protocol: type) -> tuple[str, ...]:
    """Return the names that a protocol declares, in order.

    >>> from qfunc.specs.protocols import Function, NoiselessFunction
    >>> members(Function), members(NoiselessFunction)
    (('init', 'apply', 'export'), ('noisy',))
    """
    names = (*vars(protocol), *protocol.__annotations__)
    return tuple(dict.fromkeys(n for n in names if not n.startswith("_")))


def misfit(kind: type, protocol: type) -> tuple[str, str, str] | None:
    """Return (found, wanted, cure) of the first member of `kind` that does not fit a protocol or its optional ones.

    A member misfits that is no method where the protocol has one, that takes other arguments, or whose name is nearly
    the name of an optional member; None if all members fit.

    >>> from qfunc.specs.protocols import Function
    >>> class Mine:
    ...     def learnt(self, scheme): ...
    >>> misfit(Mine, Function)
    ('the method learnt', 'learned, an optional method of Function, or a name unlike it', 'Rename learnt.')
    """
    key: Any = kind  # mypy holds no class to be hashable
    return _misfit(key, protocol)


@lru_cache(256)
def _misfit(kind: Any, protocol: Any) -> tuple[str, str, str] | None:
    declared = {name: p for p in (protocol, *OPTIONAL[protocol]) for name in members(p)}
    for name, owner in declared.items():
        if (own := getattr(kind, name, None)) is not None and callable(getattr(owner, name, None)):
            parameters = list(inspect.signature(getattr(owner, name)).parameters)
            wanted = f"{name}({', '.join(parameters[1:])}), as {owner.__name__} declares it"
            if not callable(own):
                return f"{name}, which is no method", wanted, f"Make {name} a method."
            if not _takes(kind, name, len(parameters) - 1):
                return f"{name}{_signature(own)}", wanted, f"Let {name} take these arguments."
    if "format" in declared:
        attributes = {} if hasattr(kind, "format") else {name: name for name in OF_FORMATS}
        for name, of in (attributes | FORMER_METHODS).items():
            if hasattr(kind, name):
                what = "method" if name in FORMER_METHODS else "attribute"
                return f"the {what} {name}", "a specs.FileFormat as format", f"Write format = FileFormat({of}=...)."
    optional = [n for p in OPTIONAL[protocol] for n in members(p)]
    for name in dir(kind):
        near = difflib.get_close_matches(name, optional, 1, 0.75)
        if near and not name.startswith("_") and name not in declared and _is_member(getattr(kind, name, None)):
            wanted = f"{near[0]}, an optional method of {protocol.__name__}, or a name unlike it"
            return f"the method {name}", wanted, f"Rename {name}."
    return None


def _is_member(value: Any) -> bool:
    return (inspect.isroutine(value) and not inspect.isdatadescriptor(value)) or isinstance(value, property)


def _takes(kind: type, name: str, count: int) -> bool:
    stored = inspect.getattr_static(kind, name)
    # A method of another value (`apply = OTHER.apply`), or a callable that is no descriptor, is stored bound.
    bound = isinstance(stored, staticmethod | classmethod) or inspect.ismethod(stored) or not hasattr(type(stored), "__get__")
    try:
        inspect.signature(getattr(kind, name)).bind(*range(count + (not bound)))
    except TypeError:
        return False
    except ValueError:  # a callable that has no signature, such as one written in C
        return True
    return True


def _signature(method: Any) -> str:
    names = [str(p).split(":")[0].split(" =")[0] for p in inspect.signature(method).parameters.values()]
    return f"({', '.join(n for n in names if n != 'self')})"
