"""What a user may hand to a transform's factory, refused at once where it can mean nothing."""

from __future__ import annotations

import os
from typing import Any

from torch import nn

from qfunc.errors import SpecError, a_or_an
from qfunc.specs import Target


def named(value: Any) -> str:
    """A value in a few words.

    >>> named("tensorrt"), named(nn.ReLU()), named(nn.ReLU), named(named)
    ("'tensorrt'", 'a ReLU', 'the class ReLU', 'the function named')
    """
    if value is None or isinstance(value, str | int | float):
        return repr(value)
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if callable(value) and not isinstance(value, nn.Module) and hasattr(value, "__name__"):
        return f"the function {value.__name__}"
    return a_or_an(type(value))


def require_a_target(value: Any, step: str) -> None:
    """Refuses what is no target.

    Raises:
        SpecError: such a value.
    """
    if isinstance(value, Target):
        return
    do = "Pass one of qfunc.targets, or your own specs.Target."
    if isinstance(value, str):
        do = "Pass the value: one of qfunc.targets, or your own specs.Target."
    elif isinstance(value, nn.Module):
        do = f"Write qfunc.{step}(target)(model)."
    elif callable(value) and not isinstance(value, type) and hasattr(value, "__name__"):
        do = f"Call it: {value.__name__}(...)."
    raise SpecError(where=step, found=named(value), wanted="a Target", do=do)


def require_a_place(value: Any, step: str) -> None:
    """Refuses what is no path.

    Raises:
        SpecError: such a value.
    """
    if not isinstance(value, str | os.PathLike):
        do = f"Write qfunc.{step}('directory')(model)."
        raise SpecError(where=step, found=named(value), wanted="a directory", do=do)


__all__ = ["named", "require_a_place", "require_a_target"]
