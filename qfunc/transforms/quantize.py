"""quantize: from a float model to its simulation on a target."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, overload

import torch
from torch import fx, nn
from torch.export import ExportedProgram

from qfunc._collection import paused_collection
from qfunc._transform import Transform
from qfunc.analysis.integer_share import warn_of_unmet_formats
from qfunc.execution.feed import Observe, feed_all
from qfunc.frontend.capture import capture
from qfunc.frontend.options import Leaves, present_arguments, require_inputs, require_leaves
from qfunc.graph.interpreter import run_with_sizes
from qfunc.graph.stages import unwrap
from qfunc.graph.submodules import require_submodules, with_submodules
from qfunc.graph.view import QuantizedModel
from qfunc.placement.legality.sizes import limits_sizes, require_sizes
from qfunc.reading.read import opened
from qfunc.specs import Target
from qfunc.transforms.batch_norm import FoldBatchNorm, require_batch_norm, warn_of_folded
from qfunc.transforms.insert_quantizers import BatchNormMode, _simulations
from qfunc.transforms.submodules import (
    SubmoduleCall,
    arguments_of,
    capture_submodule,
    enclosing_classes,
    inputs_of,
    leaves_of,
    require_names,
    require_sites,
    select_submodules,
)
from qfunc.transforms.validate import require_float_model, require_target_value
from qfunc.transforms.zero_weights import warn_of_zero_weights

Outer = TypeVar("Outer", bound=nn.Module)


Model = nn.Module | fx.GraphModule | ExportedProgram | str | os.PathLike[str]


@overload
def quantize(
    target: Target,
    example_inputs: tuple[Any, ...] | None = None,
    *,
    submodules: None = None,
    leaves: Leaves = (),
    concrete_args: Mapping[str, Any] | None = None,
    tracer: fx.Tracer | type[fx.Tracer] | None = None,
    batch_norm: BatchNormMode = FoldBatchNorm(),
) -> Callable[[Model], fx.GraphModule]: ...


@overload
def quantize(
    target: Target,
    example_inputs: tuple[Any, ...] | None = None,
    *,
    submodules: str | tuple[str, ...],
    leaves: Leaves = (),
    concrete_args: Mapping[str, Any] | None = None,
    tracer: fx.Tracer | type[fx.Tracer] | None = None,
    batch_norm: BatchNormMode = FoldBatchNorm(),
) -> Callable[[Outer], Outer]: ...


def quantize(
    target: Target,
    example_inputs: tuple[Any, ...] | None = None,
    *,
    submodules: str | tuple[str, ...] | None = None,
    leaves: Leaves = (),
    concrete_args: Mapping[str, Any] | None = None,
    tracer: fx.Tracer | type[fx.Tracer] | None = None,
    batch_norm: BatchNormMode = FoldBatchNorm(),
) -> Callable[[Any], Any]:
    """Return a transform from a float model to a new GraphModule that computes as if on the target.

    The path of a float ONNX file stands for the model that `qfunc.read` returns.
    The model is captured, its BatchNorms are folded (unless `batch_norm` trains them), and a FakeQuantize is inserted
    after each tensor that the target's rules select. Weights get their qparams at once, activations by
    `qfunc.calibrate`. The model itself does not change. The result has copies of the model's attributes, and its methods
    and properties, bound to the result (see `qfunc.capture`). Its parameters are copies too: an optimizer with those of
    the model trains nothing of the result.

    A model that cannot be captured as a whole (a detector, a generation loop) can be quantized in parts, by some of its
    `submodules`. The result is a copy of the model, of its own class, in which these submodules are quantized and the
    rest is float. Selectors and reports name tensors by their paths in the whole model. Shared tensors stay shared.
    `calibrate`, `compare`, `sensitivity`, `correct_bias`, `explain`, `bypass`, `emulate` and `verify` take the result
    and run the model's own forward. `deploy` and `save` take the submodules: `qfunc.deploy(target)(model.backbone)`.

    Args:
        target: The hardware.
        example_inputs: Positional inputs of the model, for capture by torch.export; None for symbolic tracing.
        batch_norm: `FoldBatchNorm()` folds BatchNorms for good; `TrainBatchNorm()` trains them (QAT).
        submodules: Paths of submodules ("backbone"), or patterns ("layers.*": the outermost that match).
        leaves: Classes of modules that stay one op, or their names. They are float ops, unless the target's `ops` define
            them. Only for symbolic tracing.
        concrete_args: Values of arguments of `forward` by name. These arguments are no longer inputs.
        tracer: Your own `torch.fx.Tracer`, a class or an instance. Only for symbolic tracing.
    Raises:
        CaptureError: the model cannot be captured in this way.
        SpecError: a selector of the target matches nothing, the rules contradict each other, the hardware refuses an
            op, a scheme or sizes (`Target.legality`), or `submodules` matches none, or one without anything to quantize.
        CalibrationError: the model is quantized already, or a weight is NaN or infinite.
    Warns:
        UserWarning: BatchNorms in training mode were folded; or an edit gives an op formats that no integer kernel of the
            target takes, so that it runs in float; or weights that train are 0 everywhere.

    >>> from qfunc import targets
    >>> net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    >>> [n.name for n in quantize(targets.onnxruntime)(net).graph.nodes if n.op == "call_module"]
    ['quantizers_input_output', 'quantizers_0_weight', 'quantizers_0_bias', 'quantizers_1_output']
    >>> type(quantize(targets.onnxruntime, submodules="0")(net)).__name__
    'Sequential'
    """
    require_target_value(target, "quantize")
    require_inputs(example_inputs, "quantize")
    require_batch_norm(batch_norm)
    names = None if submodules is None else require_names(submodules)
    leaf_classes = require_leaves(leaves)
    simulate = simulation_of(target, example_inputs, names, leaf_classes, concrete_args, tracer, batch_norm)

    def transform(model: Any) -> Any:
        with paused_collection():
            simulated = simulate(model)
            if isinstance(batch_norm, FoldBatchNorm):
                warn_of_folded(model, simulated)
            warn_of_unmet_formats(simulated, target)
            warn_of_zero_weights(simulated)
        return simulated

    return Transform(
        quantize,
        {
            "target": target,
            "example_inputs": example_inputs,
            "submodules": submodules,
            "leaves": leaves,
            "concrete_args": concrete_args,
            "tracer": tracer,
            "batch_norm": batch_norm,
        },
        transform,
    )


def simulation_of(
    target: Target,
    example_inputs: tuple[Any, ...] | None,
    names: tuple[str, ...] | None,
    leaf_classes: tuple[str | type[nn.Module], ...],
    concrete_args: Mapping[str, Any] | None,
    tracer: fx.Tracer | type[fx.Tracer] | None,
    batch_norm: BatchNormMode,
) -> Callable[[Any], Any]:
    """Return the transform of `quantize` for valid arguments; it does not warn."""

    def transform(model: Any) -> Any:
        # Under the caller's inference_mode the copies would be tensors that no training could use.
        with torch.inference_mode(False):
            model = opened(model)
            require_float_model(model, whole=names is None)
            spellings = [] if example_inputs is not None else [spelling for op in target.ops for spelling in op.spellings]
            if names is None:
                user_ops = present_arguments(spellings, None if isinstance(model, ExportedProgram) else unwrap(model))
                kept = (*leaf_classes, *user_ops)
                to_graph = capture(example_inputs, leaves=kept, concrete_args=concrete_args, tracer=tracer)
                simulations = _simulations({"": to_graph(model)}, target, batch_norm)
                require_sites(model, simulations, target)
                _require_sizes(simulations[""], target, _examples(model, example_inputs))
                return simulations[""]
            outer = unwrap(model)
            chosen = select_submodules(outer, names)
            inputs = inputs_of(outer, chosen, example_inputs)
            captured = {}
            for path, part in chosen.items():
                call = inputs.get(path, SubmoduleCall())
                to_graph = capture(
                    call.inputs,
                    leaves=(*leaves_of(part, leaf_classes, chosen), *present_arguments(spellings, part)),
                    concrete_args={**call.omitted, **arguments_of(part, concrete_args or {}, chosen)},
                    tracer=tracer,
                )
                captured[path] = capture_submodule(path, to_graph, part, enclosing_classes(outer, path))
            simulations = _simulations(captured, target, batch_norm)
            require_sites(outer, simulations, target)
            given = names[0] if len(names) == 1 else names
            whole = with_submodules(outer, simulations, f"quantize, submodules={given!r}")
            _require_sizes(whole, target, example_inputs)
            return whole

    return transform


def _examples(model: Any, example_inputs: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
    # The example inputs of a program are those of its export; keyword arguments have no order.
    if example_inputs is None and isinstance(model, ExportedProgram) and model.example_inputs is not None:
        args, kwargs = model.example_inputs
        return None if kwargs else tuple(args)
    return example_inputs


def _require_sizes(model: nn.Module, target: Target, example_inputs: tuple[Any, ...] | None) -> None:
    # Refuse what the chip refuses because of its sizes, if the example inputs give them; else calibrate does.
    if example_inputs is None or not limits_sizes(target):
        return

    def check(part: fx.GraphModule) -> Observe:
        network = QuantizedModel(part).float_network

        def read(arguments: tuple[Any, ...], number: int) -> Any:
            value, sizes = run_with_sizes(network, arguments, "quantize, example_inputs")
            require_sizes(network, target, sizes)
            return value

        return read

    checks = {path: check(part) for path, part in require_submodules(model, "quantized", "quantize").items()}
    with torch.no_grad():
        feed_all(model, checks, [example_inputs], "quantize", progress=False)
