"""Make the qparams of a model agree: equal within ties, wide enough for derived biases, within limits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from qfunc.graph.constants import read_attr
from qfunc.graph.sites import QuantizerNode
from qfunc.graph.view import QuantizedModel
from qfunc.numerics.qparams import Affine
from qfunc.placement.fused_readers import share_scales
from qfunc.placement.shift_limits import limit_qparams
from qfunc.placement.ties import derivations, derived_qparams
from qfunc.specs import DerivedQParams, Scheme
from qfunc.transforms.insert_quantizers import estimate_qparams


def reconcile(view: QuantizedModel, found: dict[str, Affine]) -> dict[str, Affine]:
    """Return all qparams by path except the derived ones: equal where they are tied, wide enough for biases, and within limits.

    A bias of `DerivedQParams(of=("input", "weight"))` has s = float32(s_input * s_weight), z = 0.  Where a bias
    would exceed the middle half of its codes, as in channels with almost zero weights, the scale of the
    weight is increased: s_weight >= |b| / (2^(bits-2) * s_input).

    Raises:
        CalibrationError: a limit of the target that cannot be kept.
    Source: ONNX Runtime, quantize_static, "WeightAdjustForInt32Bias".
    """
    quantizers, result = view.quantizers, share_scales(view, found)
    for name in sorted({s.module.site.tie for s in quantizers if s.module.site.tie and s.module.site.leader != "union"}):
        _tie([s for s in quantizers if s.module.site.tie == name], result)
    modules = {s.path: s.module for s in quantizers}
    for path, sources in derivations(view).items():
        value = modules[path].site.value
        if isinstance(value, DerivedQParams) and {"input", "weight"} <= sources.keys():
            bias = _constant(view, path).float()
            powers = modules[sources["weight"]].scheme.scale.power_of_two
            weight, activation = (result[sources[slot]] for slot in ("weight", "input"))
            result[sources["weight"]] = _widened(weight, bias, activation, value.format.bits, powers)
    target = view.record.target
    assert target is not None
    return limit_qparams(
        view, target, {p: q for p, q in result.items() if not isinstance(modules[p].site.value, DerivedQParams)}
    )


def set_qparams(view: QuantizedModel, found: dict[str, Affine]) -> None:
    """Set the qparams of a model's sites in place: reconciled ones, and then the derived ones.

    Scales of weights that an earlier calibration adjusted are those from before it, unless they changed since.  Only for
    transforms, on models that they own.
    """
    modules = {s.path: s.module for s in view.quantizers}
    # The qparams of a weight are computed by quantizing it.
    current = {path: module.qparams() for path, module in modules.items() if module.ready and not module.dynamic}
    given = {**current, **_before_adjustment(view, current), **found}
    constants = {path: _copied(given[path]) for path, module in modules.items() if module.site.constant and path in given}
    for path, qparams in reconcile(view, given).items():
        module = modules[path]
        if not (path in current and module.site.constant and same_qparams(current[path], qparams)):
            current.pop(path, None)
            module.set_qparams(qparams, _constant(view, path) if module.site.constant else None)
        if path in constants:
            module.adjustment = constants[path], _copied(current[path] if path in current else module.qparams())
    static = {p: m for p, m in modules.items() if not isinstance(m.site.value, DerivedQParams) and not m.dynamic}
    actual = {path: current[path] if path in current else module.qparams() for path, module in static.items()}
    for path, qparams in derived_qparams(view, actual).items():
        modules[path].set_qparams(qparams)


def _before_adjustment(view: QuantizedModel, current: dict[str, Affine]) -> dict[str, Affine]:
    # The qparams of weights before the last calibration adjusted them to the activations, where they are still its result.
    constants = {s.path: s.module for s in view.quantizers if s.module.site.constant and s.path in current}
    known = {path: module.adjustment for path, module in constants.items() if module.adjustment is not None}
    loaded = [p for p, m in constants.items() if p not in known and isinstance(m.site.value, Scheme)]
    target = view.record.target
    if loaded and all(s.module.ready for s in view.quantizers) and target is not None and (derivations(view) or target.limits):
        # The values of a file do not show what adjusted them: adjust the estimates again, and compare.
        estimates = {path: estimate_qparams(constants[path].site, _constant(view, path)) for path in loaded}
        result = reconcile(view, {**current, **estimates})
        known |= {path: (estimates[path], result[path]) for path in loaded}
    return {path: _where_equal(current[path], after, before) for path, (before, after) in known.items()}


def _copied(qparams: Affine) -> Affine:
    # A copy, because a quantizer returns its buffers themselves.
    parts: list[Any] = [t if t is None else t.clone() for t in qparams]
    return Affine(*parts)


def _where_equal(current: Affine, after: Affine, before: Affine) -> Affine:
    # The qparams from before an adjustment, where it changed them and the current ones are those after it.
    if any(one.scale.shape != current.scale.shape or one.outer is not None for one in (current, after, before)):
        return current
    device = current.scale.device
    # A scale that follows a BatchNorm is divided by a factor and multiplied by it again: two roundings.
    near = torch.isclose(current.scale, after.scale.to(device), rtol=2.0**-22, atol=0.0)
    changed = (before.scale != after.scale) | (before.zero_point != after.zero_point)
    equal = near & (current.zero_point == after.zero_point.to(device)) & changed.to(device)
    pairs = zip(before[:2], current[:2], strict=True)
    return Affine(*(torch.where(equal, old.to(device), now) for old, now in pairs))


def bias_qparams(view: QuantizedModel) -> dict[str, Affine]:
    """Return the qparams of biases with scales of their own, by path, estimated from their present values."""
    own = [q for q in view.quantizers if q.module.site.slot == "bias" and isinstance(q.module.site.value, Scheme)]
    constant = [q for q in own if q.module.site.constant and not q.module.dynamic]
    return {q.path: estimate_qparams(q.module.site, _constant(view, q.path)) for q in constant}


def _constant(view: QuantizedModel, path: str) -> Tensor:
    # Return the weight or bias that the quantizer at a path reads.
    model = view.evaluation_form
    (node,) = model.graph.find_nodes(op="call_module", target=path)
    return read_attr(model, node.all_input_nodes[0]).detach()


def same_qparams(a: Affine, b: Affine) -> bool:
    """Return True if two qparams are bit-equal."""
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True) if x is not None and y is not None)


def _widened(weight: Affine, bias: Tensor, activation: Affine, bits: int, power_of_two: bool) -> Affine:
    least = (bias.abs() / (2.0 ** (bits - 2) * activation.scale)).reshape(-1, weight.scale.numel()).amax(0)
    if power_of_two:
        least = torch.exp2(torch.ceil(torch.log2(least)))
    return weight._replace(scale=torch.maximum(weight.scale, least.reshape(weight.scale.shape)))


def _tie(members: list[QuantizerNode], result: dict[str, Affine]) -> None:
    # In graph order the inputs of the tied op come first, its output last.
    match members[0].module.site.leader:
        case "input":
            chosen = result[members[0].path]
        case "output":
            chosen = result[members[-1].path]
        case _:  # "max_scale"
            chosen = max((result[m.path] for m in members), key=lambda q: float(q.scale.max()))
    for member in members:
        result[member.path] = chosen
