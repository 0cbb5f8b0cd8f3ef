"""The pure step at the end of calibration: ties, fixed and derived qparams, limits."""

from __future__ import annotations

import torch
from torch import Tensor, fx

from qfunc.graph.constants import read_attr
from qfunc.graph.evaluation_form import evaluation_form
from qfunc.graph.sites import QuantizerNode, quantizer_nodes
from qfunc.graph.stages import require_stage
from qfunc.numerics.qparams import Affine
from qfunc.ops.node import kind_of
from qfunc.placement.derived_scales import derived_qparams, sources
from qfunc.placement.shift_limits import limit_qparams
from qfunc.specs import DerivedQParams


def reconcile(model: fx.GraphModule, places: tuple[QuantizerNode, ...], found: dict[str, Affine]) -> dict[str, Affine]:
    """All qparams by seat path but the derived ones: found, equal within ties, as biases need them, and within limits.

    A bias of `DerivedQParams(of=("input", "weight"))` has s = float32(s_input * s_weight), z = 0.  Where a bias
    would leave the middle half of its codes, as in channels whose weights are all but zero, the weight's
    scale is widened until it does not: s_weight >= |b| / (2^(bits-2) * s_input).

    Raises:
        CalibrationError: a limit of the target that cannot be kept.
    Source: ONNX Runtime, quantize_static, "WeightAdjustForInt32Bias".
    """
    result = dict(found)
    for seat in places:
        if seat.module.ready and not seat.module.dynamic and seat.path not in result:
            result[seat.path] = seat.module.qparams()
    for name in sorted({s.module.site.tie for s in places if s.module.site.tie and s.module.site.leader != "union"}):
        _tie([s for s in places if s.module.site.tie == name], result)
    nodes = {n.target: n for n in model.graph.nodes if kind_of(n) == "fake_quantize"}
    schemes = {s.path: s.module.site.scheme for s in places}
    for seat in places:
        value, from_ = seat.module.site.value, sources(model, seat)
        if isinstance(value, DerivedQParams) and {"input", "weight"} <= from_.keys():
            bias = read_attr(model, nodes[seat.path].all_input_nodes[0]).detach().float()
            powers = schemes[from_["weight"]].scale.power_of_two
            weight, activation = (result[from_[slot]] for slot in ("weight", "input"))
            result[from_["weight"]] = _widened(weight, bias, activation, value.format.bits, powers)
    biases = {s.path for s in places if isinstance(s.module.site.value, DerivedQParams)}
    target = require_stage(model, "quantized", "reconcile").target
    assert target is not None
    return limit_qparams(model, target, {path: qparams for path, qparams in result.items() if path not in biases})


def set_qparams(model: fx.GraphModule, found: dict[str, Affine]) -> None:
    """Gives a model's sites their qparams, reconciled, and then the derived ones; for transforms, on models that they own."""
    model = evaluation_form(model)
    places = quantizer_nodes(model)
    modules = {s.path: s.module for s in places}
    nodes = {n.target: n for n in model.graph.nodes if kind_of(n) == "fake_quantize"}
    # Asking a weight for its qparams costs its codes.
    held = {s.path: s.module.qparams() for s in places if s.module.ready and not s.module.dynamic}
    for path, qparams in reconcile(model, places, {**held, **found}).items():
        module = modules[path]
        if not (path in held and module.site.constant and same_qparams(held[path], qparams)):
            held.pop(path, None)
            source = nodes[path].all_input_nodes[0]
            module.hold(qparams, read_attr(model, source).detach() if module.site.constant else None)
    static = (s for s in places if not isinstance(s.module.site.value, DerivedQParams) and not s.module.dynamic)
    actual = {s.path: held[s.path] if s.path in held else s.module.qparams() for s in static}
    for path, qparams in derived_qparams(model, places, actual).items():
        modules[path].hold(qparams)


def same_qparams(a: Affine, b: Affine) -> bool:
    """Whether two qparams are bit-equal."""
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True) if x is not None and y is not None)


def _widened(weight: Affine, bias: Tensor, activation: Affine, bits: int, power_of_two: bool) -> Affine:
    least = (bias.abs() / (2.0 ** (bits - 2) * activation.scale)).reshape(-1, weight.scale.numel()).amax(0)
    if power_of_two:
        least = torch.exp2(torch.ceil(torch.log2(least)))
    return weight._replace(scale=torch.maximum(weight.scale, least.reshape(weight.scale.shape)))


def _tie(members: list[QuantizerNode], result: dict[str, Affine]) -> None:
    # In graph order the inputs of the tied op come first, its output last; a site's own slot says how it was placed.
    match members[0].module.site.leader:
        case "input":
            chosen = result[members[0].path]
        case "output":
            chosen = result[members[-1].path]
        case _:  # "max_scale"
            chosen = max((result[m.path] for m in members), key=lambda q: float(q.scale.max()))
    for member in members:
        result[member.path] = chosen
