"""quantize: from a float model to its simulation on a target."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import evolve
from torch import fx, nn
from torch.export import ExportedProgram

from qfunc.errors import CalibrationError, SpecError
from qfunc.graph.capture import capture
from qfunc.graph.fold import fold_batch_norm, read_attr
from qfunc.graph.plan import Placed, plan
from qfunc.graph.record import Fact, attach, record_of
from qfunc.graph.site import FakeQuantize
from qfunc.numerics.qparams import Affine
from qfunc.specs import Fixed, Target


def quantize(
    target: Target, example_inputs: tuple[Any, ...] | None = None
) -> Callable[[nn.Module | fx.GraphModule | ExportedProgram], fx.GraphModule]:
    """A transform from a float model to a new GraphModule that computes as if on the target.

    The model is captured, BatchNorms are folded (evaluation semantics), and each tensor that the target's
    rules name passes one FakeQuantize.  Weights are quantized at once; activations wait for
    `qfunc.calibrate`.  The model itself is not changed.

    Args:
        target: The hardware.
        example_inputs: Positional inputs for the torch.export road; None traces symbolically.
    Raises:
        CaptureError: the model cannot be captured on this road.
        SpecError: a selector of the target matches nothing, or the rules contradict each other.

    >>> from qfunc import targets
    >>> net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    >>> [n.name for n in quantize(targets.onnxruntime)(net).graph.nodes if n.op == "call_module"]
    ['quantizers_input_1_output', 'quantizers_0_weight', 'quantizers_0_bias', 'quantizers_1_output']
    """
    if not isinstance(target, Target):
        do = "Pass one of qfunc.targets, or your own specs.Target."
        raise SpecError(where="quantize", found=type(target).__name__, wanted="a Target", do=do)

    def transform(model: nn.Module | fx.GraphModule | ExportedProgram) -> fx.GraphModule:
        record = record_of(model)
        if record is not None and record.stage != "captured":
            do = "Quantize the float model again."
            raise CalibrationError(where="quantize", found=f"a {record.stage} model", wanted="a float model", do=do)
        network = fold_batch_norm(capture(example_inputs)(model))
        for placed in plan(network, target).placed:
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
    module = FakeQuantize(site, tuple(value.shape) if value is not None else ())
    if value is not None:
        module.to(value.device)
    path = f"quantizers.{site.name}" + ("" if site.constant else ".output")
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
    elif value is not None and site.slot != "bias":
        state = site.estimator.update(site.estimator.init(site.scheme, value), value, site.scheme)
        found = site.estimator.finalize(state, site.scheme)
        require_finite(found, site.name, "the weight")
        module.hold(site.function.init(found, value, site.scheme))


def fixed(value: Fixed, module: FakeQuantize) -> Affine:
    """The qparams that the hardware dictates."""
    return Affine(module.scale.new_full(module.scale.shape, value.scale), module.scale.new_full(module.scale.shape, value.zero_point))


def require_finite(qparams: Affine, name: str, what: str) -> None:
    """Refuses qparams that came from NaN or infinite values.

    Raises:
        CalibrationError: names the site.
    """
    if not bool(qparams.scale.isfinite().all() & qparams.zero_point.isfinite().all()):
        raise CalibrationError(
            where=f"site {name!r}",
            found=f"NaN or infinite values in {what}",
            wanted="finite values",
            do="Repair the weights or leave out the batch that overflows; edit.skip leaves the op in float.",
        )
