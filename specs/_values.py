"""Values of specs: whether they are frozen all the way down, and their repr as code."""

from __future__ import annotations

import dataclasses
import sys
from enum import Flag
from functools import cache
from types import FunctionType
from typing import Any, TypeVar

import attrs

from qfunc.errors import a_or_an


def is_public_function(value: Any) -> bool:
    """Return True if `value` is the attribute of its module at its qualified name: not a lambda, not a closure.

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
    """Return the constructor's arguments of an attrs or dataclass value by name, or None for any other value.

    >>> constructor_arguments(attrs.make_class("Point", ["x"])(1)), constructor_arguments([1])
    ({'x': 1}, None)
    """
    kind: Any = type(value)
    fields = _constructor_fields(kind)
    return None if fields is None else {argument: getattr(value, name) for argument, name in fields}


def classes_and_functions(value: Any) -> set[Any]:
    """Return the classes of the parts of a frozen value, and the functions in it, as `from_json` takes them.

    >>> Point = attrs.make_class("Point", ["x"], frozen=True)
    >>> classes_and_functions((Point(classes_and_functions), 1)) == {Point, classes_and_functions}
    True
    """
    if isinstance(value, tuple):
        return set().union(*map(classes_and_functions, value))
    if isinstance(value, FunctionType):
        return {value}
    fields = constructor_arguments(value)
    return set() if fields is None else {type(value)}.union(*map(classes_and_functions, fields.values()))


@cache
def _constructor_fields(kind: type) -> tuple[tuple[str, str], ...] | None:
    # (argument of the constructor, attribute) of the fields of a class.
    if attrs.has(kind):
        return tuple((f.alias, f.name) for f in attrs.fields(kind) if f.init)
    if dataclasses.is_dataclass(kind):
        return tuple((f.name, f.name) for f in dataclasses.fields(kind) if f.init)
    return None


def mutability_error(value: Any) -> str | None:
    """Return a description of the part of `value` that is not frozen, or None if all of it is frozen.

    Frozen are None, bool, int, float, str, tuples, module-level functions, and frozen attrs or dataclass
    values that compare by their fields, if everything they hold is frozen too.

    >>> mutability_error((1, ("a", None))), mutability_error((1, [2]))
    (None, 'the list [2]')
    """
    kind = type(value)
    if value is None or kind in (bool, int, str) or isinstance(value, Flag):
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


_WIDTH = 110


_Class = TypeVar("_Class", bound=type)


def readable(cls: _Class) -> _Class:
    """Give a frozen attrs class a repr that is the code of the value, on several lines if it is long.

    The first field is written without its name: `Rule(Op('conv'), input=Scheme(Int(8)))`.
    """
    setattr(cls, "__repr__", as_code)  # noqa: B010 - mypy refuses the assignment
    setattr(cls, "_writes_code", True)  # noqa: B010
    return cls


def as_code(value: Any) -> str:
    """Return the code that builds `value`.

    >>> from qfunc.specs import PerChannel, Scale
    >>> Scale(PerChannel(), power_of_two=True)
    Scale(PerChannel(), power_of_two=True)
    """
    return _write(value, 0, 0)


def _write(value: Any, indent: int, before: int) -> str:
    # `before`: how many characters stand before the value on its first line.
    line, plain = one_line(value), type(value) is tuple and all(type(v) in (int, str) for v in value)
    if len(line) + before <= _WIDTH:
        return line
    if plain:
        return _filled(value, indent)
    if type(value) is tuple:
        opening, parts = "(", [("", v) for v in value]
    elif _is_readable(value):
        opening, parts = f"{type(value).__name__}(", _parts(value)
    else:
        return line
    pad, inside = " " * (indent + 4), indent + 4
    body = "".join(f"{pad}{name}{_write(v, inside, inside + len(name))},\n" for name, v in parts)
    return f"{opening}\n{body}{' ' * indent})"


def _filled(value: tuple[Any, ...], indent: int) -> str:
    # As many on a line as there is room for.
    lines, pad = [""], " " * (indent + 4)
    for each in value:
        if lines[-1] and len(pad) + len(lines[-1]) + len(repr(each)) > _WIDTH:
            lines.append("")
        lines[-1] += f"{', ' if lines[-1] else ''}{each!r}"
    return "(\n" + "".join(f"{pad}{line},\n" for line in lines) + f"{' ' * indent})"


def _is_readable(value: Any) -> bool:
    return getattr(type(value), "_writes_code", False) is True


def one_line(value: Any) -> str:
    """The code that builds `value`, on one line."""
    if type(value) is tuple:
        return f"({', '.join(map(one_line, value))}{',' if len(value) == 1 else ''})"
    if _is_readable(value):
        return f"{type(value).__name__}({', '.join(name + one_line(v) for name, v in _parts(value))})"
    if isinstance(value, Flag):
        return " | ".join(f"{type(value).__name__}.{member.name}" for member in value) or f"{type(value).__name__}(0)"
    return str(value.__qualname__) if isinstance(value, FunctionType) else repr(value)


def _parts(value: Any) -> list[tuple[str, Any]]:
    parts = []
    for i, f in enumerate(attrs.fields(type(value))):
        held = getattr(value, f.name)
        if held == f.default and type(held) is type(f.default):
            continue
        bare = i == 0 and not f.kw_only
        # A field that takes one word for a tuple of one shows the word.
        word = bare and f.converter is not None and type(held) is tuple and len(held) == 1 and isinstance(held[0], str | Flag)
        parts.append(("" if bare else f"{f.name}=", held[0] if word else held))
    return parts
