"""The repr of specs: the code that builds the value, without the fields that have their defaults."""

from __future__ import annotations

from types import FunctionType
from typing import Any, TypeVar

import attrs

_WIDTH = 110
_Class = TypeVar("_Class", bound=type)


def readable(cls: _Class) -> _Class:
    """Gives a frozen attrs class the repr that builds its values; long ones stand on several lines.

    The first field stands bare, the others by name: `Rule(Op('conv'), input=Scheme(Int(8)))`.
    """
    setattr(cls, "__repr__", as_code)  # noqa: B010 - mypy refuses the assignment
    return cls


def as_code(value: Any) -> str:
    """The code that builds `value`.

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
        if len(pad) + len(lines[-1]) + len(repr(each)) > _WIDTH:
            lines.append("")
        lines[-1] += f"{', ' if lines[-1] else ''}{each!r}"
    return "(\n" + "".join(f"{pad}{line},\n" for line in lines) + f"{' ' * indent})"


def _is_readable(value: Any) -> bool:
    return getattr(type(value), "__repr__", None) is as_code


def one_line(value: Any) -> str:
    """The code that builds `value`, on one line."""
    if type(value) is tuple:
        return f"({', '.join(map(one_line, value))}{',' if len(value) == 1 else ''})"
    if _is_readable(value):
        return f"{type(value).__name__}({', '.join(name + one_line(v) for name, v in _parts(value))})"
    return str(value.__qualname__) if isinstance(value, FunctionType) else repr(value)


def _parts(value: Any) -> list[tuple[str, Any]]:
    parts = []
    for i, f in enumerate(attrs.fields(type(value))):
        held = getattr(value, f.name)
        if held == f.default and type(held) is type(f.default):
            continue
        bare = i == 0 and not f.kw_only
        # A field that takes one word for a tuple of one shows the word.
        word = bare and f.converter is not None and type(held) is tuple and len(held) == 1 and type(held[0]) is str
        parts.append(("" if bare else f"{f.name}=", held[0] if word else held))
    return parts
