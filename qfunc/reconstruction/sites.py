"""Weights whose rounding will be learned: their quantizers get AdaRound, in the model and in the target that it carries."""

from __future__ import annotations

from collections.abc import Collection
from functools import reduce
from operator import or_

import torch
from attrs import evolve
from torch import fx

from qfunc.errors import SpecError
from qfunc.functions import AdaRound
from qfunc.graph.constants import read_attr
from qfunc.graph.fake_quantize import FakeQuantize
from qfunc.graph.network import Seat, seats
from qfunc.graph.record import attach, record_of
from qfunc.graph.select import Context
from qfunc.graph.shared import connect
from qfunc.graph.vocabulary import kind_of
from qfunc.reconstruction.flow import WEIGHED
from qfunc.specs import Int, Override, Scheme
from qfunc.specs.edit import name as named
from qfunc.specs.protocols import Function

_JUST = 1e-4  # a v that decides, and that any step of training may turn


def roundable(network: fx.GraphModule, places: Collection[Seat]) -> list[Seat]:
    """The weights with a rounding to learn: integers of their own scale, read by ops that weigh."""
    nodes = {n.name: n for n in network.graph.nodes}
    return [
        seat
        for seat in places
        if seat.module.site.constant
        and seat.module.site.slot == "weight"
        and isinstance(seat.module.site.value, Scheme)
        and isinstance(seat.module.scheme.format, Int)
        and all(kind_of(nodes[reader]) in WEIGHED for reader in seat.readers)
    ]


def with_adaround(model: fx.GraphModule, chosen: Collection[str]) -> None:
    """Gives the quantizers at some paths AdaRound around the function that they have, with the codes that they have.

    The record's target says so too, tensor by tensor, so that `save` and `load` know.  For transforms, on models that
    they own.

    Raises:
        SpecError: a function inside which nothing can be rounded.
    """
    by_function: dict[Function, list[str]] = {}
    nodes = {str(n.target): n for n in model.graph.nodes if n.op == "call_module"}
    for seat in seats(model):
        if seat.path not in chosen:
            continue
        old = seat.module
        weight = read_attr(model, nodes[seat.path].all_input_nodes[0]).detach()
        function = old.site.function if isinstance(old.site.function, AdaRound) else _around(old)
        made = FakeQuantize(evolve(old.site, function=function), weight)
        made.train(old.training)
        made.hold(old.qparams(), weight)
        start, nearest = old.export(weight)[0], made.export(weight)[0]
        v = made.get_parameter("v")
        v.copy_(torch.where(start == nearest, v, _JUST * (start - nearest).sign()))
        model.set_submodule(seat.path, made)
        by_function.setdefault(function, []).append(Context(model).path(str(nodes[seat.path].all_input_nodes[0].target)))
    connect(model)
    record = record_of(model)
    assert record is not None
    assert record.target is not None
    changes = [Override(reduce(or_, map(named, paths)), "weight", function=f) for f, paths in by_function.items()]
    kept = tuple(o for o in record.target.overrides if o not in changes)
    attach(model, evolve(record, target=evolve(record.target, overrides=(*kept, *changes))))


def _around(module: FakeQuantize) -> AdaRound:
    try:
        return AdaRound(module.site.function)
    except SpecError as e:
        raise SpecError(
            where=f"reconstruct, site {module.site.name!r}",
            found=f"the function {module.site.function!r}",
            wanted="a function inside AdaRound: " + e.wanted,
            do="Use edit.weights(function=Fixed()) before, or leave the op out by select=.",
        ) from e


__all__ = ["roundable", "with_adaround"]
