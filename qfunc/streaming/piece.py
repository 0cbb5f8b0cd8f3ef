"""Quantize, calibrate, round and lower one piece of a network."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from attrs import evolve
from torch import Tensor, fx, nn
from torch.export import ExportedProgram

from qfunc.errors import CaptureError, first_line
from qfunc.execution.output_names import names_of_outputs
from qfunc.files.part import Part
from qfunc.frontend.capture import capture
from qfunc.graph.sites import quantizer_nodes
from qfunc.graph.view import QuantizedModel
from qfunc.ops.node import kind_of
from qfunc.specs import Target
from qfunc.transforms.batch_norm import FoldBatchNorm
from qfunc.transforms.calibrate import calibrate
from qfunc.transforms.deploy import checked_program, deployment, report_of
from qfunc.transforms.insert_quantizers import Placement, placements, simulation

Inputs = Sequence[tuple[Tensor, ...]]
"""The inputs of a piece, one tuple a batch."""

Rounding = Callable[..., Callable[[fx.GraphModule], fx.GraphModule]]
"""(batches, float_batches=) -> a transform of a calibrated model, as `gptq`."""


def export_piece(piece: nn.Module, inputs: Inputs) -> ExportedProgram:
    """Export a piece for the sizes of its inputs; axes that differ between batches vary.

    Raises:
        CaptureError: torch.export refuses it.
    """
    example = max(inputs, key=lambda given: sum(t.numel() for t in given))
    first, *others = (_varying([given[i] for given in inputs]) for i in range(len(example)))
    axes = (first, tuple(others)) if others else (first,)  # forward(x, *others)
    try:
        return torch.export.export(piece, example, dynamic_shapes=axes, strict=False)
    except Exception as e:
        do = "Check that its forward has no branch on the values of a tensor."
        where, wanted = f"stream, {type(piece).__name__}", "a network that torch.export accepts"
        raise CaptureError(where=where, found=first_line(e), wanted=wanted, do=do) from e


def _varying(tensors: list[Tensor]) -> dict[int, Any]:
    return {i: torch.export.Dim.AUTO for i in range(tensors[0].ndim) if len({t.shape[i] for t in tensors}) > 1}


def place_pieces(programs: Mapping[str, ExportedProgram], target: Target) -> dict[str, Placement]:
    """Capture pieces, and return the plan of quantizers of each."""
    return placements({name: capture()(program) for name, program in programs.items()}, target, FoldBatchNorm())


def quantized(program: ExportedProgram, target: Target) -> fx.GraphModule:
    """Return a quantized piece; a piece need not have anything to quantize, or all that the target names."""
    return simulation(place_pieces({"": program}, target)[""], target)


def calibrate_piece(
    load: Callable[[], nn.Module], target: Target, inputs: Inputs, rounding: Rounding | None, rounded_inputs: Inputs
) -> fx.GraphModule:
    """Return a piece that is calibrated, with its weights rounded on inputs in the quantized network.

    Each step returns a model of its own; what is left of the one before, circles of references, is collected at once.
    """
    model = quantized(export_piece(load(), inputs), target)
    gc.collect()
    model = calibrate(inputs, progress=False)(model)
    gc.collect()
    if rounding is not None and _has_weights(model):
        model = rounding(rounded_inputs, float_batches=inputs)(model)
        gc.collect()
    return model.eval()


def _has_weights(model: fx.GraphModule) -> bool:
    kinds = {n.name: kind_of(n) for n in model.graph.nodes}
    return any("linear" in map(kinds.get, q.readers) for q in quantizer_nodes(model) if q.module.site.constant)


def results(model: nn.Module, inputs: Inputs) -> list[Any]:
    """Return what a piece computes, one value a batch."""
    return [model(*given) for given in inputs]


def so_far(program: ExportedProgram, target: Target, inputs: Inputs) -> list[Any]:
    """Return what a piece computes with quantized weights, before calibration."""
    return results(QuantizedModel(quantized(program, target)).network_so_far, inputs)


def part_of(model: fx.GraphModule, target: Target) -> Part:
    """Return a calibrated piece as the lowering stores it.

    Raises:
        DeployError: an op that cannot be written, or an ONNX model that computes something else.
    """
    deployed = deployment(model, target)
    program = checked_program(deployed)
    lowering: Any = target.lowering
    part: Part = lowering.part(program)
    own = names_of_outputs(deployed.model) or part.outputs
    outputs = tuple(name or other for name, other in zip(own, part.outputs, strict=True)) if part.outputs else ()
    report = report_of(target, deployed.inputs, program.tensors, deployed.partition.units)
    return evolve(part, outputs=outputs, report={name: report[name] for name in ("tensors", "units")})
