"""The node of a constant in blocks with minimums, or with integers as scales."""

from __future__ import annotations

import torch
from torch import Tensor

from qfunc.lowering.onnx.builder import GraphBuilder
from qfunc.placement.encoding import Encoding
from qfunc.specs import Int, PerBlock

DEQUANTIZE_BLOCKS = """
<opset_import: ["" : 21], domain: "qfunc">
DequantizeBlocks <block_size: int>(codes, scale, outer, minimum, outer_minimum) => (y) {
    shape = Shape(codes)
    reals = Cast<to = 1>(codes)
    size = Constant<value_int: int = @block_size>()
    vector = Constant<value = int64[1] {-1}>()
    last = Reshape(size, vector)
    any = Constant<value = int64[1] {-1}>()
    rows = Concat<axis = 0>(any, last)
    groups = Reshape(reals, rows)
    full = Mul(scale, outer)
    column = Constant<value = int64[2] {-1, 1}>()
    step = Reshape(full, column)
    scaled = Mul(groups, step)
    lowest = Mul(minimum, outer_minimum)
    offset = Reshape(lowest, column)
    moved = Add(scaled, offset)
    y = Reshape(moved, shape)
}
"""
"""x_hat = q s + m in blocks of the last axis, as `numerics.affine.dequantize` computes it."""


def write_block_constant(graph: GraphBuilder, value: Tensor, encoding: Encoding, name: str) -> str:
    """Return a constant in blocks with minimums, or with integers as scales, in real units: its codes dequantized.

    All four parameters have an entry for each block; outer scales that the scheme does not have are 1, and minimums 0.
    """
    scheme, qparams = encoding.quantizer.module.site.scheme, encoding.qparams
    assert isinstance(scheme.scale.shared, PerBlock)  # GgmlBlocks requires it
    codes = graph.stored(encoding.codes(value), Int(8, encoding.format.signed), f"{name}.codes")
    one, nothing = torch.ones_like(qparams.scale), torch.zeros_like(qparams.scale)
    given = (
        ("scale", qparams.scale),
        ("outer", one if qparams.outer is None else qparams.outer),
        ("minimum", nothing if qparams.minimum is None else qparams.minimum),
        ("outer_minimum", one if qparams.outer_minimum is None else qparams.outer_minimum),
    )
    constants = [graph.constant(tensor.float(), f"{name}.{part}") for part, tensor in given]
    return graph.call(DEQUANTIZE_BLOCKS, [codes, *constants], f"{name}.real", block_size=scheme.scale.shared.size)


__all__ = ["write_block_constant"]
