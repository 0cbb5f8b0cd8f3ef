"""The pure step at the end of calibration: ties, fixed and derived qparams."""

from __future__ import annotations

import torch
from torch import Tensor, fx

from qfunc.graph.fold import read_attr
from qfunc.graph.network import Seat
from qfunc.graph.vocabulary import kind_of, slots
from qfunc.numerics.qparams import Affine
from qfunc.specs import Derived


def reconcile(model: fx.GraphModule, seats: tuple[Seat, ...], found: dict[str, Affine]) -> dict[str, Affine]:
    """All qparams by seat path: those found, equal within ties, and the biases' products of scales.

    A bias of `Derived(of=("input", "weight"))` has s = float32(s_input * s_weight), z = 0.  Where a bias
    would leave the middle half of its codes, as in channels whose weights are all but zero, the weight's
    scale is widened until it does not: s_weight >= |b| / (2^(bits-2) * s_input).
    Source: ONNX Runtime, quantize_static, "WeightAdjustForInt32Bias".
    """
    result = dict(found)
    for seat in seats:
        if seat.module.ready and seat.path not in result:
            result[seat.path] = seat.module.qparams()
    for name in sorted({s.module.site.tie for s in seats if s.module.site.tie and s.module.site.leader != "union"}):
        _tie([s for s in seats if s.module.site.tie == name], result)
    nodes = {n.target: n for n in model.graph.nodes if kind_of(n) == "fake_quantize"}
    biases = [(s, s.module.site.value) for s in seats if isinstance(s.module.site.value, Derived)]
    # All weights are widened before any scale is derived: a weight may serve several biases.
    for seat, value in biases:
        paths = _sources(nodes[seat.path], value)
        if {"input", "weight"} <= paths.keys():
            bias = read_attr(model, nodes[seat.path].all_input_nodes[0]).detach().float()
            powers = next(s.module.site.scheme for s in seats if s.path == paths["weight"]).scale.power_of_two
            result[paths["weight"]] = _widened(result[paths["weight"]], bias, result[paths["input"]], value.format.bits, powers)
    for seat, value in biases:
        scale = torch.ones(())
        for path in _sources(nodes[seat.path], value).values():
            scale = scale.to(result[path].scale.device) * result[path].scale.flatten()
        # The weight of a transposed conv has one scale for each channel of a group.
        held = seat.module.scale
        scale = scale.expand(held.shape) if scale.numel() == 1 else scale.repeat(held.numel() // scale.numel())
        result[seat.path] = Affine(scale.clone(), torch.zeros_like(scale))
    return result


def _widened(weight: Affine, bias: Tensor, activation: Affine, bits: int, power_of_two: bool) -> Affine:
    least = (bias.abs() / (2.0 ** (bits - 2) * activation.scale)).reshape(-1, weight.scale.numel()).amax(0)
    if power_of_two:
        least = torch.exp2(torch.ceil(torch.log2(least)))
    return weight._replace(scale=torch.maximum(weight.scale, least.reshape(weight.scale.shape)))


def _sources(bias: fx.Node, value: Derived) -> dict[str, str]:
    return {slot: _quantizer_of(bias, slot) for slot in value.of}


def _quantizer_of(bias: fx.Node, slot: str) -> str:
    op = next(iter(bias.users))
    node = next(n for s, n in slots(op) if s == slot)
    while kind_of(node) != "fake_quantize":  # behind ops that only move codes
        node = next(n for s, n in slots(node) if s == "input")
    return str(node.target)


def _tie(members: list[Seat], result: dict[str, Affine]) -> None:
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
