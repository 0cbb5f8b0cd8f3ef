"""The stage of a model: captured, quantized or calibrated; and the wrappers of torch.compile and data parallel training."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx, nn

from qfunc._transform import Transform
from qfunc.errors import CalibrationError, CaptureError, a_or_an
from qfunc.graph.record import Record, record_of
from qfunc.quantizers.fake_quantize import FakeQuantize


def unwrap(model: Any) -> nn.Module:
    """Return the module inside the wrappers of torch.compile and of data-parallel training.

    Raises:
        CaptureError: `model` is not a module that can be captured, for example a scripted one.
    """
    if not isinstance(model, nn.Module):
        kind = isinstance(model, type)
        do = f"Create an instance: {model.__name__}(...)." if kind else "Pass the module itself."
        if isinstance(getattr(model, "program", None), torch.export.ExportedProgram):  # a qfunc.decoder
            do = "Pass its program: decoder.program."
        found = f"the class {model.__name__}" if kind else type(model).__name__
        raise CaptureError(where="capture", found=found, wanted="an nn.Module or an ExportedProgram", do=do)
    inner = getattr(model, "_orig_mod", None)  # torch.compile's wrapper
    if isinstance(inner, nn.Module):
        return unwrap(inner)
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        return unwrap(model.module)
    if isinstance(model, torch.jit.ScriptModule):
        do = "Pass the eager module from which it was scripted."
        raise CaptureError(where="capture", found="a TorchScript module", wanted="an eager nn.Module", do=do)
    if sharded := _sharded(model):
        do = "Pass the module before it is sharded, with the full state_dict loaded."
        raise CaptureError(where="capture", found=sharded, wanted="unsharded tensors", do=do)
    if type(model).forward is nn.Module.forward and "forward" not in vars(model):
        found, do = f"{a_or_an(type(model))} without a forward", "Pass the model that runs its entries, or one of them."
        raise CaptureError(where="capture", found=found, wanted="a module with a forward", do=do)
    return model


def _sharded(model: nn.Module) -> str:
    # By name, because the import of FSDP costs seconds.
    if type(model).__name__ == "FullyShardedDataParallel":
        return "a FullyShardedDataParallel"
    shards = any(base.__name__ == "FSDPModule" for m in model.modules() for base in type(m).__mro__)
    return "a model that fully_shard sharded" if shards else ""


def unwrap_inside(model: nn.Module) -> bool:
    """Replace wrapped submodules by the modules inside, in place.  Return True if there were any.

    >>> model = nn.Sequential(nn.DataParallel(nn.ReLU()))
    >>> unwrap_inside(model)
    True
    >>> model
    Sequential(
      (0): ReLU()
    )
    """
    found = False
    for module in list(model.modules()):
        for name, child in module._modules.items():
            wraps = isinstance(child, nn.DataParallel | nn.parallel.DistributedDataParallel)
            if child is not None and (wraps or isinstance(getattr(child, "_orig_mod", None), nn.Module)):
                module._modules[name], found = unwrap(child), True
    return found


def require_stage(model: Any, stage: str, step: str) -> Record:
    """Return the record of a model that has reached `stage` ("quantized" or "calibrated").

    Raises:
        CalibrationError: the model has not; the message names the step that is missing.
    """
    require_unwrapped(model, stage, step)
    record = record_of(model) if isinstance(model, fx.GraphModule) else None
    reached = record is not None and record.stage in (stage, "quantized", "calibrated")
    # Qparams may also have come from a state_dict, or have left with one.
    without_qparams = _without_qparams(model) if reached and stage == "calibrated" else []
    if record is None or not reached or without_qparams:
        found, do = _described(model, record), f"First run {_BEFORE[stage]}."
        if isinstance(model, Transform):
            do = f"Call it with a model first: qfunc.{model.maker.__name__}(...)(model)."
        found += f" without qparams at site {without_qparams[0]!r}" if without_qparams else ""
        raise CalibrationError(where=step, found=found, wanted=f"a {stage} model", do=do)
    return record


def require_float32(model: nn.Module, step: str) -> None:
    """Refuse parameters of 16 bits, for a step that computes weights in float32.

    Raises:
        CalibrationError: the first of them.
    """
    for path, parameter in model.named_parameters():
        if parameter.dtype in (torch.float16, torch.bfloat16):
            found, do = f"the parameter {path!r} in {parameter.dtype}", "Quantize model.float(), and calibrate it."
            raise CalibrationError(where=step, found=found, wanted="a model in float32", do=do)


_BEFORE = {"quantized": "qfunc.quantize(target)(model)", "calibrated": "qfunc.calibrate(batches)(quantized)"}


def _described(value: Any, record: Record | None) -> str:
    if isinstance(value, Transform):
        return f"what qfunc.{value.maker.__name__}(...) returned"
    if record is not None:
        return kind_of_model(record)
    return f"{a_or_an(type(value))}{' that is not quantized' * isinstance(value, nn.Module)}"


def _without_qparams(model: fx.GraphModule) -> list[str]:
    # The names of the sites in the order of the graph.
    modules = (model.get_submodule(str(n.target)) for n in model.graph.nodes if n.op == "call_module")
    return [m.site.name for m in modules if isinstance(m, FakeQuantize) and not m.ready]


def require_unwrapped(model: Any, stage: str, step: str) -> None:
    """Raise if a model is a wrapper that training puts around a quantized model.

    Raises:
        CalibrationError: it is one; the message names the model to pass.
    """
    compiled = isinstance(model, nn.Module) and isinstance(getattr(model, "_orig_mod", None), nn.Module)
    if compiled or isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        found = "a compiled model" if compiled else a_or_an(type(model))
        do = "Pass the model that was given to torch.compile." if compiled else "Pass its .module."
        raise CalibrationError(where=step, found=found, wanted=f"the {stage} model inside", do=do)
    if isinstance(model, nn.Module) and (sharded := _sharded(model)):
        state = "torch.distributed.checkpoint.state_dict.get_model_state_dict"
        do = f"Load its full state_dict, of {state}, into a quantized model."
        raise CalibrationError(where=step, found=sharded, wanted=f"a {stage} model with whole tensors", do=do)


def kind_of_model(record: Record) -> str:
    """Return a phrase for the stage of a model; an emulation is captured and has a target."""
    return "an emulation" if record.target and record.stage == "captured" else f"a {record.stage} model"
