"""deploy: the artifact that the vendor's toolchain loads."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType
from typing import Any

import torch
from attrs import frozen
from torch import fx
from torch.optim.swa_utils import AveragedModel

from qfunc import specs
from qfunc._collection import paused_collection
from qfunc._transform import Transform
from qfunc.errors import DeployError, a_or_an
from qfunc.execution.artifact_sizes import other_sizes, require_one_size
from qfunc.execution.batches import Binder, infos
from qfunc.execution.output_names import names_of_outputs
from qfunc.execution.varying_sizes import Axes, axes_of, batch_of
from qfunc.files.json_text import SORTED, in_lines
from qfunc.graph.arguments import dict_key, fixed_arguments
from qfunc.graph.copying import on_cpu
from qfunc.graph.record import Record, TensorInfo, record_of
from qfunc.graph.stages import require_stage, require_unwrapped
from qfunc.graph.submodules import quantized_submodules
from qfunc.graph.view import QuantizedModel
from qfunc.lowering.artifact import REPORT, Artifact, as_bytes, digests
from qfunc.lowering.onnx_names import STEM, Names
from qfunc.lowering.program import Program
from qfunc.placement.partition import Partition
from qfunc.placement.shift_limits import require_limits
from qfunc.placement.units import Unit, summary
from qfunc.specs import Target
from qfunc.specs.file_format import format_of
from qfunc.transforms.onnx_check import require_same_function
from qfunc.transforms.validate import describe, require_target, require_target_value


def deploy(
    target: Target,
    example_inputs: tuple[Any, ...] | None = None,
    *,
    name: str = STEM,
    input_names: Sequence[str] = (),
    output_names: Sequence[str] = (),
    dynamic_axes: Mapping[str, Mapping[int, str]] = MappingProxyType({}),
) -> Callable[[fx.GraphModule], Artifact]:
    """Return a transform from a calibrated model to an `Artifact`.

    The artifact has evaluation semantics, stores weights as the integers of the simulation, names tensors as in the
    model, and accepts any batch size unless its format fixes one. Other axes vary if `calibrate` saw several sizes or
    torch.export left them dynamic; a format that fixes sizes needs `example_inputs` then. The ONNX model is checked, and
    run once against the simulation, before the target's own lowering. The model does not change, nothing is written to
    disk, and two deploys give the same bytes.

    Args:
        target: The hardware that the model was quantized for.
        example_inputs: Inputs whose shapes replace those seen in calibration; only the batch varies then.
        name: The stem of the artifact's files: "model" becomes "NAME.onnx" and so on.
        input_names, output_names: Names of all inputs and of all outputs, in the model's order. By default an input has
            the name of its argument, and an output its key or field in the forward's value ("boxes", "aux.0"), or the name
            of its op. In a .tflite they are the names of the signature "serving_default"; a .pte has no such names.
        dynamic_axes: Names of axes whose sizes vary, by input: `{"x": {0: "batch"}}`. The batch varies, and so does each
            axis that had several sizes in calibration or is dynamic in an exported program.
    Raises:
        DeployError: no lowering, an op that cannot be written, an artifact that computes something else, or names
            that the format cannot hold.
        CalibrationError: scales that training has moved beyond a limit of the target.

    >>> import qfunc
    >>> from qfunc import targets
    >>> quantized = qfunc.quantize(targets.onnxruntime)(torch.nn.Linear(3, 2))
    >>> sorted(deploy(targets.onnxruntime)(qfunc.calibrate([torch.ones(1, 3)])(quantized)).files)
    ['model.onnx', 'qfunc.json']
    """

    require_target_value(target, "deploy")
    names = Names(name, input_names, output_names, dynamic_axes)

    @paused_collection()
    def transform(model: fx.GraphModule) -> Artifact:
        require_whole(model, "deploy")
        require_stage(model, "calibrated", "deploy")
        require_target(model, target, "deploy")
        deployed = deployment(model, target, example_inputs)
        return write_artifact(deployed, names.with_own(names_of_outputs(deployed.model)))

    return Transform(
        deploy,
        {
            "target": target,
            "example_inputs": example_inputs,
            "name": name,
            "input_names": input_names,
            "output_names": output_names,
            "dynamic_axes": dynamic_axes,
        },
        transform,
    )


@frozen(eq=False)
class Deployment:
    """A calibrated model as its artifact computes it, the shapes of its inputs, and its partition.

    The model is in evaluation form.  It has no inputs that are fixed, and no optional ones that were not given.
    """

    model: fx.GraphModule
    inputs: tuple[TensorInfo, ...]
    partition: Partition
    axes: Axes | None


def deployment(model: fx.GraphModule, target: Target, example_inputs: tuple[Any, ...] | None = None) -> Deployment:
    """Partition a calibrated model for its artifact; the model is unchanged.

    Raises:
        DeployError: the target has no lowering, or the artifact cannot hold the inputs.
        SpecError: a site whose scales are found at run time.
    """
    if target.lowering is None:
        do = "Give it one: edit.deploy(QdqLowering())."
        raise DeployError(where=f"deploy({target.name})", found="a target without a lowering", wanted="a lowering", do=do)
    record = record_of(model)
    assert record is not None
    model = _without_fixed(on_cpu(model))
    inputs = _inputs(model, record, example_inputs)
    _require_float32(model, inputs)
    axes = axes_of(record, inputs) if example_inputs is None else batch_of(record)
    require_one_size(target, axes, inputs, [str(n.target) for n in _placeholders(model)])
    view = QuantizedModel(_without_options(model, len(inputs)))
    return Deployment(view.evaluation_form, inputs, Partition(view, target), axes)


def checked_program(deployed: Deployment) -> Program:
    """Return a partitioned model as a Q/DQ model, with its quantized tensors and units.

    Raises:
        DeployError: an op that cannot be written, or an ONNX model that computes something else.
        CalibrationError: scales that training has moved beyond a limit of the target.
    """
    # Import here, so that `import qfunc` does not import onnx.
    from qfunc.lowering.onnx.writer import write_program

    partition, inputs = deployed.partition, deployed.inputs
    lowering = partition.target.lowering
    assert lowering is not None
    require_limits(partition)
    program = write_program(partition, inputs, format_of(lowering).received, deployed.axes)
    names = {node.name: name for node, name in partition.names.items()}
    for shapes in (inputs, *other_sizes(inputs, deployed.axes)):
        require_same_function(program.model, program.tensors, deployed.model, shapes, names)
    return program


def write_artifact(deployed: Deployment, names: Names = Names()) -> Artifact:
    """Write the artifact of a partitioned model, with the given names.

    Raises:
        DeployError: an op that cannot be written, or an artifact that computes something else.
        CalibrationError: scales that training has moved beyond a limit of the target.
    """
    partition, inputs = deployed.partition, deployed.inputs
    lowering = partition.target.lowering
    assert lowering is not None
    program = checked_program(deployed)
    program = names.of_files(program) if format_of(lowering).names else names.apply(program)
    files = names.finish(_files(partition.target, lowering.lower(program)), lowering)
    report = report_of(partition.target, inputs, program.tensors, partition.units) | {"files": digests(files)}
    return Artifact({**files, REPORT: (in_lines(report, SORTED) + "\n").encode()})


def _files(target: Target, lowered: Any) -> Mapping[str, bytes]:
    if isinstance(lowered, Mapping):
        return as_bytes(lowered)
    where, wanted = f"deploy({target.name}), files of the lowering", "a mapping from file name to bytes"
    raise DeployError(where=where, found=describe(lowered), wanted=wanted, do="Return it from lower(program).")


def require_whole(model: Any, step: str) -> None:
    """Raise if a model is an outer module of quantized submodules.

    Raises:
        DeployError: it is one, or an AveragedModel.  CalibrationError: a compiled or data parallel model.
    """
    require_unwrapped(model, "calibrated", step)
    if isinstance(model, AveragedModel):
        do = f"Pass its .module: qfunc.{step}(...)(averaged.module)."
        raise DeployError(where=step, found="an AveragedModel", wanted="the calibrated model inside", do=do)
    inside = quantized_submodules(model)
    if inside and "" not in inside:
        path = next(iter(inside))
        raise DeployError(
            where=step,
            found=f"{a_or_an(type(model))} whose submodules are quantized: {', '.join(map(repr, inside))}",
            wanted="one quantized model",
            do=f"Take them one by one: qfunc.{step}(...)(model.get_submodule({path!r})).",
        )


def _inputs(model: fx.GraphModule, record: Record, example_inputs: Any) -> tuple[TensorInfo, ...]:
    """Return the shapes of the inputs.

    Raises:
        DeployError: there are none, or the artifact's format cannot hold an input.
    """
    placeholders = _placeholders(model)
    given = record.inputs if example_inputs is None else infos(Binder(model)(example_inputs, "deploy"))
    needed = [n.name for n in placeholders if not n.args]
    if not given and needed:
        do = "Pass deploy(target, example_inputs=(...,)), or calibrate the model."
        raise DeployError(where="deploy", found="no shapes of the inputs", wanted=f"the shapes of {', '.join(needed)}", do=do)
    if (keyed := [n.name for n in placeholders if dict_key(n) is not None]) or not len(needed) <= len(given) <= len(
        placeholders
    ):
        do = "Give quantize the example_inputs, so that the model is captured with one input for each tensor."
        found = f"a dict, {keyed[0]!r}" if keyed else f"{len(given)} tensors for {', '.join(needed)}"
        raise DeployError(where="deploy, inputs", found=found, wanted="one tensor for each input", do=do)
    return given


def _require_float32(model: fx.GraphModule, inputs: tuple[TensorInfo, ...]) -> None:
    # The scales are float32, and so are the kernels: in another dtype the artifact would compute something else.
    names = [f"input {str(n.target)!r}" for n in _placeholders(model)]
    dtypes = {name: i.dtype.removeprefix("torch.") for name, i in zip(names, inputs, strict=False)}
    dtypes |= {f"tensor {name!r}": str(p.dtype).removeprefix("torch.") for name, p in model.named_parameters()}
    for place, dtype in dtypes.items():
        if getattr(torch, dtype).is_floating_point and dtype != "float32":
            do = "Quantize model.float() and calibrate it with float32 batches."
            raise DeployError(where=f"deploy, {place}", found=dtype, wanted="float32", do=do)


def _placeholders(model: fx.GraphModule) -> list[fx.Node]:
    return [n for n in model.graph.nodes if n.op == "placeholder"]


def _without_fixed(model: fx.GraphModule) -> fx.GraphModule:
    # The artifact has no inputs for what example_inputs fixed to None or a number.
    unused = [n.name for n in _placeholders(model) if n.target in fixed_arguments(model) and not n.users]
    if not unused:
        return model
    model = copy.deepcopy(model)
    for node in [n for n in _placeholders(model) if n.name in unused]:
        model.graph.erase_node(node)
    return model


def _without_options(model: fx.GraphModule, inputs: int) -> fx.GraphModule:
    # Optional inputs that were not given have their defaults: def forward(self, x, gain=1.0).
    if len(_placeholders(model)) == inputs:
        return model
    model = copy.deepcopy(model)
    for node in _placeholders(model)[inputs:]:

        def bound(n: fx.Node, node: fx.Node = node) -> Any:
            return node.args[0] if n is node else n

        for user in list(node.users):
            user.args = tuple(fx.map_arg(a, bound) for a in user.args)
            user.kwargs = {k: fx.map_arg(a, bound) for k, a in user.kwargs.items()}
        model.graph.erase_node(node)
    model.recompile()
    return model


def report_of(target: Target, inputs: tuple[TensorInfo, ...], tensors: Any, units: tuple[Unit, ...]) -> dict[str, Any]:
    """Return the report of a deployment, without the digests of its files."""
    from qfunc.lowering.quantized_tensor import plain

    return {
        "versions": {name: _version(name) for name in ("qfunc-torch", "torch", "onnx", "onnxruntime")},
        "target": json.loads(specs.to_json(target)),
        "inputs": [{"shape": list(i.shape), "dtype": i.dtype} for i in inputs],
        "tensors": [plain(t) for t in tensors],
        "units": summary(units),
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"
