"""quantize: from a float model to its simulation on a target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, overload

import torch
from torch import fx, nn
from torch.export import ExportedProgram

from qfunc.frontend.capture import capture
from qfunc.frontend.options import Leaves, present_arguments, require_inputs, require_leaves
from qfunc.graph.submodules import with_submodules
from qfunc.graph.wrappers import unwrap
from qfunc.specs import Target
from qfunc.transforms import submodules as places
from qfunc.transforms.batch_norm import Folded, require_norms
from qfunc.transforms.insert_quantizers import Norms, _simulations
from qfunc.transforms.submodules import capture_submodule, enclosing_classes, require_float_model, submodules
from qfunc.transforms.validate import require_target_value

Outer = TypeVar("Outer", bound=nn.Module)


Model = nn.Module | fx.GraphModule | ExportedProgram


@overload
def quantize(
    target: Target,
    example_inputs: tuple[Any, ...] | None = None,
    *,
    at: None = None,
    leaves: Leaves = (),
    concrete_args: Mapping[str, Any] | None = None,
    tracer: fx.Tracer | type[fx.Tracer] | None = None,
    norms: Norms = Folded(),
) -> Callable[[Model], fx.GraphModule]: ...


@overload
def quantize(
    target: Target,
    example_inputs: tuple[Any, ...] | None = None,
    *,
    at: str | tuple[str, ...],
    leaves: Leaves = (),
    concrete_args: Mapping[str, Any] | None = None,
    tracer: fx.Tracer | type[fx.Tracer] | None = None,
    norms: Norms = Folded(),
) -> Callable[[Outer], Outer]: ...


def quantize(
    target: Target,
    example_inputs: tuple[Any, ...] | None = None,
    *,
    at: str | tuple[str, ...] | None = None,
    leaves: Leaves = (),
    concrete_args: Mapping[str, Any] | None = None,
    tracer: fx.Tracer | type[fx.Tracer] | None = None,
    norms: Norms = Folded(),
) -> Callable[[Any], Any]:
    """A transform from a float model to a new GraphModule that computes as if on the target.

    The model is captured, BatchNorms are folded (evaluation semantics, unless `norms` says that they train), and each
    tensor that the target's rules name passes one FakeQuantize.  Weights are quantized at once; activations wait for
    `qfunc.calibrate`.  The model itself is not changed.  The result keeps copies of the model's attributes, and its
    methods and properties, bound to the result (`qfunc.capture` says how).

    A model that cannot be captured as a whole (a detector, a loop that generates) is quantized `at` some of its
    submodules: the result is a copy of it, of its own class, in which these are quantized and the rest is float.
    Selectors and reports name tensors by their paths in the whole model.  Tensors that are shared stay shared.
    `calibrate`, `compare`, `sensitivity`, `correct_bias`, `explain`, `bypass`, `emulate` and `verify` take the result
    and run the model's own forward; `deploy` and `save` take the submodules, `qfunc.deploy(target)(model.backbone)`.

    Args:
        target: The hardware.
        example_inputs: Positional inputs of the model for the torch.export road; None traces symbolically.
        norms: `Folded()`: BatchNorms are folded for good; or `BatchStatistics()`: they train (QAT).
        at: Paths of submodules ("backbone"), or patterns ("layers.*": the outermost that match).
        leaves: Classes of modules that stay one op, or their names: float ops, unless the target knows them
            (`Target.ops`).  For the fx road.
        concrete_args: Values of arguments of `forward` by name, which are no inputs any more.
        tracer: A `torch.fx.Tracer` of your own, a class or an instance.  For the fx road.
    Raises:
        CaptureError: the model cannot be captured on this road.
        SpecError: a selector of the target matches nothing, the rules contradict each other, or the hardware
            refuses an op or a scheme (`Target.legality`); `at` names no submodule, or one without anything to quantize.
        CalibrationError: the model is quantized already, or a weight is NaN or infinite.

    >>> from qfunc import targets
    >>> net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    >>> [n.name for n in quantize(targets.onnxruntime)(net).graph.nodes if n.op == "call_module"]
    ['quantizers_input_output', 'quantizers_0_weight', 'quantizers_0_bias', 'quantizers_1_output']
    >>> type(quantize(targets.onnxruntime, at="0")(net)).__name__
    'Sequential'
    """
    require_target_value(target, "quantize")
    require_inputs(example_inputs, "quantize")
    require_norms(norms)
    names = None if at is None else places.require_names(at)
    given = require_leaves(leaves)

    def transform(model: Any) -> Any:
        # Under the caller's inference_mode the copies would be tensors that no training could use.
        with torch.inference_mode(False):
            require_float_model(model, whole=names is None)
            spellings = [] if example_inputs is not None else [spelling for op in target.ops for spelling in op.spellings]
            if names is None:
                own = present_arguments(spellings, None if isinstance(model, ExportedProgram) else unwrap(model))
                road = capture(example_inputs, leaves=(*given, *own), concrete_args=concrete_args, tracer=tracer)
                made = _simulations({"": road(model)}, target, norms)
                places.require_sites(model, made, target)
                return made[""]
            outer = unwrap(model)
            chosen = submodules(outer, names)
            inputs = places.inputs_of(outer, chosen, example_inputs)
            captured = {}
            for path, part in chosen.items():
                call = inputs.get(path, places.Call())
                road = capture(
                    call.inputs,
                    leaves=(*places.leaves_of(part, given, chosen), *present_arguments(spellings, part)),
                    concrete_args={**call.left_out, **places.arguments_of(part, concrete_args or {}, chosen)},
                    tracer=tracer,
                )
                captured[path] = capture_submodule(path, road, part, enclosing_classes(outer, path))
            made = _simulations(captured, target, norms)
            places.require_sites(outer, made, target)
            return with_submodules(outer, made, f"quantize, at={at!r}")

    return transform
