"""Derived sites: biases whose scale is the product of the scales of the input and of the weight."""

from __future__ import annotations

import torch
from torch import fx

from qfunc.graph.selectors import Context
from qfunc.graph.sites import QuantizerNode
from qfunc.graph.view import QuantizedModel
from qfunc.numerics.qparams import Affine
from qfunc.numerics.scales import product
from qfunc.specs import DerivedQParams


def derived_qparams(view: QuantizedModel, qparams: dict[str, Affine]) -> dict[str, Affine]:
    """Return the qparams of every derived site by path: s = float32(s_input * s_weight), z = 0, one for each channel.

    Args:
        view: The model.
        qparams: Those of the other sites, by path.
    """
    found, held = {}, {seat.path: seat.module.held[0] for seat in view.quantizers if _is_derived(seat)}
    for path, sources in derivations(view).items():
        scale = product([qparams[source].scale for source in sources.values()], held[path])
        found[path] = Affine(scale, torch.zeros_like(scale))
    return found


def derivations(view: QuantizedModel) -> dict[str, dict[str, str]]:
    """Return for each derived site, by path, the paths of the sites whose scales it multiplies, by slot."""
    seats = [seat for seat in view.quantizers if _is_derived(seat)]
    if not seats:
        return {}
    called = {str(n.target): n for n in view.evaluation_form.graph.nodes if n.op == "call_module"}
    quantizers = {called[seat.path] for seat in view.quantizers}
    target = view.record.target
    context, found = Context(view.evaluation_form, () if target is None else target.ops), {}
    for seat in seats:
        value = seat.module.site.value
        read = dict(reversed(context.slots(next(iter(called[seat.path].users)))))
        assert isinstance(value, DerivedQParams)
        found[seat.path] = {slot: _quantizer_of(read[slot], quantizers, context) for slot in value.of}
    return found


def _is_derived(seat: QuantizerNode) -> bool:
    return isinstance(seat.module.site.value, DerivedQParams)


def _quantizer_of(tensor: fx.Node, quantizers: set[fx.Node], context: Context) -> str:
    while tensor not in quantizers:  # behind ops that only move codes
        tensor = next(n for slot, n in context.slots(tensor) if slot == "input")
    return str(tensor.target)
