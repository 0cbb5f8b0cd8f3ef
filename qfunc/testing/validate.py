"""Validate the arguments of the checks."""

from __future__ import annotations

from typing import Any

from qfunc.errors import SpecError
from qfunc.transforms.validate import describe


def require_methods(value: Any, names: tuple[str, ...], check: str) -> None:
    """Raise if a value is a class, or lacks one of the methods.

    Raises:
        SpecError: the message names the missing methods.
    """
    missing = [n for n in names if not callable(getattr(value, n, None))]
    if isinstance(value, type) or missing:
        do = f"Call it: {value.__name__}()." if isinstance(value, type) else f"Add {', '.join(missing)}."
        wanted = f"a frozen value with the methods {', '.join(names)}"
        raise SpecError(where=f"testing.{check}", found=describe(value), wanted=wanted, do=do)


def require_examples(examples: Any, check: str) -> None:
    """Raise unless a value is a number of examples.

    Raises:
        SpecError: less than 1, or not an int.
    """
    if type(examples) is not int or examples < 1:
        do = "Give a number such as 15."
        raise SpecError(where=f"testing.{check}, examples", found=repr(examples), wanted="an int of at least 1", do=do)


__all__ = ["require_examples", "require_methods"]
