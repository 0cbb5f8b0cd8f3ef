"""Laws of a target's placement and qparams on one model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from qfunc.errors import SpecError
from qfunc.frontend.capture import capture
from qfunc.frontend.options import present_arguments
from qfunc.graph.constants import read_attr
from qfunc.graph.data_movement import commutes, only_moves_codes
from qfunc.graph.module import in_evaluation_mode
from qfunc.graph.selectors import matches
from qfunc.graph.sites import QuantizerNode, quantizer_nodes
from qfunc.numerics.affine import dequantize
from qfunc.numerics.qparams import Affine
from qfunc.ops.definition import Trait
from qfunc.passes.fold_batch_norm import fold_batch_norms
from qfunc.placement.encoding import Encoding
from qfunc.placement.legality.constraints import violations
from qfunc.placement.place import plan
from qfunc.placement.shift_limits import bounds
from qfunc.placement.units import Unit
from qfunc.specs import DerivedQParams, FixedPoint, FixedQParams, FloatMultiplier, Int, Levels, PerChannel, PerTensor
from qfunc.testing.laws.qparams import feasible
from qfunc.testing.pipeline import Pipeline


def legality_accepts_the_rules(trial: Pipeline) -> None:
    """Check that `legality` and the lowering accept the schemes that the rules place, which do not depend on scales."""
    if trial.base is not None:
        return
    own = tuple(spelling for op in trial.target.ops for spelling in op.spellings)
    try:
        network = capture(leaves=present_arguments(own, trial.model))(trial.model)
        placement = plan(fold_batch_norms(network, trial.target), trial.target)
    except SpecError:
        return  # another law covers contradictory rules
    for breach in violations(placement, trial.target):
        # Without a slot, the op itself is refused, whatever the rules.
        assert not breach.slot, f"{breach.place}: the rules put {breach.found} there, wanted {breach.wanted}"


def quantizes(trial: Pipeline) -> None:
    """Check that the rules place the model's tensors without contradiction."""
    _ = trial.quantized


def calibrates(trial: Pipeline) -> None:
    """Check that the estimators give qparams to every site."""
    _ = trial.estimated


def scales_are_allowed(trial: Pipeline) -> None:
    """Check that schemes allow their qparams: scales finite, above 0, in bounds, powers of two if required; codes."""
    for quantizer in _static(trial.estimated) if trial.rescaling is None else ():
        module = quantizer.module
        if not isinstance(module.site.value, DerivedQParams):
            feasible(module.qparams(), module.site.scheme, module.like, f"site {module.site.name!r}")


def limits_hold(trial: Pipeline) -> None:
    """Check that every limit of positions holds after calibration."""
    partition, limited = trial.partition, trial.target.limits
    encodings = {p: c for p, c in partition.at_path.items() if c.qparams.scale.numel() == 1} if limited else {}
    positions = {p: -float(torch.log2(c.qparams.scale)) for p, c in encodings.items()}
    for bound in bounds(partition, {p: p for p in encodings}):
        found = f"{bound.value(positions):g} at unit {bound.unit!r}, and {bound.limit!r}"
        assert not bound.excess(positions), found


def dictated_qparams_are_exact(trial: Pipeline) -> None:
    """Check that qparams dictated by the hardware are exact."""
    for quantizer in _static(trial.calibrated):
        value, found = quantizer.module.site.value, quantizer.module.qparams()
        if isinstance(value, FixedQParams) and not (value.smaller and bool(found.scale < torch.tensor(value.scale))):
            exact = found.scale == torch.tensor(value.scale) and found.zero_point == value.zero_point
            figures = f"scale {found.scale.item()!r} and zero point {found.zero_point.item():g}"
            assert bool(exact), f"site {quantizer.module.site.name!r} has {figures}, and the hardware dictates {value!r}"


def biases_have_the_product_of_scales(trial: Pipeline) -> None:
    """Check that a bias added to an accumulator has the accumulator's scale, s_x * s_w in float32, and zero point 0."""
    for unit in trial.partition.units:
        tensors = dict(_encodings(trial, unit))
        bias, factors = tensors.get("bias"), [c for c in (tensors.get("input"), tensors.get("weight")) if c is not None]
        arithmetic = unit.kernel.arithmetic if unit.kernel is not None else None
        if bias is None or len(factors) < 2 or not isinstance(arithmetic, FixedPoint | FloatMultiplier):
            continue
        wanted = factors[0].qparams.scale * factors[1].qparams.scale.flatten()
        scale = bias.qparams.scale
        same = bool((scale.flatten() == wanted).all()) and not bool(bias.qparams.zero_point.any())
        found = f"the bias of {unit.path!r} has scale {scale.flatten()[0].item()!r}, its accumulator {wanted[0].item()!r}"
        assert same, found


def weights_scale_by_output_channel(trial: Pipeline) -> None:
    """Check that no scale changes inside the sum of a product: scales of weights are per output channel."""
    for unit in trial.partition.units:
        tensors = dict(_encodings(trial, unit))
        weight = tensors.get("weight")
        context, root = trial.partition.context, unit.group.root
        if weight is None or "input" not in tensors or not (context.has(root, Trait.WEIGHTED) or unit.kind == "matmul"):
            continue
        shared = weight.quantizer.module.site.scheme.scale.shared
        if isinstance(shared, PerChannel) and weight.qparams.scale.numel() > 1:
            rank = weight.qparams.scale.ndim
            ours, wanted = int(shared.axis) % rank, context.channel_axis(root) % rank
            assert ours == wanted, f"the weight of {unit.path!r} has scales along axis {ours}, its output channels are {wanted}"


def ties_share_qparams(trial: Pipeline) -> None:
    """Check that the tied tensors of an op have the same format, scale and zero point."""
    for tie in trial.target.ties:
        for unit in trial.partition.units:
            if not matches(tie.select, unit.group.root, trial.partition.context):
                continue
            tied = [c for slot, c in _encodings(trial, unit) if slot in tie.slots]
            for other in tied[1:]:
                names = [c.quantizer.module.site.name for c in (tied[0], other)]
                found = f"{names[0]!r} with {_described(tied[0])} and {names[1]!r} with {_described(other)}"
                assert tied[0].same(other), f"{tie!r} at {unit.path!r} ties {found}"


def moved_codes_keep_qparams(trial: Pipeline) -> None:
    """Check that an op that only moves codes has the same qparams before and after it."""
    partition, context = trial.partition, trial.partition.context
    of_tensor: dict[str, list[Encoding]] = {}
    for encoding in partition.at_path.values():
        of_tensor.setdefault(encoding.quantizer.tensor, []).append(encoding)
    for node in partition.network.graph.nodes:
        inputs = [n for s, n in context.slots(node) if s == "input"]
        if not commutes(node, context, trial.target) or len(inputs) != 1 or not only_moves_codes(node):
            continue
        before = partition.encoding(inputs[0], node)
        if before is None:
            continue
        for after in of_tensor.get(node.name, []):
            found = f"{_described(before)} before it, {_described(after)} after it"
            assert before.same(after), f"{partition.paths[node]!r} is listed as moving codes, with {found}"


def zero_is_exact(trial: Pipeline) -> None:
    """Check that every activation represents 0 exactly."""
    for quantizer in _static(trial.calibrated):
        site, scheme = quantizer.module.site, quantizer.module.site.scheme
        if site.constant or not isinstance(scheme.scale.shared, PerTensor) or isinstance(scheme.format, Levels):
            continue
        value = float(in_evaluation_mode(quantizer.module)(torch.zeros(())).detach())
        assert value == 0, f"0 is quantized to {value!r} at {quantizer.module.site.name!r}"


def exported_codes_match_the_simulation(trial: Pipeline) -> None:
    """Check that the codes that a function exports decode to its simulated values, bit for bit."""
    constants = {n.target: n for n in trial.calibrated.graph.nodes if n.op == "call_module"}
    for quantizer in _static(trial.calibrated):
        module, site = quantizer.module, quantizer.module.site
        if site.constant:
            x = read_attr(trial.calibrated, constants[quantizer.path].all_input_nodes[0]).detach()
        elif isinstance(site.scheme.scale.shared, PerTensor):
            x = _probe(module.qparams(), site.scheme.format)
        else:
            continue
        function: Any = site.function
        with torch.no_grad():
            simulated = function.apply(module.params(), x, site.scheme)
            codes, qparams = module.export(x)
            exported = dequantize(codes, qparams, site.scheme).to(x.dtype)  # 32-bit codes are float64
        differ = int((simulated != exported).sum())
        assert not differ, f"{differ} of {x.numel()} exported codes of {site.name!r} are not those of the simulation"


def transforms_are_pure(trial: Pipeline) -> None:
    """Check that quantize, calibrate, emulate and deploy do not change their inputs."""
    for name, changed in trial.changed.items():
        assert not changed, f"{name} changed its input: {', '.join(changed[:3])}"


TRIAL_LAWS: tuple[Callable[[Pipeline], None], ...] = (
    legality_accepts_the_rules,
    quantizes,
    calibrates,
    scales_are_allowed,
    limits_hold,
    dictated_qparams_are_exact,
    biases_have_the_product_of_scales,
    weights_scale_by_output_channel,
    ties_share_qparams,
    moved_codes_keep_qparams,
    zero_is_exact,
    exported_codes_match_the_simulation,
)
"""The laws in the order in which check_target checks them; `transforms_are_pure` is checked last, after all transforms."""


def _static(model: Any) -> list[QuantizerNode]:
    return [s for s in quantizer_nodes(model) if not s.module.dynamic]


def _encodings(trial: Pipeline, unit: Unit) -> list[tuple[str, Encoding]]:
    # The encodings of the root's inputs and of the unit's output, by slot.
    root = unit.group.root
    found = [(slot, trial.partition.encoding(n, root)) for slot, n in trial.partition.slots(root)]
    found.append(("output", trial.partition.output_encoding(unit.group.output)))
    return [(slot, c) for slot, c in found if c is not None]


def _described(encoding: Encoding) -> str:
    scale, zero = encoding.qparams.scale.flatten()[0].item(), int(encoding.qparams.zero_point.flatten()[0])
    return f"{encoding.quantizer.module.site.scheme.format!r}, scale {scale!r}, zero point {zero}"


def _probe(qparams: Affine, fmt: Any) -> Tensor:
    # Codes, ties and values out of range; for other formats, magnitudes of all sizes.
    if isinstance(fmt, Int):
        halves = torch.arange(2 * fmt.qmin - 5, 2 * fmt.qmax + 6, (fmt.qmax - fmt.qmin) // 1024 * 2 + 1) / 2
        return (halves - qparams.zero_point) * qparams.scale
    magnitudes = qparams.scale * torch.exp2(torch.linspace(-4, 12, 500))
    return torch.cat([-magnitudes, torch.zeros(1), magnitudes])
