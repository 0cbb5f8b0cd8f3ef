"""Core ops that were products: linear layers, matrix products with their broadcasting, instance norms, attention."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from qfunc.frontend.export.aten import Call, args, aten, behind, is_constant, read, shape

_OPS: Any = torch.ops.aten
_VIEWS = ("view", "reshape", "clone")
Rewrites = dict[str, Callable[[fx.Node], Any]]


def _transposed(node: Any) -> Any:
    # The tensor whose last two axes a node swaps; None of anything else.
    dims = node.args[1] if aten(node) == "permute" else ()
    if dims and [d % len(dims) for d in dims] == [*range(len(dims) - 2), len(dims) - 1, len(dims) - 2]:
        return node.args[0]
    rank = len(shape(node) or ())
    if aten(node) == "transpose" and rank and {d % rank for d in node.args[1:]} == {rank - 1, rank - 2}:
        return node.args[0]
    return node.args[0] if aten(node) == "t" else None


def _weight(node: Any) -> Any:
    # The parameter, or part of one, [out, in] of which a product takes the transpose.
    held = _transposed(node)
    return held if is_constant(held) and len(shape(held) or ()) == 2 else None


def _is_bias(node: Any, weight: fx.Node) -> bool:
    return is_constant(node) and shape(node) == (shape(weight) or ())[:1]


def _mm(node: fx.Node) -> Call | None:
    weight = _weight(node.args[1])
    return None if weight is None else Call(_OPS.linear.default, (node.args[0], weight, None))


def _addmm(node: fx.Node) -> Call | None:
    bias, x, other = args(node)
    weight = None if node.kwargs else _weight(other)
    return None if weight is None or not _is_bias(bias, weight) else Call(_OPS.linear.default, (x, weight, bias))


def _unflattened(node: fx.Node) -> Call | None:
    """A view of what was computed on a view: the op on the tensor itself."""
    inner = args(node)[0]
    if not isinstance(inner, fx.Node) or len(inner.users) != 1:
        return None
    match aten(inner):
        case "linear" | "mm":
            x = _rows(inner.args[0], node)
            target = _OPS.linear.default if aten(inner) == "linear" else _OPS.matmul.default
            return None if x is None else Call(target, (x, *inner.args[1:]))
        case "bmm":
            return _broadcast(inner, node)
        case "batch_norm":
            return _instance_norm(inner, node)
    return None


def _rows(flat: Any, made: fx.Node) -> Any:
    # The tensor of which a product takes the rows, [rows, in], where `made` is [..., out] of the same rows.
    x = behind(flat, "clone")
    x = behind(x.args[0], "clone") if aten(x) in ("view", "reshape") else None
    sizes, rows, out = shape(x), shape(flat), shape(made)
    if sizes is None or rows is None or out is None or len(rows) != 2 or not sizes:
        return None
    return x if sizes[-1] == rows[-1] and sizes[:-1] == out[:-1] else None


def _broadcast(product: fx.Node, made: fx.Node) -> Call | None:
    # torch.matmul expands both operands to the same leading axes, and makes one of these.
    sides = [_expanded(v, made) for v in product.args]
    sizes = [shape(v) for v in sides]
    out = shape(made)
    if any(s is None for s in sizes) or out is None:
        return None
    for axis in range(-len(out), -2):
        if not any(len(s) >= -axis and s[axis] == out[axis] for s in sizes if s is not None):
            return None  # both were broadcast
    return Call(_OPS.matmul.default, tuple(sides))


def _expanded(operand: Any, made: fx.Node) -> Any:
    # The operand [..., n, m] as it was before it was expanded, and made [batch, n, m].
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


def _instance_norm(norm: fx.Node, made: fx.Node) -> Call | None:
    # It was a batch norm of [1, N * C, ...], whose tensors were repeated for each of N.
    x, *held, training, momentum, eps, _ = args(norm)
    flat, source = shape(x), x.args[0] if aten(x) in ("view", "reshape") else None
    repeated = all(v is None or aten(v) == "repeat" for v in held)
    if flat is None or flat[0] != "1" or not repeated or shape(source) is None or shape(source) != shape(made):
        return None
    if len(flat) != len(shape(made) or ()):
        return None
    return Call(_OPS.instance_norm.default, (source, *(behind(v, "repeat") for v in held), training, momentum, eps, False))


def _matmul(node: fx.Node) -> Call | None:
    weight = _weight(node.args[1])
    return None if weight is None else Call(_OPS.linear.default, (node.args[0], weight, None))


def _biased(node: fx.Node) -> Call | None:
    a, b = args(node)[:2]
    for product, bias in ((a, b), (b, a)):
        given = read(product, "linear")
        if given and given[2] is None and len(product.users) == 1 and _is_bias(bias, given[1]) and not node.kwargs:
            return Call(_OPS.linear.default, (*given[:2], bias))
    return None


def _attention(node: fx.Node) -> Call | None:
    # softmax((q sqrt(scale)) (k^T sqrt(scale)) + mask) v, where rows that are masked as a whole are 0
    weights, value = args(node)
    scores, mask = _softened(weights), None
    if aten(scores) == "add":
        left, right = scores.args[:2]
        scores, mask = (left, right) if aten(left) == "matmul" else (right, left)
    sides = [scaled for side in read(scores, "matmul") if (scaled := _times(side)) is not None]
    if len(sides) != 2:
        return None
    (query, factor), (turned, other) = sides
    key = _transposed(turned)
    if key is None or factor != other:
        return None
    width, scale = (shape(query) or ("",))[-1], factor * other
    usual = width.isdigit() and math.isclose(scale, int(width) ** -0.5, rel_tol=1e-12)
    named = {} if usual else {"scale": scale}
    return Call(_OPS.scaled_dot_product_attention.default, (query, key, value, _booleans(mask)), named)


def _times(node: Any) -> tuple[Any, float] | None:
    given = read(node, "mul")
    return (given[0], given[1]) if given and isinstance(given[1], float) else None


def _softened(node: Any) -> Any:
    # The scores of torch's softmax that gives 0 where all are -infinity.
    some, zeros, soft = read(node, "where") or (None, None, None)
    scores = (read(soft, "softmax") or (None,))[0]
    for name in ("logical_not", "any", "logical_not"):
        some = (read(some, name) or (None,))[0]
    masked = read(some, "eq") == (scores, -math.inf) and read(zeros, "full_like")[1:] == (0,)
    return scores if scores is not None and masked else None


def _booleans(mask: Any) -> Any:
    # The mask whose False became -infinity.
    given = read(mask, "where")
    numbers = [(read(v, "scalar_tensor") or (None,))[0] for v in given[1:]]
    return given[0] if numbers == [0.0, -math.inf] else mask


WEIGHTS: Rewrites = {"mm": _mm, "addmm": _addmm}
UNFLATTENED: Rewrites = {"view": _unflattened, "reshape": _unflattened}
PRODUCTS: Rewrites = {"matmul": _matmul}
BIASES: Rewrites = {"add": _biased}
ATTENTION: Rewrites = {"matmul": _attention}

__all__ = ["ATTENTION", "BIASES", "PRODUCTS", "UNFLATTENED", "WEIGHTS"]
