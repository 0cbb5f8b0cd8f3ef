"""Replace the quantize functions of single weights of a calibrated model."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import or_

from attrs import evolve
from torch import fx

from qfunc.graph.constants import read_attr
from qfunc.graph.record import attach, record_of
from qfunc.graph.selectors import Context
from qfunc.graph.sites import quantizer_nodes
from qfunc.placement.ties import tie_parameters
from qfunc.quantizers.fake_quantize import FakeQuantize
from qfunc.specs import Override, edit
from qfunc.specs.protocols import Function


def replace_functions(model: fx.GraphModule, functions: Mapping[str, Function]) -> dict[str, FakeQuantize]:
    """Replace the functions of the quantizers at some paths, in place; return the new quantizers, with the old qparams.

    The record's target gets an override for each tensor, which `save` and `load` need.  Only for transforms that own the
    model.
    """
    nodes = {str(n.target): n for n in model.graph.nodes if n.op == "call_module"}
    by_function: dict[Function, list[str]] = {}
    replaced: dict[str, FakeQuantize] = {}
    for quantizer in quantizer_nodes(model):
        if quantizer.path not in functions:
            continue
        old, tensor = quantizer.module, nodes[quantizer.path].all_input_nodes[0]
        weight, function = read_attr(model, tensor).detach(), functions[quantizer.path]
        new = replaced[quantizer.path] = FakeQuantize(evolve(old.site, function=function), weight)
        new.train(old.training)
        new.set_qparams(old.qparams(), weight)
        model.set_submodule(quantizer.path, new)
        by_function.setdefault(function, []).append(Context(model).path(str(tensor.target)))
    tie_parameters(model)
    record = record_of(model)
    assert record is not None
    assert record.target is not None
    changes = [Override(reduce(or_, map(edit.name, paths)), "weight", function=f) for f, paths in by_function.items()]
    others = tuple(o for o in record.target.overrides if o not in changes)
    attach(model, evolve(record, target=evolve(record.target, overrides=(*others, *changes))))
    return replaced
