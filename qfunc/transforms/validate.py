"""Validate the arguments of transforms: targets, directories, public arithmetic."""

from __future__ import annotations

import os
from typing import Any

from torch import fx, nn

from qfunc.errors import EmulationError, SpecError, a_or_an
from qfunc.graph.record import Record
from qfunc.graph.stages import require_stage
from qfunc.specs import Target, Unknown, diff

__all__ = ["describe", "require_directory", "require_target_value", "require_public", "require_target"]


def describe(value: Any) -> str:
    """A value in a few words.

    >>> describe("tensorrt"), describe(nn.ReLU()), describe(nn.ReLU), describe(describe)
    ("'tensorrt'", 'a ReLU', 'the class ReLU', 'the function describe')
    """
    if value is None or isinstance(value, str | int | float):
        return repr(value)
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if callable(value) and not isinstance(value, nn.Module) and hasattr(value, "__name__"):
        return f"the function {value.__name__}"
    return a_or_an(type(value))


def require_target_value(value: Any, step: str) -> None:
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
    raise SpecError(where=step, found=describe(value), wanted="a Target", do=do)


def require_directory(value: Any, step: str) -> None:
    """Refuses what is no path.

    Raises:
        SpecError: such a value.
    """
    if not isinstance(value, str | os.PathLike):
        do = f"Write qfunc.{step}('directory')(model)."
        raise SpecError(where=step, found=describe(value), wanted="a directory", do=do)


def require_public(target: Target) -> None:
    """Refuses a target whose arithmetic is not public.

    Raises:
        EmulationError: names the reason and the nearest target that can be emulated.
    """
    for kernel in target.kernels:
        if isinstance(kernel.arithmetic, Unknown):
            nearest = kernel.arithmetic.nearest
            raise EmulationError(
                where=f"emulate({target.name})",
                found=f"no public arithmetic: {kernel.arithmetic.reason}",
                wanted="a target whose kernels are known",
                do=f"The nearest target that can be emulated is targets.{nearest}." if nearest else "Use the simulation.",
            )


def require_target(model: fx.GraphModule, target: Target, step: str) -> Record:
    """Refuses a target whose hardware half is not the model's.

    Raises:
        EmulationError: prints the difference like two datasheets.
    """
    record = require_stage(model, "quantized", step)
    assert record.target is not None
    if record.target.hardware() != target.hardware():
        raise EmulationError(
            where=f"{step}({target.name})",
            found=f"a model quantized for other hardware:\n{diff(record.target, target.with_algorithm_of(record.target))}\n",
            wanted=f"the hardware of {record.target.name!r}",
            do="Pass the target that the model was quantized for, or quantize for this one.",
        )
    return record
