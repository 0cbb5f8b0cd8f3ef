"""quantize: from a float model to its simulation on a target."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any, TypeVar, cast, overload

import torch
from attrs import evolve, frozen
from torch import Tensor, fx, nn
from torch.export import ExportedProgram

from qfunc.errors import CalibrationError
from qfunc.graph.attention import prepared
from qfunc.graph.batch_norm import folded_weight, vanishes
from qfunc.graph.capture import capture
from qfunc.graph.fake_quantize import FakeQuantize
from qfunc.graph.fold import fold_batch_norm, read_attr
from qfunc.graph.leaves import Leaves, present, require_inputs, require_leaves
from qfunc.graph.legality import require_legal
from qfunc.graph.parts import rebuilt
from qfunc.graph.plan import Placed, Plan, plans
from qfunc.graph.record import Fact, attach, record_of
from qfunc.graph.shared import connect
from qfunc.graph.site import Site, seat_path
from qfunc.graph.states import tell
from qfunc.graph.unfold import Norm, unfold
from qfunc.graph.unheard import require_heard
from qfunc.graph.wrappers import unwrapped
from qfunc.numerics.qparams import Affine
from qfunc.specs import Derived, Fixed, Target
from qfunc.transforms import places
from qfunc.transforms.asked import require_a_target
from qfunc.transforms.norms import BatchStatistics, Folded, require_norms
from qfunc.transforms.places import require_float_model, submodules
from qfunc.transforms.within import around, within

Outer = TypeVar("Outer", bound=nn.Module)
Model = nn.Module | fx.GraphModule | ExportedProgram
Norms = Folded | BatchStatistics


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
    require_a_target(target, "quantize")
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
                own = present(spellings, None if isinstance(model, ExportedProgram) else unwrapped(model))
                road = capture(example_inputs, leaves=(*given, *own), concrete_args=concrete_args, tracer=tracer)
                made = _simulations({"": road(model)}, target, norms)
                places.require_sites(model, made, target)
                return made[""]
            outer = unwrapped(model)
            chosen = submodules(outer, names)
            inputs = places.inputs_of(outer, chosen, example_inputs)
            captured = {}
            for path, part in chosen.items():
                call = inputs.get(path, places.Call())
                road = capture(
                    call.inputs,
                    leaves=(*places.leaves_of(part, given, chosen), *present(spellings, part)),
                    concrete_args={**call.left_out, **places.arguments_of(part, concrete_args or {}, chosen)},
                    tracer=tracer,
                )
                captured[path] = within(path, road, part, around(outer, path))
            made = _simulations(captured, target, norms)
            places.require_sites(outer, made, target)
            return rebuilt(outer, made, f"quantize, at={at!r}")

    return transform


def _simulations(captured: Mapping[str, fx.GraphModule], target: Target, norms: Norms) -> dict[str, fx.GraphModule]:
    placed = placements(captured, target, norms)
    require_heard(target, [p.plan for p in placed.values()], [p.before for p in placed.values()])
    return {path: simulation(each, target) for path, each in placed.items()}


@frozen(eq=False)
class Placement:
    """A folded network and what a target places in it; the network before, and its BatchNorms that are to train."""

    network: fx.GraphModule
    plan: Plan
    before: fx.GraphModule
    norms: tuple[Norm, ...]


def placements(captured: Mapping[str, fx.GraphModule], target: Target, norms: Norms) -> dict[str, Placement]:
    """Captured models, which are parts of one, folded, each with what the target wants to place in it."""
    before = {path: prepared(network, target) for path, network in captured.items()}
    folded = {path: fold_batch_norm(network, target) for path, network in before.items()}
    made = dict(zip(folded, plans(list(folded.values()), target), strict=True))
    return {path: Placement(folded[path], made[path], before[path], norms.trained(folded[path], before[path])) for path in made}


def simulation(placement: Placement, target: Target) -> fx.GraphModule:
    """The network of a placement with its quantizers; the placement's own is changed.

    Raises:
        SpecError: the hardware refuses an op or a scheme.
        CalibrationError: a constant is NaN or infinite.
    """
    network = placement.network
    require_legal(placement.plan, target)
    for placed in placement.plan.placed:
        _insert(network, placed)
    unfold(network, placement.before, placement.norms)
    for node in network.graph.nodes:
        if node.op == "call_module" and len(node.args) == 3 and vanishes(network.get_submodule(str(node.args[1].target))):
            _estimate_as_trained(network, node)
    connect(network)
    network.graph.lint()
    network.recompile()
    network.register_state_dict_post_hook(tell)  # type: ignore[no-untyped-call]
    held = record_of(network)
    assert held is not None
    return attach(network, evolve(held, target=target, stage="quantized"))


def _insert(network: fx.GraphModule, placed: Placed) -> None:
    site, tensor = placed.site, placed.tensor
    value = read_attr(network, tensor).detach() if tensor.op == "get_attr" else None
    if value is not None:
        require_finite(value, site.name, "the model's tensors")
    module = FakeQuantize(site, torch.zeros((), device=_device(network)) if value is None else value)
    record = record_of(network)
    assert record is not None
    own = record.own(site.name)
    path = seat_path(own, site.constant)
    network.add_submodule(path, module)
    with network.graph.inserting_after(tensor):
        node = network.graph.call_module(path, (tensor,))
    for reader in placed.readers:
        reader.replace_input_with(tensor, node)
    source = record.facts.get(tensor.name, Fact(own))
    attach(network, evolve(record, facts={**record.facts, node.name: evolve(source, path=own)}))
    if isinstance(site.value, Fixed):
        module.hold(fixed(site.value, module))
    elif value is not None and not isinstance(site.value, Derived):
        module.hold(_estimated(site, value), value)


def _estimate_as_trained(network: fx.GraphModule, node: fx.Node) -> None:
    # Where gamma is all but 0, so is the folded weight: the scale is that of the weight as training sees it.
    module: Any = network.get_submodule(str(node.target))
    site: Site = module.site
    weight, norm, groups = cast(tuple[fx.Node, fx.Node, int], node.args)
    held, trains = read_attr(network, weight).detach(), copy.copy(network.get_submodule(str(norm.target))).train()
    value = folded_weight(held, trains, groups).detach()
    module.hold(_estimated(site, value), value)


def _estimated(site: Site, value: Tensor) -> Affine:
    state = site.estimator.update(site.estimator.init(site.scheme, value), value, site.scheme)
    found: Affine = site.estimator.finalize(state, site.scheme)
    return found


def _device(network: fx.GraphModule) -> torch.device:
    first = next((t for t in chain(network.parameters(), network.buffers()) if t.is_floating_point()), None)
    return torch.device("cpu") if first is None else first.device


def fixed(value: Fixed, module: FakeQuantize) -> Affine:
    """The qparams that the hardware dictates."""
    scale = torch.full(module.held, float(value.scale))
    return Affine(scale, torch.full_like(scale, value.zero_point))


def require_finite(value: Tensor, name: str, what: str) -> None:
    """Refuses NaN and infinite values, in one pass that allocates nothing.

    Raises:
        CalibrationError: names the site.
    """
    ends = torch.stack(torch.aminmax(value.detach())) if value.numel() and value.is_floating_point() else torch.zeros(1)
    if not bool(ends.isfinite().all()):
        raise CalibrationError(
            where=f"site {name!r}",
            found=f"{'NaN' if bool(ends.isnan().any()) else 'infinite'} values in {what}",
            wanted="finite values",
            do="Repair the weights or leave out the batch; edit.skip leaves the op in float.",
        )
