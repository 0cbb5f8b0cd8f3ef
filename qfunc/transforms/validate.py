"""Validate the arguments of transforms: models, targets, directories, public arithmetic."""

from __future__ import annotations

import os
from typing import Any

from attrs import evolve
from torch import fx, nn

from qfunc.errors import CalibrationError, CaptureError, EmulationError, SpecError, a_or_an
from qfunc.graph.record import Record, record_of
from qfunc.graph.stages import kind_of_model, require_stage
from qfunc.graph.submodules import quantized_submodules
from qfunc.quantizers.fake_quantize import FakeQuantize
from qfunc.specs import Target, Unknown, diff


def describe(value: Any) -> str:
    """Return a short description of a value.

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
    """Raise unless a value is a target.

    Raises:
        SpecError: it is not.
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
    """Raise unless a value is a path.

    Raises:
        SpecError: it is not.
    """
    if not isinstance(value, str | os.PathLike):
        do = f"Write qfunc.{step}('directory')(model)."
        raise SpecError(where=step, found=describe(value), wanted="a directory", do=do)


def require_public(target: Target) -> None:
    """Raise if the arithmetic of a target is not public.

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
    """Raise if a model was quantized for other hardware than a target's.

    The runner may differ: it runs the artifact, and decides nothing about the numbers.

    Raises:
        EmulationError: it was; the message lists the differences.
    """
    record = require_stage(model, "quantized", step)
    assert record.target is not None
    runner = target.runtime.runner
    expected = evolve(record.target, runtime=evolve(record.target.runtime, runner=runner))
    if expected.hardware() != target.hardware():
        raise EmulationError(
            where=f"{step}({target.name})",
            found=f"a model quantized for other hardware:\n{diff(expected, target.with_algorithm_of(record.target))}\n",
            wanted=f"the hardware of {record.target.name!r}",
            do="Pass the target that the model was quantized for, or quantize for this one.",
        )
    return record


def require_float_model(model: Any, whole: bool) -> None:
    """Refuse a model that is quantized or, if `whole`, has quantized submodules; refuse tensors without values.

    Raises:
        CalibrationError: the model or a submodule is quantized.
        CaptureError: a tensor is on the meta device, or sharded over processes.
    """
    record, do = record_of(model), "Quantize the float model that it came from."
    if record is not None and record.target is not None:
        raise CalibrationError(where="quantize", found=kind_of_model(record), wanted="a float model", do=do)
    done = quantized_submodules(model) if whole else {}
    for path, module in model.named_modules() if isinstance(model, nn.Module) else ():
        if whole and (path in done or isinstance(module, FakeQuantize)):
            found = f"a model with a quantized submodule, {path!r}"
            raise CalibrationError(where="quantize", found=found, wanted="a float model", do=do)
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            place = f"quantize, tensor {f'{path}.{name}'.lstrip('.')!r}"
            if tensor is not None and tensor.is_meta:
                do = "Load the weights first: model.to_empty(device='cpu'), then load_state_dict."
                raise CaptureError(where=place, found="a tensor on the meta device", wanted="values", do=do)
            if type(tensor).__name__ == "DTensor":
                do = "Quantize the model before it is sharded, or a copy loaded from its full state_dict."
                raise CaptureError(where=place, found="a part of a sharded tensor", wanted="the whole tensor", do=do)
