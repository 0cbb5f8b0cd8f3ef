"""Derived sites: biases whose scale is the product of other scales."""

from __future__ import annotations

import torch
from torch import fx

from qfunc.graph.sites import QuantizerNode
from qfunc.numerics.qparams import Affine
from qfunc.numerics.scales import product
from qfunc.ops.node import kind_of, slots
from qfunc.specs import DerivedQParams


def derived_qparams(model: fx.GraphModule, places: tuple[QuantizerNode, ...], qparams: dict[str, Affine]) -> dict[str, Affine]:
    """The qparams of every derived site by seat path: s = float32(s_input * s_weight), z = 0, one for each channel.

    Args:
        qparams: Those of the sites that it is derived from, by seat path.
    """
    found = {}
    for seat in places:
        if isinstance(seat.module.site.value, DerivedQParams):
            scale = product([qparams[path].scale for path in sources(model, seat).values()], seat.module.held[0])
            found[seat.path] = Affine(scale, torch.zeros_like(scale))
    return found


def sources(model: fx.GraphModule, seat: QuantizerNode) -> dict[str, str]:
    """Slot -> seat path of what a derived site is derived from."""
    value = seat.module.site.value
    if not isinstance(value, DerivedQParams):
        return {}
    bias = next(iter(model.graph.find_nodes(op="call_module", target=seat.path)))
    return {slot: _quantizer_of(bias, slot) for slot in value.of}


def _quantizer_of(bias: fx.Node, slot: str) -> str:
    op = next(iter(bias.users))
    node = next(n for s, n in slots(op) if s == slot)
    while kind_of(node) != "fake_quantize":  # behind ops that only move codes
        node = next(n for s, n in slots(node) if s == "input")
    return str(node.target)
