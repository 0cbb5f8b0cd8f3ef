"""Validate the arguments of the checks."""

from __future__ import annotations

from typing import Any

from qfunc.errors import SpecError
from qfunc.specs._check import members, misfit
from qfunc.transforms.validate import describe


def require_protocol(value: Any, protocol: type, check: str) -> None:
    """Refuse a class in place of its instance, a value that lacks methods, and optional methods of another shape or name.

    Raises:
        SpecError: the message names the methods.
    """
    names = members(protocol)
    missing = [n for n in names if not callable(getattr(value, n, None))]
    if isinstance(value, type) or missing:
        do = f"Call it: {value.__name__}()." if isinstance(value, type) else f"Add {', '.join(missing)}."
        wanted = f"a frozen value with the methods {', '.join(names)}"
        raise SpecError(where=f"testing.{check}", found=describe(value), wanted=wanted, do=do)
    if bad := misfit(type(value), protocol):
        found, wanted, do = bad
        raise SpecError(where=f"testing.{check}", found=f"{describe(value)} with {found}", wanted=wanted, do=do)


def require_examples(examples: Any, check: str) -> None:
    """Raise unless a value is a number of examples.

    Raises:
        SpecError: less than 1, or not an int.
    """
    if type(examples) is not int or examples < 1:
        do = "Give a number such as 15."
        raise SpecError(where=f"testing.{check}, examples", found=repr(examples), wanted="an int of at least 1", do=do)


__all__ = ["require_examples", "require_protocol"]
