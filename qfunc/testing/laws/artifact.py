"""Laws of a target's artifact on one model."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, fx

from qfunc.execution.batches import tensors_of
from qfunc.execution.evaluate import run_in_evaluation_mode
from qfunc.graph.constants import read_attr
from qfunc.graph.stages import require_stage
from qfunc.graph.view import QuantizedModel
from qfunc.lowering.artifact import REPORT
from qfunc.numerics.qparams import spread
from qfunc.ops.node import is_constant, kind_of
from qfunc.placement.partition import Partition
from qfunc.specs import DerivedQParams, Int
from qfunc.specs.file_format import format_of
from qfunc.testing.laws.side_files import SIDE, side_files_hold_the_qparams, text_rows
from qfunc.testing.pipeline import Pipeline

_RUNNABLE = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")
"""Domains with ops that ONNX Runtime implements; other ops are functions of the model, or need the vendor's tool."""


def deploys(trial: Pipeline) -> None:
    """Check that deploy succeeds; it also checks that the standard Q/DQ model computes the simulation."""
    _ = trial.artifact


def lowering_is_pure_and_deterministic(trial: Pipeline) -> None:
    """Check that `lower` does not change its argument, and returns the same bytes every time."""
    if trial.artifact is None:
        return
    # onnx is imported lazily.
    from qfunc.lowering.onnx.writer import write_program

    lowering: Any = trial.target.lowering
    inputs = require_stage(trial.calibrated, "calibrated", "check_target").inputs
    partition = Partition(QuantizedModel(copy.deepcopy(trial.calibrated)), trial.target)
    program = write_program(partition, inputs, format_of(lowering).received)
    before = program.model.SerializeToString(deterministic=True)
    lowered, again = (dict(lowering.lower(program)) for _ in range(2))
    assert program.model.SerializeToString(deterministic=True) == before, f"{lowering!r} changes the model that it is given"
    # Where a lowering writes names of inputs and outputs, the artifact has other bytes than the lowered model.
    written = again if format_of(lowering).names else trial.artifact.files
    for name in lowered.keys() | written.keys() - {REPORT}:
        same = lowered.get(name) == written.get(name) == again.get(name)
        assert same, f"{lowering!r} writes {name!r} with other bytes the second time"


def artifact_loads(trial: Pipeline) -> None:
    """Check that every .onnx file passes the ONNX checker, and every .json file is JSON with finite numbers."""
    import onnx

    for name, content in _files(trial).items():
        try:
            if name.endswith(".onnx"):
                onnx.checker.check_model(onnx.load_from_string(content))
            elif name.endswith(".json"):
                json.loads(content, parse_constant=_refuse)
        except Exception as e:
            raise AssertionError(f"{name!r} cannot be loaded: {str(e).strip().splitlines()[0]}") from e


def artifact_holds_the_constants(trial: Pipeline) -> None:
    """Check that named weights and biases in the artifact's models, codes or values, equal those of the simulation."""
    for name, model in _models(trial).items():
        stored = _initializers(model)
        for node in trial.calibrated.graph.nodes:
            source = node.all_input_nodes[0] if kind_of(node) == "fake_quantize" else None
            if source is None or not is_constant(source):
                continue
            module: Any = trial.calibrated.get_submodule(str(node.target))
            with torch.no_grad():
                value = module(read_attr(trial.calibrated, source))
            if f"{source.target}.codes" in stored and isinstance(module.site.scheme.format, Int):
                scale, zero = (spread(p, value, module.site.scheme) for p in module.qparams()[:2])
                differ = _differ(torch.round(value.double() / scale.double()) + zero, stored[f"{source.target}.codes"])
                found = f"{differ} integers of {source.target!r} in {name!r} are not those of the simulation"
                assert not differ, found
            # Toolchains round float biases again.
            elif str(source.target) in stored and not isinstance(module.site.value, DerivedQParams):
                differ = _differ(value.double(), stored[str(source.target)])
                assert not differ, f"{differ} values of {source.target!r} in {name!r} are not those of the simulation"


def artifact_computes_the_simulation(trial: Pipeline) -> None:
    """Check that each model that ONNX Runtime can run computes the simulation, op by op in float.

    For a model with quantizers, another order of sums changes single codes but not the signal: the error's energy may
    be 1/100 of the signal's.  A float model with qparams in a side file is compared with the simulation without the
    quantizers of activations: 10^-8 of the energy, about a thousand float32 roundings.
    """
    from qfunc.lowering.onnxruntime.session import Session

    for name, content in _files(trial).items():
        proto = _models(trial).get(name)
        if proto is None or any(n.domain not in _runnable(proto) for n in proto.graph.node):
            continue
        quantizes = _quantizes(proto)
        inputs = trial.leaves
        wanted = (
            run_in_evaluation_mode(trial.calibrated, inputs) if quantizes else _without_activations(trial.calibrated, inputs)
        )
        found = Session(content, optimise=False, threads=1).run(inputs)
        for index, (a, b) in enumerate(zip(wanted, found, strict=True)):
            where = f"output {index} of {name!r} is not that of the simulation"
            assert a.shape == b.shape, f"{where}: its shape is {tuple(b.shape)}, not {tuple(a.shape)}"
            error = float((a - torch.from_numpy(b)).double().square().sum())
            bound = (0.01 if quantizes else 1e-8) * float(a.double().square().sum()) + 1e-12
            what = "" if quantizes else " without its activations' quantizers"
            assert error <= bound, f"{where}{what}: an error of energy {error:.3g}, more than {bound:.3g}"


def side_files_name_tensors(trial: Pipeline) -> None:
    """Check that side files name only tensors of the artifact's models.

    Known names are those of the tensors and nodes of the artifact's models and of its constants, alone or before "_".
    If a JSON object has a known key, every key must be known; if a row of a text has a known name, the names of all rows
    must be known.  Each JSON file, and each text with rows, must have a known name if anything is quantized.
    """
    models = _models(trial)
    names = {n for m in models.values() for n in _names(m)} | set(_constants(trial))
    if not models:
        return
    for file, content in _files(trial).items():
        if not file.endswith(SIDE):
            continue
        json_file = file.endswith(".json")
        tables = list(_tables(json.loads(content)) if json_file else [[name for name, _ in text_rows(content.decode())]])
        some = not json_file and not any(tables)
        for table in tables:
            strange = [key for key in table if not _known(key, names)]
            some = some or len(strange) < len(table)
            found = f"{file!r} names {strange[0]!r}, which no model of the artifact has" if strange else ""
            assert not strange or len(strange) == len(table), found
        any_quantized = bool(trial.partition.at_path)
        assert some or not any_quantized, f"{file!r} names no tensor of the artifact's models"


ARTIFACT_LAWS: tuple[Callable[[Pipeline], None], ...] = (
    deploys,
    lowering_is_pure_and_deterministic,
    artifact_loads,
    artifact_holds_the_constants,
    artifact_computes_the_simulation,
    side_files_name_tensors,
    side_files_hold_the_qparams,
)
"""The laws in the order in which check_target checks them."""


class _Weights(fx.Interpreter):
    """Runs a simulation without the quantizers of activations."""

    def run_node(self, n: fx.Node) -> Any:
        if kind_of(n) == "fake_quantize" and not is_constant(n):
            return self.env[n.all_input_nodes[0]]
        return super().run_node(n)


def _without_activations(model: fx.GraphModule, inputs: list[Tensor]) -> list[Tensor]:
    with torch.inference_mode():
        return tensors_of(_Weights(copy.deepcopy(model).eval()).run(*inputs, enable_io_processing=False))


def _files(trial: Pipeline) -> Mapping[str, bytes]:
    return {k: v for k, v in trial.artifact.files.items() if k != REPORT} if trial.artifact is not None else {}


def _models(trial: Pipeline) -> dict[str, Any]:
    import onnx

    return {name: onnx.load_from_string(content) for name, content in _files(trial).items() if name.endswith(".onnx")}


def _runnable(model: Any) -> set[str]:
    return {*_RUNNABLE, *(f.domain for f in model.functions)}


def _quantizes(model: Any) -> bool:
    # MatMulNBits may quantize its input.
    names = [n.op_type for n in model.graph.node]
    return bool(model.functions) or any("Quantize" in n or n.startswith("Q") or n == "MatMulNBits" for n in names)


def _initializers(model: Any) -> dict[str, Any]:
    import onnx

    return {i.name: torch.from_numpy(onnx.numpy_helper.to_array(i).astype("float64")) for i in model.graph.initializer}


def _differ(simulated: Tensor, stored: Tensor) -> int:
    return simulated.numel() if simulated.numel() != stored.numel() else int((simulated.reshape(stored.shape) != stored).sum())


def _names(model: Any) -> Iterator[str]:
    graph = model.graph
    yield from (v.name for v in (*graph.input, *graph.initializer))
    for node in graph.node:
        yield from (node.name, *node.output)


def _constants(trial: Pipeline) -> Iterator[str]:
    return (str(n.target) for n in trial.calibrated.graph.nodes if n.op == "get_attr")


def _tables(value: Any) -> Iterator[list[str]]:
    # The keys of every object, and the "name" entries of every list of objects.
    if isinstance(value, dict):
        yield list(value)
        for one in value.values():
            yield from _tables(one)
    elif isinstance(value, list):
        yield [one["name"] for one in value if isinstance(one, dict) and isinstance(one.get("name"), str)]
        for one in value:
            yield from _tables(one)


def _known(key: str, names: set[str]) -> bool:
    return key in names or any(key[:i] in names for i, c in enumerate(key) if c == "_")


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON number")
