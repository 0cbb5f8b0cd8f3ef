"""BatchNorm folding with evaluation semantics.

With f = gamma / sqrt(running_var + eps):  w' = w * f along the output channels,  b' = beta + (b - running_mean) * f.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from attrs import evolve
from torch import Tensor, fx, nn

from qfunc.graph.record import attach, record_of
from qfunc.graph.vocabulary import attribute, kind_of, op_of

_FOLDABLE = ("conv", "conv_transpose", "linear")


def fold_batch_norm(model: fx.GraphModule) -> fx.GraphModule:
    """A copy whose BatchNorms are folded into the conv or linear before them.

    A BatchNorm1d after a linear is taken to norm the linear's features, as it does on inputs of rank 2;
    `calibrate` refuses others.
    A BatchNorm2d that cannot fold (no such op before it, or its output is read elsewhere) becomes a
    depthwise 1x1 conv of the same function; other BatchNorms stay.  Computed in float64, stored in the
    weight's dtype; a weight that several ops share is copied first.

    >>> from qfunc.graph.capture import capture
    >>> net = capture()(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval())
    >>> [n.name for n in fold_batch_norm(net).graph.nodes]
    ['input_1', '_0_weight', '_0_bias', '_0', 'output']
    """
    model = copy.deepcopy(model)
    linears = []
    for node in list(model.graph.nodes):
        if kind_of(node) != "batch_norm":
            continue
        norm = model.get_submodule(str(node.target))
        if getattr(norm, "running_mean", None) is None:
            continue
        before = node.args[0]
        assert isinstance(before, fx.Node)
        if kind_of(before) in _FOLDABLE and len(before.users) == 1 and _constant_weights(model, before, norm):
            _fold(model, before, node, norm)
            linears += [before.name] if kind_of(before) == "linear" else []
        elif isinstance(norm, nn.BatchNorm2d):
            _as_conv(model, node, norm)
    model.graph.eliminate_dead_code(is_impure_node=lambda n: n.op in ("placeholder", "output"))
    model.delete_all_unused_submodules()
    model.recompile()
    record = record_of(model)
    if record is not None:
        names = {n.name for n in model.graph.nodes}
        kept = {k: v for k, v in record.facts.items() if k in names}
        attach(model, evolve(record, facts=kept, rank_two=(*record.rank_two, *linears)))
    return model


def _constant_weights(model: fx.GraphModule, node: fx.Node, norm: nn.Module) -> bool:
    weight, bias = attribute(node, "weight"), attribute(node, "bias")
    if not all(w is None or (isinstance(w, fx.Node) and w.op == "get_attr") for w in (weight, bias)):
        return False
    return kind_of(node) != "linear" or _read(model, weight).shape[0] == norm.num_features


def affine_of(norm: nn.Module) -> tuple[Tensor, Tensor]:
    """(f, b) in float64 with norm(x) = f * x + b per channel, in evaluation mode."""
    values: Any = norm
    factor = torch.rsqrt(values.running_var.double() + values.eps)
    factor = factor if values.weight is None else factor * values.weight.detach().double()
    shift = -values.running_mean.double() * factor
    return factor, shift if values.bias is None else shift + values.bias.detach().double()


def _fold(model: fx.GraphModule, op: fx.Node, norm_node: fx.Node, norm: nn.Module) -> None:
    weight_node, bias_node = attribute(op, "weight"), attribute(op, "bias")
    factor, shift = affine_of(norm)
    weight = _read(model, weight_node)
    spec = op_of(op)
    assert spec is not None
    groups = attribute(op, "groups") if spec.kind == "conv_transpose" else 1
    # A transposed conv's weight is [groups * in, out, ...] with the groups along the input channels.
    shape = [groups, weight.shape[0] // groups, *weight.shape[1:]]
    along = [1] * len(shape)
    along[0], along[spec.constant_axis + 1] = groups, factor.numel() // groups
    folded = (weight.double().reshape(shape) * factor.reshape(along)).reshape(weight.shape).to(weight.dtype)
    bias = shift if bias_node is None else shift + _read(model, bias_node).double() * factor
    path = model_path(weight_node)
    trained = read_attr(model, weight_node).requires_grad
    new_weight = _put(model, op, path, folded, weight_node if len(weight_node.users) == 1 else None, trained)
    place = path.removesuffix("weight") + "bias" if bias_node is None else model_path(bias_node)
    own_bias = bias_node if bias_node is not None and len(bias_node.users) == 1 else None
    new_bias = _put(model, op, place, bias.to(weight.dtype), own_bias, trained)
    op.args = tuple({"weight": new_weight, "bias": new_bias}.get(n, a) for n, a in zip(spec.parameters, op.args, strict=True))
    norm_node.replace_all_uses_with(op)
    model.graph.erase_node(norm_node)


def _as_conv(model: fx.GraphModule, node: fx.Node, norm: nn.BatchNorm2d) -> None:
    factor, shift = affine_of(norm)
    path = str(node.target)
    holder = nn.Module()
    dtype = norm.running_var.dtype if norm.running_var is not None else torch.float32
    holder.weight = nn.Parameter(factor.reshape(-1, 1, 1, 1).to(dtype))
    holder.bias = nn.Parameter(shift.to(dtype))
    model.set_submodule(path, holder)
    with model.graph.inserting_before(node):
        weight, bias = (model.graph.get_attr(f"{path}.{n}") for n in ("weight", "bias"))
        conv = model.graph.call_function(torch.conv2d, (node.args[0], weight, bias, 1, 0, 1, factor.numel()))
    _inherit_fact(model, node, conv)
    node.replace_all_uses_with(conv)
    model.graph.erase_node(node)


def _inherit_fact(model: fx.GraphModule, old: fx.Node, new: fx.Node) -> None:
    record = record_of(model)
    if record is not None and old.name in record.facts:
        attach(model, evolve(record, facts={**record.facts, new.name: record.facts[old.name]}))


def model_path(node: fx.Node) -> str:
    """The attribute path that a get_attr node reads."""
    return str(node.target)


def _read(model: nn.Module, node: fx.Node) -> Tensor:
    return read_attr(model, node).detach()


def read_attr(model: nn.Module, node: fx.Node) -> Tensor:
    """The tensor that a get_attr node reads."""
    owner, _, name = str(node.target).rpartition(".")
    value: Tensor = getattr(model.get_submodule(owner), name)
    return value


def _put(model: fx.GraphModule, before: fx.Node, path: str, value: Tensor, own: fx.Node | None, trained: bool) -> fx.Node:
    # Stores a tensor at the path that `own` alone reads, or beside what is there, and reads it before `before`.
    owner, _, name = path.rpartition(".")
    if own is not None:
        setattr(model.get_submodule(owner), name, nn.Parameter(value, requires_grad=trained))
        return own
    fresh, count = name, 0
    while getattr(model.get_submodule(owner), fresh, None) is not None:
        count += 1
        fresh = f"{name}_{count}"
    setattr(model.get_submodule(owner), fresh, nn.Parameter(value, requires_grad=trained))
    with model.graph.inserting_before(before):
        return model.graph.get_attr(f"{owner}.{fresh}".lstrip("."))
