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
        qparams: The qparams of the other sites, by path.
    """
    channels = {q.path: q.module.scale_shape[0] for q in view.quantizers if _is_derived(q)}
    derived = {}
    for path, factors in derivations(view).items():
        scale = product([qparams[factor].scale for factor in factors.values()], channels[path])
        derived[path] = Affine(scale, torch.zeros_like(scale))
    return derived


def derivations(view: QuantizedModel) -> dict[str, dict[str, str]]:
    """Return for each derived site, by path, the paths of the sites whose scales it multiplies, by slot."""
    derived = [q for q in view.quantizers if _is_derived(q)]
    if not derived:
        return {}
    calls = {str(n.target): n for n in view.evaluation_form.graph.nodes if n.op == "call_module"}
    quantizers = {calls[quantizer.path] for quantizer in view.quantizers}
    target = view.record.target
    context, factors = Context(view.evaluation_form, () if target is None else target.ops), {}
    for quantizer in derived:
        value = quantizer.module.site.value
        operands = dict(reversed(context.slots(next(iter(calls[quantizer.path].users)))))
        assert isinstance(value, DerivedQParams)
        factors[quantizer.path] = {slot: _quantizer_of(operands[slot], quantizers, context) for slot in value.of}
    return factors


def _is_derived(quantizer: QuantizerNode) -> bool:
    return isinstance(quantizer.module.site.value, DerivedQParams)


def _quantizer_of(tensor: fx.Node, quantizers: set[fx.Node], context: Context) -> str:
    while tensor not in quantizers:  # an op that only moves codes
        tensor = next(n for slot, n in context.slots(tensor) if slot == "input")
    return str(tensor.target)
