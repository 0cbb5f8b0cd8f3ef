"""quantize: from a float model to its simulation on a target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from attrs import evolve
from torch import Tensor, fx, nn
from torch.export import ExportedProgram

from qfunc.errors import CalibrationError, SpecError
from qfunc.graph.capture import capture, unwrapped
from qfunc.graph.fold import fold_batch_norm, read_attr
from qfunc.graph.leaves import Leaves, present
from qfunc.graph.legality import require_legal
from qfunc.graph.network import kind_of_model
from qfunc.graph.plan import Placed, plan
from qfunc.graph.record import Fact, attach, record_of
from qfunc.graph.site import FakeQuantize, seat_path
from qfunc.numerics.qparams import Affine
from qfunc.specs import Derived, Fixed, Target


def quantize(
    target: Target,
    example_inputs: tuple[Any, ...] | None = None,
    *,
    leaves: Leaves = (),
    concrete_args: Mapping[str, Any] | None = None,
    tracer: fx.Tracer | type[fx.Tracer] | None = None,
) -> Callable[[nn.Module | fx.GraphModule | ExportedProgram], fx.GraphModule]:
    """A transform from a float model to a new GraphModule that computes as if on the target.

    The model is captured, BatchNorms are folded (evaluation semantics), and each tensor that the target's
    rules name passes one FakeQuantize.  Weights are quantized at once; activations wait for
    `qfunc.calibrate`.  The model itself is not changed.  The result keeps copies of the model's attributes,
    and its methods and properties, bound to the result (`qfunc.capture` says how).

    Args:
        target: The hardware.
        example_inputs: Positional inputs for the torch.export road; None traces symbolically.
        leaves: Classes of modules that stay one op, or their names: float ops, unless the target knows them
            (`Target.ops`).  For the fx road.
        concrete_args: Values of arguments of `forward` by name, which are no inputs any more.
        tracer: A `torch.fx.Tracer` of your own, a class or an instance.  For the fx road.
    Raises:
        CaptureError: the model cannot be captured on this road.
        SpecError: a selector of the target matches nothing, the rules contradict each other, or the hardware
            refuses an op or a scheme (`Target.legality`).
        CalibrationError: the model is quantized already, or a weight is NaN or infinite.

    >>> from qfunc import targets
    >>> net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    >>> [n.name for n in quantize(targets.onnxruntime)(net).graph.nodes if n.op == "call_module"]
    ['quantizers_input_output', 'quantizers_0_weight', 'quantizers_0_bias', 'quantizers_1_output']
    """
    if not isinstance(target, Target):
        do = "Pass one of qfunc.targets, or your own specs.Target."
        raise SpecError(where="quantize", found=type(target).__name__, wanted="a Target", do=do)

    def transform(model: nn.Module | fx.GraphModule | ExportedProgram) -> fx.GraphModule:
        record = record_of(model)
        if record is not None and record.target is not None:
            do = "Quantize the float model that it came from."
            raise CalibrationError(where="quantize", found=kind_of_model(record), wanted="a float model", do=do)
        # Under the caller's inference_mode the copies would be tensors that no training could use.
        with torch.inference_mode(False):
            return placed_on(model)

    def placed_on(model: nn.Module | fx.GraphModule | ExportedProgram) -> fx.GraphModule:
        own: tuple[str, ...] = ()
        if example_inputs is None and not isinstance(model, ExportedProgram):
            own = present((spelling for op in target.ops for spelling in op.spellings), unwrapped(model))
        given = (leaves,) if isinstance(leaves, str | type) else tuple(leaves)
        captured = capture(example_inputs, leaves=(*given, *own), concrete_args=concrete_args, tracer=tracer)
        network = fold_batch_norm(captured(model), target)
        made = plan(network, target)
        require_legal(made, target)
        for placed in made.placed:
            _insert(network, placed)
        network.graph.lint()
        network.recompile()
        held = record_of(network)
        assert held is not None
        return attach(network, evolve(held, target=target, stage="quantized"))

    return transform


def _insert(network: fx.GraphModule, placed: Placed) -> None:
    site, tensor = placed.site, placed.tensor
    value = read_attr(network, tensor).detach() if tensor.op == "get_attr" else None
    if value is not None:
        require_finite(value, site.name, "the model's tensors")
    module = FakeQuantize(site, torch.zeros((), device=_device(network)) if value is None else value)
    path = seat_path(site)
    network.add_submodule(path, module)
    with network.graph.inserting_after(tensor):
        node = network.graph.call_module(path, (tensor,))
    for reader in placed.readers:
        reader.replace_input_with(tensor, node)
    record = record_of(network)
    assert record is not None
    source = record.facts.get(tensor.name, Fact(site.name))
    attach(network, evolve(record, facts={**record.facts, node.name: evolve(source, path=site.name)}))
    if isinstance(site.value, Fixed):
        module.hold(fixed(site.value, module))
    elif value is not None and not isinstance(site.value, Derived):
        state = site.estimator.update(site.estimator.init(site.scheme, value), value, site.scheme)
        module.hold(site.estimator.finalize(state, site.scheme), value)


def _device(network: fx.GraphModule) -> torch.device:
    first = next((t for t in (*network.parameters(), *network.buffers()) if t.is_floating_point()), None)
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
