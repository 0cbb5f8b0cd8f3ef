"""Arguments of the functions that return targets: a value of another kind is refused with the argument's name."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from qfunc.errors import SpecError, a_or_an
from qfunc.specs._check import cure
from qfunc.specs._values import short

Value = TypeVar("Value")


def entry(where: str, name: Any, table: Mapping[str, Value]) -> Value:
    """Return the entry of a table by its name.

    Args:
        where: The function and the argument, for the message.
        name: The name that the user gave.
        table: The values by name.
    Raises:
        SpecError: there is no such name; the message has all of them.

    >>> entry("chip, mode", "fast", {"fast": 1, "slow": 2})
    1
    """
    if type(name) is str and name in table:
        return table[name]
    near = difflib.get_close_matches(name.upper(), table, 1) if type(name) is str else []
    do = f"Write {near[0]!r}." if near else "Choose one of them."
    raise SpecError(where=where, found=short(name), wanted="one of " + ", ".join(map(repr, table)), do=do)


def made(where: str, make: Callable[..., Value], *arguments: Any, **options: Any) -> Value:
    """Return `make(*arguments, **options)`, whose refusal is that of an argument of the user's.

    Args:
        where: The function and the argument, for the message.
        make: A class of specs, or a function.
        arguments: Its arguments.
        options: Its arguments by name.
    Raises:
        SpecError: that of `make`, at `where`.

    >>> made("chip, weights", tuple, [4, 8])
    (4, 8)
    """
    try:
        return make(*arguments, **options)
    except SpecError as e:
        raise SpecError(where=where, found=e.found, wanted=e.wanted, do=e.do) from None


def of_kind(where: str, value: Any, kind: type[Value]) -> Value:
    """Return a value of exactly this class.

    Args:
        where: The function and the argument, for the message.
        value: What the user gave.
        kind: The class.
    Raises:
        SpecError: it is of another class.

    >>> of_kind("chip, wide", True, bool)
    True
    """
    if type(value) is not kind:
        raise SpecError(where=where, found=short(value), wanted=a_or_an(kind), do=cure(value, (kind,)))
    return value
