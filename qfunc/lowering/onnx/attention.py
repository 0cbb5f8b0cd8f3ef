"""Write attention, scales and masks as ONNX."""

from __future__ import annotations

import math

import numpy as np
import torch

from qfunc.lowering.onnx.context import OpContext, known
from qfunc.lowering.onnx.dynamic_shapes import causal
from qfunc.lowering.onnx.formula import Write


def _scale(c: OpContext) -> str:
    factor = known(c, c.shape("like").dims[-1]) ** -0.5 if c["factor"] is None else float(c["factor"])
    return c.write("Mul", c.input(), c.graph.number(factor, f"{c.name}.factor"))


def _mask(c: OpContext) -> str:
    g, minus_infinity = c.graph, -math.inf
    if c["causal"]:
        op, operands = causal(c, c.input(), c.shape().dims[-2:])
        return c.write(op, *operands)
    if c["mask"] is None:
        return c.write("Identity", c.input())
    if c.shape("mask").dtype == torch.bool:
        return c.write("Where", c.input("mask"), c.input(), g.number(minus_infinity, f"{c.name}.drop"))
    return c.write("Add", c.input(), c.input("mask"))


def _masked_softmax(c: OpContext) -> str:
    g, dims = c.graph, c.shape().dims[-2:]
    if c["drop"] is not None:
        op, operands = "Where", [c.input("drop"), g.number(-math.inf, f"{c.name}.drop"), c.input()]
    elif all(d is not None for d in dims):
        late = g.constant(~np.tril(np.ones([int(d or 0) for d in dims], bool)), f"{c.name}.late")
        op, operands = "Where", [late, g.number(-math.inf, f"{c.name}.drop"), c.input()]
    else:
        op, operands = causal(c, c.input(), dims)
    return c.write("Softmax", g.node(op, operands, f"{c.name}.masked"), axis=-1)


def _negate_mask(c: OpContext) -> str:
    return c.write("Not" if c.shape("mask").dtype == torch.bool else "Identity", c.input("mask"))


def _sdpa(c: OpContext) -> str:
    g, name = c.graph, c.name
    rank, width = c.shape("query").rank, known(c, c.shape("query").dims[-1])
    order = [*range(rank - 2), rank - 1, rank - 2]
    scores = g.node(
        "MatMul", [c.input("query"), g.node("Transpose", [c.input("key")], f"{name}.key", perm=order)], f"{name}.product"
    )
    scores = g.node("Mul", [scores, g.number(1 / math.sqrt(width), f"{name}.factor")], f"{name}.scores")
    if c["is_causal"]:
        op, operands = causal(c, scores, [c.shape(p).dims[-2] for p in ("query", "key")])
        scores = g.node(op, operands, f"{name}.masked")
    elif c["attn_mask"] is not None:
        mask_name = c.input("attn_mask")
        if c.shape("attn_mask").dtype == torch.bool:
            limits = [g.number(v, f"{name}.{n}") for v, n in ((0.0, "keep"), (-math.inf, "drop"))]
            mask_name = g.node("Where", [mask_name, *limits], f"{name}.mask")
        scores = g.node("Add", [scores, mask_name], f"{name}.masked")
    return c.write("MatMul", g.node("Softmax", [scores], f"{name}.weights", axis=-1), c.input("value"))


def _repeat_heads(c: OpContext) -> str:
    heads, times = known(c, c.shape().dims[-3]), known(c, c.shape("like").dims[-3])
    indices = np.repeat(np.arange(heads), times // heads).astype(np.int64)
    return c.write("Gather", c.input(), c.graph.constant(indices, f"{c.name}.places"), axis=c.shape().rank - 3)


CACHED_ATTENTION = """
<opset_import: ["" : 21], domain: "qfunc">
CachedAttention <heads: ints, factor: float>(query, key, value, positions) => (y) {
    served = Constant<value_ints: ints = @heads>()
    keys = Gather<axis: int = 1>(key, served)
    values = Gather<axis: int = 1>(value, served)
    columns = Transpose<perm: ints = [0, 1, 3, 2]>(keys)
    products = MatMul(query, columns)
    f = Constant<value_float: float = @factor>()
    scores = Mul(products, f)
    shape = Shape<start: int = 2, end: int = 3>(key)
    length = Squeeze(shape)
    first = Constant<value = int64 {0}>()
    step = Constant<value = int64 {1}>()
    places = Range(first, length, step)
    axes = Constant<value = int64[2] {1, 3}>()
    queries = Unsqueeze(positions, axes)
    seen = LessOrEqual(places, queries)
    least = Constant<value = float {-3.4028234663852886e38}>()
    masked = Where(seen, scores, least)
    weights = Softmax<axis: int = -1>(masked)
    y = MatMul(weights, values)
}
"""
"""`ops.attention.cached_attention`; head i of the queries reads the head heads[i] of keys and values."""


def _cached_attention(c: OpContext) -> str:
    queries, heads = (int(known(c, c.shape(name).dims[1])) for name in ("query", "key"))
    served = [i * heads // queries for i in range(queries)]
    inputs = [c.input(name) for name in ("query", "key", "value", "positions")]
    return c.graph.call(CACHED_ATTENTION, inputs, c.name, heads=served, factor=float(c["factor"]))


WRITERS: dict[str, Write] = {
    "sdpa": _sdpa, "scale": _scale, "mask": _mask, "masked_softmax": _masked_softmax, "left_out": _negate_mask,
    "repeat_heads": _repeat_heads, "cached_attention": _cached_attention,
}  # fmt: skip
"""The writers of this family, by kind."""
