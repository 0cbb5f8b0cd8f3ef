"""Rewrites that compose linear layers, broadcast matrix products, instance norms and attention from core ATen ops."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from qfunc.frontend.export.aten import aten, is_constant, shape
from qfunc.graph.matcher import Call, Rewrite, calls
from qfunc.graph.patterns import Match, OpPattern, Through, Var, either, number, op, tensor

_OPS: Any = torch.ops.aten
_RESHAPE = ("view", "reshape")
_VIEWS = ("view", "reshape", "clone")


def _swaps(node: fx.Node) -> bool:
    # Return True if a node swaps the last two axes.
    dims: Any = node.args[1:]
    match aten(node):
        case "permute":
            (dims,) = dims
            return [d % len(dims) for d in dims] == [*range(len(dims) - 2), len(dims) - 1, len(dims) - 2]
        case "transpose":
            rank = len(shape(node) or ())
            return bool(rank) and {d % rank for d in dims} == {rank - 1, rank - 2}
    return True


def _transposed(of: Var) -> OpPattern:
    return op(("permute", "transpose", "t"), of, where=_swaps, wanted="of the last two axes")


def _no_bias(found: Match) -> str:
    same = shape(found["bias"]) == (shape(found["weight"]) or ())[:1]
    return "" if same else "the bias has another shape than the outputs"


_X, _BIAS = tensor("x"), tensor("bias", is_constant, "a parameter")
# A parameter or a part of one, [out, in], whose transpose a product reads.
_WEIGHT = _transposed(tensor("weight", lambda n: is_constant(n) and len(shape(n) or ()) == 2, "a matrix of parameters"))
_LINEAR = _OPS.linear.default

WEIGHTS = (
    Rewrite("linear", op("mm", _X, _WEIGHT), calls(_LINEAR, "x", "weight", None), private=False),
    Rewrite("linear", op("addmm", _BIAS, _X, _WEIGHT, beta=1, alpha=1), calls(_LINEAR, "x", "weight", "bias"),
            check=_no_bias, private=False),
)  # fmt: skip
PRODUCTS = (Rewrite("linear", op("matmul", _X, _WEIGHT), calls(_LINEAR, "x", "weight", None), private=False),)
BIASES = (
    Rewrite("linear", op("add", op("linear", _X, tensor("weight"), None), _BIAS, commutative=True, alpha=1),
            calls(_LINEAR, "x", "weight", "bias"), check=_no_bias),
)  # fmt: skip


def _other_rows(found: Match) -> str:
    # The product reads x [..., in] as [rows, in], and the view reshapes its result to [..., out].
    sizes, rows, out = shape(found["x"]), shape(found["product"].args[0]), shape(found.root)
    if len(found["product"].users) != 1 or sizes is None or rows is None or out is None or len(rows) != 2 or not sizes:
        return "the product is read twice, or the shapes are not known"
    return "" if sizes[-1] == rows[-1] and sizes[:-1] == out[:-1] else "the views are not of the same rows"


def _on_the_tensor(found: Match) -> Call:
    product = found["product"]
    target = _LINEAR if aten(product) == "linear" else _OPS.matmul.default
    return Call(target, (found["x"], *product.args[1:]))


def _broadcast(found: Match) -> Call | None:
    # torch.matmul expands both operands to the same leading axes and flattens these to one.
    sides = [_expanded(v, found.root) for v in found["product"].args]
    sizes = [shape(v) for v in sides]
    out = shape(found.root)
    if any(s is None for s in sizes) or out is None:
        return None
    for axis in range(-len(out), -2):
        if not any(len(s) >= -axis and s[axis] == out[axis] for s in sizes if s is not None):
            return None  # both were broadcast
    return Call(_OPS.matmul.default, tuple(sides))


def _expanded(operand: Any, made: fx.Node) -> Any:
    # Return the operand [..., n, m] before it was expanded and reshaped to [batch, n, m].
    flat, out, node = shape(operand), shape(made), operand
    if flat is None or out is None:
        return None
    while shape(node) != (*out[:-2], *flat[-2:]):
        if aten(node) not in _VIEWS:
            return None
        node = node.args[0]
    while aten(node) in (*_VIEWS, "expand") and shape(node.args[0]) == shape(node):
        node = node.args[0]
    narrow = shape(node.args[0]) if aten(node) == "expand" else None
    return node.args[0] if narrow is not None and narrow[-2:] == flat[-2:] else node


def _other_instances(found: Match) -> str:
    # An instance norm decomposes into a batch norm of [1, N C, ...] with tensors repeated N times.
    flat, source, made = shape(found["flat"]), shape(found["x"]), shape(found.root)
    if len(found["norm"].users) != 1:
        return "the norm is read twice"
    fits = flat is not None and flat[0] == "1" and source is not None and source == made and len(flat) == len(source)
    return "" if fits else "the batch norm is not over one channel per instance"


_TENSORS = ("weight", "bias", "mean", "var")
_MODES = ("training", "momentum", "eps")
_REPEATED = [either(op("repeat", tensor(name)), None) for name in _TENSORS]
_ROWS = Through(("clone",), op(_RESHAPE, Through(("clone",), _X)))
UNFLATTENED = (
    Rewrite("product", op(_RESHAPE, op(("linear", "mm"), _ROWS, name="product")), _on_the_tensor,
            check=_other_rows, private=False),
    Rewrite("matmul", op(_RESHAPE, op("bmm", name="product")), _broadcast),
    Rewrite("instance_norm",
            op(_RESHAPE, op("batch_norm", op(_RESHAPE, _X, name="flat"), *_REPEATED, *map(Var, _MODES), name="norm")),
            calls(_OPS.instance_norm.default, "x", *_TENSORS, *_MODES, False), check=_other_instances, private=False),
)  # fmt: skip
"""Ops between two views become ops on the tensor itself."""


def _attention(found: Match) -> Call:
    # Both sides are multiplied by sqrt(scale).
    query, scale = found["query"], found["factor"] * found["factor"]
    width = (shape(query) or ("",))[-1]
    usual = width.isdigit() and math.isclose(scale, int(width) ** -0.5, rel_tol=1e-12)
    mask = found.get("seen") or found.get("mask")
    named = {} if usual else {"scale": scale}
    return Call(_OPS.scaled_dot_product_attention.default, (query, found["key"], found["value"], mask), named)


_FACTOR = number("factor", lambda v: isinstance(v, float))
_SIDES = op("mul", tensor("query"), _FACTOR), op("mul", _transposed(tensor("key")), _FACTOR)
# A boolean mask decomposes into 0 and -infinity.
_MASK = either(op("where", tensor("seen"), op("scalar_tensor", 0.0), op("scalar_tensor", -math.inf)), tensor("mask"))
_SCORES = either(op("add", op("matmul", *_SIDES), _MASK, name="scores", commutative=True), op("matmul", *_SIDES, name="scores"))
_SOME = op("logical_not", op("any", op("logical_not", op("eq", Var("scores"), -math.inf))))
_SOFTMAX = op("where", other=op("softmax", _SCORES), self=op("full_like", Var(""), 0), condition=_SOME)
ATTENTION = (Rewrite("attention", op("matmul", _SOFTMAX, tensor("value")), _attention, private=False),)
"""softmax((q sqrt(scale)) (k^T sqrt(scale)) + mask) v, where rows with no allowed entry are 0."""
