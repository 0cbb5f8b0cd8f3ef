"""save and load: store a quantized model as safetensors and JSON, without pickle."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from attrs import asdict, evolve
from safetensors.torch import save as to_bytes
from torch import Tensor, fx, nn
from torch.export import ExportedProgram

from qfunc import specs
from qfunc._collection import paused_collection
from qfunc._transform import Transform
from qfunc.errors import CalibrationError
from qfunc.files.bit_planes import require_planes
from qfunc.files.folder import read_file
from qfunc.files.tensors import read_tensors
from qfunc.frontend.capture import capture
from qfunc.frontend.options import Leaves, require_leaves
from qfunc.graph.constants import read_attr
from qfunc.graph.evaluation_form import trained_norms
from qfunc.graph.record import CorrectedBias, TensorInfo, attach
from qfunc.graph.sites import quantizer_nodes
from qfunc.graph.stages import require_stage
from qfunc.graph.state_dict import load_state
from qfunc.lowering.artifact import REPORT, Artifact
from qfunc.lowering.report_fields import SAVED_MODEL, read_report, read_target
from qfunc.transforms.batch_norm import FoldBatchNorm, TrainBatchNorm
from qfunc.transforms.deploy import require_whole
from qfunc.transforms.insert_quantizers import placements, simulation
from qfunc.transforms.quantize import simulation_of
from qfunc.transforms.storage.stored_weights import (
    CodedWeights,
    FloatWeights,
    code_planes,
    format_of,
    readers,
    require_form,
    weight_of_planes,
)
from qfunc.transforms.submodules import capture_submodule
from qfunc.transforms.validate import require_directory

_TENSORS = "model.safetensors"


def save(
    directory: str | os.PathLike[str], weights: CodedWeights | FloatWeights = CodedWeights()
) -> Callable[[fx.GraphModule], Path]:
    """Return a function that writes a quantized model to "model.safetensors" and "qfunc.json", all or nothing.

    Args:
        directory: New or empty, or an earlier saved model, which is replaced.
        weights: `CodedWeights()` stores weights as codes where these suffice: of a calibrated model in evaluation mode.
            `FloatWeights()` keeps the float weights, which training and later corrections need.
    Raises:
        CalibrationError: the model is not quantized.
        DeployError: the directory has other files, or only submodules are quantized, which are saved one by one.

    >>> import qfunc, tempfile
    >>> from qfunc import targets
    >>> quantized = qfunc.quantize(targets.onnxruntime)(nn.Linear(3, 2))
    >>> sorted(p.name for p in save(tempfile.mkdtemp())(quantized).iterdir())
    ['model.safetensors', 'qfunc.json']
    """

    require_directory(directory, "save")
    require_form(weights)

    @paused_collection()
    def write(model: fx.GraphModule) -> Path:
        require_whole(model, "save")
        record = require_stage(model, "quantized", "save")
        tensors = _tensors(model)
        codes = weights.codes(model, tensors)
        state = {k: code_planes(codes[k], v) if k in codes else v.detach().clone().contiguous() for k, v in tensors.items()}
        # Codes have no rounding errors, from which another correction could compute the shifts.
        corrected = () if codes else record.corrected
        report = {
            "target": json.loads(specs.to_json(record.target)),
            "stage": record.stage,
            "inputs": [{k: v for k, v in asdict(i).items() if v or k != "other"} for i in record.inputs],
            "training": model.training,
            **({"within": record.within, "around": list(record.around)} if record.within else {}),
            **({"norms": "batch_statistics"} if trained_norms(model) else {}),
            **({"corrected": [each.path for each in corrected]} if corrected else {}),
            **({"codes": {k: _coded(q, tensors[k]) for k, q in codes.items()}} if codes else {}),
            "graph": _describe(model),
        }
        state |= {each.key: each.original_of(tensors[each.path]) for each in corrected}
        text = json.dumps(report, indent=1, sort_keys=True) + "\n"
        return Artifact({_TENSORS: to_bytes(state), REPORT: text.encode()}).save(directory)

    return Transform(save, {"directory": directory, "weights": weights}, write)


def _coded(quantizer: Any, weight: Tensor) -> dict[str, Any]:
    return {"shape": list(weight.shape), "bits": format_of(quantizer).bits, "dtype": str(weight.dtype)}


def _describe(model: fx.GraphModule) -> list[str]:
    # Return one line per op, equal in every process: the repr of a function would contain an address.
    names = {n: n.target if isinstance(n.target, str) else getattr(n.target, "__name__", "") for n in model.graph.nodes}
    return [f"{n.name} = {names[n]}{tuple(n.args)}" for n in model.graph.nodes]


def load(
    directory: str | os.PathLike[str],
    example_inputs: tuple[Any, ...] | None = None,
    classes: Iterable[Any] = (),
    *,
    leaves: Leaves = (),
    concrete_args: Mapping[str, Any] | None = None,
    tracer: fx.Tracer | type[fx.Tracer] | None = None,
) -> Callable[[nn.Module | ExportedProgram], fx.GraphModule]:
    """Return a transform from the float model to the quantized one that `save` wrote, which computes the same bits.

    Weights that were saved as codes have the values of these (see `CodedWeights`).

    Args:
        directory: The directory that `save` wrote.
        example_inputs: The argument of the original `quantize`; for a submodule, the inputs of the submodule.
        classes: User-defined classes and functions in the target.
        leaves: The argument of the original `quantize`.
        concrete_args: The argument of the original `quantize`.
        tracer: The argument of the original `quantize`.
    Raises:
        CalibrationError: no such files, or the model is not the one that was saved.
        FileError: a file is damaged; names the file and the field.
    """

    require_directory(directory, "load")

    @paused_collection()
    def read(model: nn.Module | ExportedProgram) -> fx.GraphModule:
        path_to_files = Path(directory)
        if isinstance(model, Tensor):
            wanted, do = "the float model that was quantized, which the files do not contain", "Write load(directory)(model)."
            raise CalibrationError(where=f"load({str(path_to_files)!r})", found="a Tensor", wanted=wanted, do=do)
        report = _report(path_to_files)
        target = read_target(report["target"], str(path_to_files / REPORT), "target", classes, "load(directory")
        file, coded = str(path_to_files / _TENSORS), report.get("codes", {})
        state = read_tensors(path_to_files / _TENSORS)
        require_planes(state, coded, file)
        norms = TrainBatchNorm() if report.get("norms") else FoldBatchNorm()
        float_model: Any = model
        if path := report.get("within", ""):
            to_graph = capture(example_inputs, leaves=leaves, concrete_args=concrete_args, tracer=tracer)
            captured = {path: capture_submodule(path, to_graph, float_model, tuple(report.get("around", ())))}
            quantized = simulation(placements(captured, target, norms)[path], target)
        else:
            simulate = simulation_of(target, example_inputs, None, require_leaves(leaves), concrete_args, tracer, norms)
            quantized = simulate(float_model)
        for quantizer in quantizer_nodes(quantized):
            quantizer.module.load_shape(state, f"{quantizer.path}.")
        tensors = _tensors(quantized)
        keys = {path: f"{path}:original" for path in report.get("corrected", ())}
        originals = {path: state.pop(key) for path, key in keys.items() if key in state and path in tensors}
        saved = {k: (tuple(v.shape), str(v.dtype)) for k, v in state.items()}
        saved |= {k: (tuple(entry["shape"]), entry["dtype"]) for k, entry in coded.items()}
        difference = _difference(tensors, saved, _describe(quantized), report["graph"])
        found = readers(quantized, tensors)
        others = [k for k, entry in coded.items() if k not in found or format_of(found[k][0]).bits != entry["bits"]]
        if difference or others:
            do = "Build the model as it was when it was saved, and pass the arguments of the original quantize."
            where, what = (
                f"load({str(path_to_files)!r})",
                difference or f"codes that no quantizer reads: {', '.join(others[:5])}",
            )
            raise CalibrationError(where=where, found=what, wanted="the saved network", do=do)
        planes = {k: state.pop(k) for k in coded}
        state |= {k: tensors[k] for k in coded}  # kept until the quantizers have their qparams
        kept = quantized.state_dict().keys()
        with torch.no_grad():
            load_state(quantized, {k: v for k, v in state.items() if k in kept})
            for name in state.keys() - kept:
                tensors[name].copy_(state[name])
            for name, codes in planes.items():
                tensors[name].copy_(weight_of_planes(found[name][0], codes, tensors[name], name, file))
        inputs = tuple(TensorInfo(tuple(i["shape"]), i["dtype"], tuple(i.get("other", ()))) for i in report["inputs"])
        record = require_stage(quantized, "quantized", "load")
        biases = tuple(CorrectedBias(p, v, tensors[p].detach().clone()) for p, v in originals.items())
        record = evolve(record, stage=report["stage"], inputs=inputs, corrected=biases)
        return attach(quantized, record).train(report["training"])

    return Transform(
        load,
        {
            "directory": directory,
            "example_inputs": example_inputs,
            "classes": classes,
            "leaves": leaves,
            "concrete_args": concrete_args,
            "tracer": tracer,
        },
        read,
    )


def _report(place: Path) -> dict[str, Any]:
    if not all(os.path.isfile(place / name) for name in (REPORT, _TENSORS)):
        wanted, do = f"{REPORT} and {_TENSORS}", "Pass the directory that qfunc.save wrote."
        raise CalibrationError(where=f"load({str(place)!r})", found="no saved model", wanted=wanted, do=do)
    return read_report(read_file(place / REPORT), SAVED_MODEL, str(place / REPORT))


def _tensors(model: fx.GraphModule) -> dict[str, Tensor]:
    # Return the state_dict with the other tensors that the graph reads: non-persistent buffers and constants.
    read = {str(n.target): read_attr(model, n) for n in model.graph.nodes if n.op == "get_attr"}
    return {**{path: t.detach() for path, t in read.items() if isinstance(t, Tensor)}, **model.state_dict()}


def _difference(
    current: dict[str, Tensor], state: dict[str, tuple[tuple[int, ...], str]], graph: list[str], saved: list[str]
) -> str:
    # Describe the first differences between the model and the saved one, of which shapes and dtypes are given; "" if none.
    different = sorted(current.keys() ^ state.keys())
    both = sorted(current.keys() & state.keys())
    different += [k for k in both if (tuple(current[k].shape), str(current[k].dtype)) != state[k]]
    if different:
        return f"tensors that differ from the saved ones: {', '.join(different[:5])}"
    ops = [(a, b) for a, b in zip_longest(graph, saved, fillvalue="no op") if a != b]
    return f"an op that differs from the saved one: {ops[0][0]}, not {ops[0][1]}" if ops else ""
