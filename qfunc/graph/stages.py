"""The stages of a model: captured, quantized, calibrated. Transforms refuse models at the wrong stage."""

from __future__ import annotations

from typing import Any

from torch import fx, nn

from qfunc.errors import CalibrationError, a_or_an
from qfunc.graph.record import Record, record_of
from qfunc.graph.sites import quantizer_nodes

__all__ = ["kind_of_model", "require_stage", "require_unwrapped"]


def require_stage(model: Any, stage: str, step: str) -> Record:
    """The record of a model that has reached `stage` ("quantized" or "calibrated").

    Raises:
        CalibrationError: it has not; the message names the step that is missing.
    """
    require_unwrapped(model, stage, step)
    record = record_of(model) if isinstance(model, fx.GraphModule) else None
    reached = record is not None and record.stage in (stage, "quantized", "calibrated")
    # Qparams may also have come from a state_dict, or have left with one.
    unready = (
        [s.module.site.name for s in quantizer_nodes(model) if not s.module.ready] if reached and stage == "calibrated" else []
    )
    if record is None or not reached or unready:
        before = {"quantized": "qfunc.quantize(target)(model)", "calibrated": "qfunc.calibrate(batches)(quantized)"}[stage]
        found = kind_of_model(record) if record else f"{a_or_an(type(model))} that is not quantized"
        found += f" without qparams at site {unready[0]!r}" if unready else ""
        raise CalibrationError(where=step, found=found, wanted=f"a {stage} model", do=f"First run {before}.")
    return record


def require_unwrapped(model: Any, stage: str, step: str) -> None:
    """Refuses the wrappers of training, which have a quantized model inside.

    Raises:
        CalibrationError: names the cure.
    """
    compiled = isinstance(model, nn.Module) and isinstance(getattr(model, "_orig_mod", None), nn.Module)
    if compiled or isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        found = "a compiled model" if compiled else a_or_an(type(model))
        do = "Pass the model that was given to torch.compile." if compiled else "Pass its .module."
        raise CalibrationError(where=step, found=found, wanted=f"the {stage} model inside", do=do)


def kind_of_model(record: Record) -> str:
    """What a model is, in words; an emulation is captured and yet knows its target."""
    return "an emulation" if record.target and record.stage == "captured" else f"a {record.stage} model"
