"""Rewrites that fuse a norm written as arithmetic into one op, so that its intermediate tensors are not quantized.

RMSNorm computes w x / sqrt(mean(x^2) + eps).  LayerNorm computes the same of x - mean(x), and adds b.  The means are over
the last axes, as many as w has.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import fx

from qfunc.graph.constants import read_attr
from qfunc.graph.matcher import Call, Rewrite
from qfunc.graph.patterns import Match, OpPattern, Var, either, op, tensor
from qfunc.ops.node import kind_of
from qfunc.ops.normalization import rms_norm


def _is_weight(node: fx.Node) -> bool:
    # A constant, or a constant and a number, as in Gemma, whose weights are stored less 1.
    if kind_of(node) == "add" and not node.kwargs:
        read = node.all_input_nodes
        return len(read) == 1 and kind_of(read[0]) == "constant" and any(type(a) in (int, float) for a in node.args)
    return kind_of(node) == "constant"


def _shape(node: fx.Node) -> tuple[int, ...]:
    node = node if node.op == "get_attr" else node.all_input_nodes[0]
    assert node.graph.owning_module is not None
    return tuple(read_attr(node.graph.owning_module, node).shape)


_KEPT = Var("", bool, "keepdim=True")


def _mean(of: Any, axes: str, key: bool = False) -> OpPattern:
    return op(("mean", "global_avg_pool"), input=of, dim=Var(axes), keepdim=_KEPT, key=key)


def _unit_norm(x: Any, *squares: OpPattern) -> Any:
    # x / sqrt(mean(x^2) + eps)
    square = either(op("square", x), op("pow", x, 2), op("mul", x, x))
    mean = either(_mean(square, "axes", key=True), *squares)
    total = op("add", mean, Var("eps", lambda v: isinstance(v, float), "a float"), commutative=True)
    return either(
        op("mul", op("rsqrt", total), x, name="normed", commutative=True),
        op("div", x, op("sqrt", total), name="normed"),
    )


_X = tensor("x")
_CENTRED = op("sub", _X, _mean(_X, "centre"))
_VARIANCE = op("var", input=either(_X, _CENTRED), dim=Var("axes"), correction=0, keepdim=_KEPT, key=True)
CENTRED_NORM = _unit_norm(_CENTRED, _VARIANCE)
"""(x - mean(x)) / sqrt(var(x) + eps), with the means over `centre` and `axes`."""
_WEIGHT, _BIAS = tensor("weight", _is_weight, "a constant"), tensor("bias", lambda v: kind_of(v) == "constant", "a constant")


def _with_weight(normed: Any) -> OpPattern:
    return op("mul", normed, _WEIGHT, commutative=True)


def _axes_mismatch(found: Match) -> str:
    wanted = list(range(-len(_shape(found["weight"])), 0))
    for axes in (found["axes"], found.get("centre", found["axes"])):
        axes = list(axes) if isinstance(axes, list | tuple) else [axes]
        if sorted(axes) != wanted:
            return f"a mean is over the axes {axes}, where {wanted}, those of the weight, are wanted"
    bias = found.get("bias")
    return "" if bias is None or _shape(bias) == _shape(found["weight"]) else "the bias has another shape than the weight"


def _replacement(found: Match) -> Call:
    # After a cast the product with the weight may have another dtype, so it stays a separate op.
    x, shape, eps = found["x"], _shape(found["weight"]), found["eps"]
    weight = None if found.get("cast") else found["weight"]
    if found.get("centre") is None:
        return Call(rms_norm, (x, shape, weight, eps))
    return Call(F.layer_norm, (x, shape, weight, found.get("bias"), eps))


def _rewrite(name: str, pattern: OpPattern, at: str = "") -> Rewrite:
    return Rewrite(name, pattern, _replacement, check=_axes_mismatch, at=at)


_PLAIN_NORM = _unit_norm(_X)
NORMS = (
    (_rewrite("layer_norm", op("add", _with_weight(CENTRED_NORM), _BIAS, commutative=True)),),
    (
        _rewrite("layer_norm", _with_weight(CENTRED_NORM)),
        _rewrite("layer_norm", _with_weight(op("cast", CENTRED_NORM, name="cast")), at="normed"),
        _rewrite("rms_norm", _with_weight(_PLAIN_NORM)),
        _rewrite("rms_norm", _with_weight(op("cast", _PLAIN_NORM, name="cast")), at="normed"),
    ),
)
"""The sum with a bias is in the first stage, because the product that it reads matches by itself."""
