"""Quantizers to floats of 8 bits or fewer: values of FLOAT8E4M3FN, and the functions of the model that round to them."""

from __future__ import annotations

import onnx
import torch
from onnx import helper
from torch import Tensor

from qfunc.lowering.onnx.builder import GraphBuilder
from qfunc.numerics.minifloat import largest
from qfunc.placement.encoding import Encoding
from qfunc.specs import E2M1, E4M3FN, Float, PerBlock, PerChannel, Scheme

STORED = (E4M3FN, E2M1)
"""The formats whose values are values of FLOAT8E4M3FN."""

FLOAT_QUANTIZE = """
<opset_import: ["" : 21], domain: "qfunc">
FloatQuantize <top: float>(x, s) => (y) {
    high = Constant<value_float: float = @top>()
    low = Neg(high)
    unit = Constant<value = float {1.0}>()
    inverse = Div(unit, s)
    scaled = QUOTIENT
    raised = Max(scaled, low)
    inside = Min(raised, high)
    codes = Cast<to = 17>(inside)
    values = Cast<to = 1>(codes)
    y = Mul(values, s)
}
"""
"""Round to values of FLOAT8E4M3FN and multiply by the scale: x_hat = s R(clamp(x / s))."""

DYNAMIC_FLOAT_QUANTIZE = """
<opset_import: ["" : 21], domain: "qfunc">
DynamicFloatQuantize <size: int, top: float, smallest: float>(x) => (y) {
    shape = Shape(x)
    last = Constant<value_int: int = @size>()
    one = Constant<value = int64[1] {1}>()
    size = Reshape(last, one)
    any = Constant<value = int64[1] {-1}>()
    rows = Concat<axis = 0>(any, size)
    groups = Reshape(x, rows)
    sizes = Abs(groups)
    span = ReduceMax<keepdims = 1>(sizes, one)
    high = Constant<value_float: float = @top>()
    ratio = Div(span, high)
    least = Constant<value = float {1.1754943508222875e-38}>()
    tiny = Less(ratio, least)
    unit = Constant<value = float {1.0}>()
    chosen = Where(tiny, unit, ratio)
    lowest = Constant<value_float: float = @smallest>()
    s = Max(chosen, lowest)
    low = Neg(high)
    inverse = Div(unit, s)
    scaled = QUOTIENT
    raised = Max(scaled, low)
    inside = Min(raised, high)
    codes = Cast<to = 17>(inside)
    values = Cast<to = 1>(codes)
    reals = Mul(values, s)
    y = Reshape(reals, shape)
}
"""
"""The same with one scale for each group of `size` entries: s = max(absmax / top, smallest)."""


def is_small_float(scheme: Scheme) -> bool:
    """Return True if FLOAT8E4M3FN holds the codes of a scheme.

    >>> is_small_float(Scheme(E2M1)), is_small_float(Scheme())
    (True, False)
    """
    return scheme.format in STORED


def write_float_quantizer(graph: GraphBuilder, tensor: str, encoding: Encoding, name: str) -> str:
    """Write the quantizer of an activation with one static scale, and return the name of its real values."""
    scheme = encoding.quantizer.module.site.scheme
    scale = graph.constant(step(encoding).reshape(()), f"{name}.scale")
    text = _rounded(FLOAT_QUANTIZE, scheme)
    return graph.call(text, [tensor, scale], f"{name}.real", top=_top(scheme))


def write_dynamic_floats(graph: GraphBuilder, tensor: str, scheme: Scheme, width: int, name: str) -> str:
    """Write the quantizer of a tensor whose scales are computed at run time, and return the name of its real values."""
    shared = scheme.scale.shared
    size = shared.size if isinstance(shared, PerBlock) else width
    text = _rounded(DYNAMIC_FLOAT_QUANTIZE, scheme)
    smallest = scheme.scale.low or 0.0
    return graph.call(text, [tensor], f"{name}.real", size=size, top=_top(scheme), smallest=smallest)


def write_float_constant(graph: GraphBuilder, value: Tensor, encoding: Encoding, name: str) -> str:
    """Return a constant in real units: its codes in FLOAT8E4M3FN, dequantized."""
    dtype = helper.tensor_dtype_to_np_dtype(onnx.TensorProto.FLOAT8E4M3FN)
    scale, shared = step(encoding), encoding.quantizer.module.site.scheme.scale.shared
    attributes: dict[str, int] = {}
    if isinstance(shared, PerBlock):
        attributes = {"axis": shared.axis % value.ndim, "block_size": shared.size}
    elif isinstance(shared, PerChannel):
        attributes, scale = {"axis": int(shared.axis) % value.ndim}, scale.flatten()
    codes = graph.constant(encoding.codes(value).cpu().numpy().astype(dtype), f"{name}.codes")
    qparams = [graph.constant(scale, f"{name}.scale")]
    qparams.append(graph.constant(torch.zeros_like(scale).numpy().astype(dtype), f"{name}.zero_point"))
    return graph.node("DequantizeLinear", [codes, *qparams], f"{name}.real", **attributes)


def step(encoding: Encoding) -> Tensor:
    """Return the scale of the values of a tensor in float32: with two levels, their product."""
    scale, outer = encoding.qparams.scale.float().cpu(), encoding.qparams.outer
    return scale if outer is None else scale * outer.float().cpu()


def _top(scheme: Scheme) -> float:
    assert isinstance(scheme.format, Float)
    return largest(scheme.format)


def _rounded(text: str, scheme: Scheme) -> str:
    operand = "groups" if text is DYNAMIC_FLOAT_QUANTIZE else "x"
    quotient = f"Div({operand}, s)" if scheme.division else f"Mul({operand}, inverse)"
    name = "FloatQuantize" if scheme.division else "FloatQuantizeByInverse"
    return text.replace("QUOTIENT", quotient).replace("FloatQuantize", name)


__all__ = ["STORED", "is_small_float", "step", "write_dynamic_floats", "write_float_constant", "write_float_quantizer"]
