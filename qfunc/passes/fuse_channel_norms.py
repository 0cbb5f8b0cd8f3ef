"""Rewrites that fuse written-out norms of images into one op: layer norms of the channels, instance norms, and unit vectors.

With the means of each place over the channels, a layer norm; of each channel over the places, an instance norm:
y = (x - mean(x)) / sqrt(var(x) + eps), perhaps times w and plus b, with one number for each channel.
normalize(x) = x / max(|x|, eps), with |x| = (sum |x|^p)^(1/p) over some axes.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

from qfunc.graph.constants import read_attr
from qfunc.graph.matcher import Call, Rewrite
from qfunc.graph.patterns import Match, OpPattern, Var, either, number, op, tensor
from qfunc.ops.node import attribute, has, kind_of, op_of
from qfunc.ops.traits import Trait
from qfunc.passes.fuse_norms import CENTRED_NORM


def _rank(node: fx.Node) -> int | None:
    # The number of axes, from a layer before a chain of elementwise ops.
    while (called := op_of(node)) is not None:
        if has(node, Trait.WEIGHTED) and kind_of(node) != "linear":
            weight = attribute(node, "weight")
            return len(_shape(weight)) if isinstance(weight, fx.Node) and weight.op == "get_attr" else None
        if called.spatial is not None:
            return called.spatial + 2
        if not has(node, Trait.ELEMENTWISE) or len(node.all_input_nodes) != 1:
            return None
        (node,) = node.all_input_nodes
    return None


def _shape(node: fx.Node) -> tuple[int, ...]:
    assert node.graph.owning_module is not None
    return tuple(read_attr(node.graph.owning_module, node).shape)


def _axes(value: Any, rank: int) -> list[int]:
    return sorted(axis % rank for axis in (value if isinstance(value, list | tuple) else [value]))


def _mismatch(wanted: Callable[[int], list[int]]) -> Callable[[Match], str]:
    def check(found: Match) -> str:
        rank = _rank(found["x"])
        if rank is None:
            return f"the number of axes of {found['x'].name!r} is not known"
        for axes in (found["axes"], found["centre"]):
            if _axes(axes, rank) != wanted(rank):
                return f"a mean is over the axes {_axes(axes, rank)} of {rank}"
        for name in ("weight", "bias"):
            shape = _shape(found[name]) if name in found.values else None
            if shape is not None and (len(shape) < rank - 1 or not 1 < prod(shape) == shape[1 - rank]):
                return f"the {name} has the shape {shape}, not one number for each channel"
        return ""

    return check


def _flat(found: Match, name: str) -> fx.Node | None:
    node = found.get(name)
    return None if node is None else found.root.graph.call_function(torch.reshape, (node, (-1,)))


def _instance_norm(found: Match) -> Call:
    with found.root.graph.inserting_before(found.root):
        affine = _flat(found, "weight"), _flat(found, "bias")
    return Call(F.instance_norm, (found["x"], None, None, *affine, True, 0.1, found["eps"]))


def _layer_norm(found: Match) -> Call:
    # The channels go last, where a layer norm has them, and back.
    graph, rank, weight = found.root.graph, _rank(found["x"]), found["weight"]
    assert rank is not None
    channels = prod(_shape(weight))
    with graph.inserting_before(found.root):
        last = graph.call_function(torch.permute, (found["x"], (0, *range(2, rank), 1)))
        normed = (last, (channels,), _flat(found, "weight"), _flat(found, "bias"), found["eps"])
        return Call(torch.permute, (graph.call_function(F.layer_norm, normed), (0, rank - 1, *range(1, rank - 1))))


def _constant(name: str) -> Var:
    return tensor(name, lambda v: kind_of(v) == "constant", "a constant")


_SCALED = op("mul", CENTRED_NORM, _constant("weight"), commutative=True)
_SHIFTED = op("add", _SCALED, _constant("bias"), commutative=True)


def _norm(name: str, pattern: OpPattern, axes: Callable[[int], list[int]], replace: Callable[[Match], Call]) -> Rewrite:
    return Rewrite(name, pattern, replace, check=_mismatch(axes))


def _places(rank: int) -> list[int]:
    return list(range(2, rank))


def _channels(rank: int) -> list[int]:
    return [1]


_X, _KEPT = tensor("x"), Var("", bool, "keepdim=True")
_SQUARES = either(op("square", _X), op("pow", _X, 2), op("mul", _X, _X))
_LENGTH = either(op("vector_norm", _X, Var("p"), Var("dim", lambda v: v is not None, "an axis"), _KEPT, key=True),
                 op("sqrt", op("sum", _SQUARES, Var("dim"), _KEPT, key=True)))  # fmt: skip
_DIVISOR = either(op("clip", input=_LENGTH, min=number("eps"), max=None), _LENGTH)


def _unit_vector(found: Match) -> Call:
    dim = found["dim"]
    dim = dim[0] if isinstance(dim, list | tuple) and len(dim) == 1 else dim
    return Call(F.normalize, (found["x"], found.get("p", 2.0), dim, found.get("eps", 0.0)))


CHANNEL_NORMS = (
    (
        _norm("layer_norm", _SHIFTED, _channels, _layer_norm),
        _norm("instance_norm", _SHIFTED, _places, _instance_norm),
    ),
    (
        _norm("layer_norm", _SCALED, _channels, _layer_norm),
        _norm("instance_norm", _SCALED, _places, _instance_norm),
    ),
    (
        *(_norm("instance_norm", each, _places, _instance_norm) for each in CENTRED_NORM.patterns),
        Rewrite("normalize", op("div", _X, _DIVISOR), _unit_vector),
        Rewrite("normalize", op("div", _X, op("expand", input=_DIVISOR, like=_X)), _unit_vector),
    ),
)
"""Larger patterns are in earlier stages, because smaller ones match parts of them."""
