"""Products of one tensor that the runtime computes as one: their weights share the scale of a whole tensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import fx

from qfunc.graph.selectors import Context, matches
from qfunc.graph.view import QuantizedModel
from qfunc.numerics.qparams import Affine
from qfunc.numerics.scales import inner_scale
from qfunc.specs import PerTensor, Scheme


def share_scales(view: QuantizedModel, found: Mapping[str, Affine]) -> dict[str, Affine]:
    """Return qparams by path in which the weights of `Target.fused_readers` that meet one input share a scale.

    The scale of a whole weight becomes the largest of them.  Of two levels the outer scale does, s2', and the inner one
    becomes format(s1 s2 / s2').  Scales of channels or blocks alone stay.
    """
    schemes, result = {q.path: q.module.scheme for q in view.quantizers}, dict(found)
    for paths in _weights_of_one_input(view):
        for scheme in {schemes[path] for path in paths if path in result}:
            alike = [path for path in paths if path in result and schemes[path] == scheme]
            result.update(zip(alike, _shared([result[path] for path in alike], scheme), strict=True))
    return result


def _weights_of_one_input(view: QuantizedModel) -> Iterator[list[str]]:
    # The paths of the weights' quantizers, for each tensor that several selected ops read.
    target, form = view.record.target, view.evaluation_form
    if target is None or target.fused_readers is None:
        return
    context, quantizers = Context(form, target.ops), {q.path for q in view.quantizers}
    readers: dict[fx.Node, list[str]] = {}
    for node in form.graph.nodes:
        if node.op == "call_function" and matches(target.fused_readers, node, context):
            operands = dict(reversed(context.slots(node)))
            weight, tensor = operands.get("weight"), operands.get("input")
            if tensor is not None and str(tensor.target) in quantizers:
                tensor = tensor.all_input_nodes[0]
            if tensor is not None and weight is not None and str(weight.target) in quantizers:
                readers.setdefault(tensor, []).append(str(weight.target))
    yield from (paths for paths in readers.values() if len(paths) > 1)


def _shared(qparams: list[Affine], scheme: Scheme) -> list[Affine]:
    if isinstance(scheme.scale.shared, PerTensor) and scheme.symmetric:
        largest = torch.stack([each.scale for each in qparams]).amax(0)
        return [each._replace(scale=largest) for each in qparams]
    outers = [each.outer for each in qparams if each.outer is not None]
    if not outers or scheme.scale.integers is not None:
        return qparams
    largest = torch.stack(outers).amax(0)
    real = [each.scale.double() * outer.double() for each, outer in zip(qparams, outers, strict=True)]
    scales = [inner_scale(scale, largest, scheme.scale) for scale in real]
    return [each._replace(scale=scale, outer=largest) for each, scale in zip(qparams, scales, strict=True)]
