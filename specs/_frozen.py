"""Deep immutability: whether a value, all the way down, can be compared, hashed, pickled and printed."""

from __future__ import annotations

import dataclasses
import sys
from types import FunctionType
from typing import Any

import attrs

from qfunc.errors import a_or_an


def is_public_function(value: Any) -> bool:
    """Whether `value` is a function that its module knows by its qualified name: no lambda, no closure.

    >>> is_public_function(is_public_function), is_public_function(lambda op: True), is_public_function(len)
    (True, False, False)
    """
    if not isinstance(value, FunctionType) or "<" in value.__qualname__:
        return False
    found: Any = sys.modules.get(value.__module__)
    for name in value.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is value


def constructor_arguments(value: Any) -> dict[str, Any] | None:
    """The constructor's arguments of an attrs or dataclass value by name, or None for any other value.

    >>> constructor_arguments(attrs.make_class("Point", ["x"])(1)), constructor_arguments([1])
    ({'x': 1}, None)
    """
    kind = type(value)
    if attrs.has(kind):
        return {f.alias: getattr(value, f.name) for f in attrs.fields(kind) if f.init}
    if dataclasses.is_dataclass(kind):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(kind) if f.init}
    return None


def mutability_error(value: Any) -> str | None:
    """What in `value` is not frozen, in words; None if all of it is.

    Frozen are None, bool, int, float, str, tuples, module-level functions, and frozen attrs or dataclass
    values that compare by their fields, if everything they hold is frozen too.

    >>> mutability_error((1, ("a", None))), mutability_error((1, [2]))
    (None, 'the list [2]')
    """
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return None
    if kind is float:
        return None if value == value else "NaN, which does not even equal itself"
    if kind is tuple:
        return next((bad for bad in map(mutability_error, value) if bad), None)
    if isinstance(value, FunctionType):
        return None if is_public_function(value) else f"{value.__qualname__}, a function without a module-level name"
    fields = constructor_arguments(value)
    if fields is None:
        return f"the {kind.__name__} {short(value)}"
    if getattr(kind, "__hash__", None) in (None, object.__hash__):
        return f"{a_or_an(kind)}, which does not compare and hash by its fields"
    if not _is_frozen(value, fields):
        return f"{a_or_an(kind)}, whose fields can be assigned"
    return next((f"{kind.__name__}.{n}: {bad}" for n, v in fields.items() if (bad := mutability_error(v))), None)


def _is_frozen(value: Any, fields: dict[str, Any]) -> bool:
    if getattr(type(value), "__setattr__", None) is object.__setattr__:
        return False
    name = next((n for n in fields if hasattr(value, n)), None)
    if name is None:
        return True
    try:
        setattr(value, name, fields[name])  # the same value: nothing changes even where it is allowed
    except AttributeError:
        return True
    return False


def short(value: Any) -> str:
    """The repr on one line of at most 120 characters, for messages."""
    line = f"the function {value.__qualname__}" if isinstance(value, FunctionType) else " ".join(repr(value).split())
    return line if len(line) <= 120 else line[:117] + "..."
