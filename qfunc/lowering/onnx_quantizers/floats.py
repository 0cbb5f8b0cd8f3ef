"""Quantizers to floats of 8 bits or fewer: values of FLOAT8E4M3FN, and the functions of the model that round to them."""

from __future__ import annotations

import onnx
import torch
from onnx import helper
from torch import Tensor

from qfunc.lowering.onnx.builder import GraphBuilder
from qfunc.numerics.minifloat import largest
from qfunc.placement.encoding import Encoding
from qfunc.specs import Float, PerBlock, PerChannel, Scheme
from qfunc.specs.formats import E2M1, E4M3FN, E8M0

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
DynamicFloatQuantize <size: int, top: float, PARAMETER: float>(x) => (y) {
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
    unit = Constant<value = float {1.0}>()
    parameter = Constant<value_float: float = @PARAMETER>()
SCALE
    low = Neg(high)
    inverse = Div(unit, s)
    scaled = QUOTIENT
    raised = Max(scaled, low)
    inside = Min(raised, high)
ROUNDED
    reals = Mul(values, s)
    y = Reshape(reals, shape)
}
"""
"""The same with one scale for each group of `size` entries, from its absmax."""

_PLAIN_SCALE = """
    tiny = Less(ratio, least)
    chosen = Where(tiny, unit, ratio)
    s = Max(chosen, parameter)
"""
"""s = max(absmax / top, smallest)."""

_POWER_SCALE = """
    wide = Cast<to = 11>(ratio)
    log = Log(wide)
    two = Constant<value = double {2.0}>()
    log_two = Log(two)
    octaves = Div(log, log_two)
    exponent = Round(octaves)
    power = Pow(two, exponent)
    below = Less(power, wide)
    next = Add(power, power)
    reached = Where(below, next, power)
    narrow = Cast<to = 1>(reached)
    s = Max(narrow, parameter)
"""
"""s is the smallest power of two with absmax / top <= s; at least the smallest of E8M0."""

_INNER_SCALE = """
    tiny = Less(ratio, least)
    quotient = Div(ratio, parameter)
    real = Where(tiny, unit, quotient)
    gone = Less(real, least)
    chosen = Where(gone, unit, real)
    smallest = Constant<value = float {0.001953125}>()
    largest = Constant<value = float {448.0}>()
    above = Max(chosen, smallest)
    between = Min(above, largest)
    stored = Cast<to = 17>(between)
    inner = Cast<to = 1>(stored)
    s = Mul(inner, parameter)
"""
"""s = E4M3(absmax / (top outer)) outer."""

_BYTES = """
    codes = Cast<to = 17>(inside)
    values = Cast<to = 1>(codes)
"""
_HALVES = """
    magnitude = Abs(inside)
    two_steps = Constant<value = float {2.0}>()
    four_steps = Constant<value = float {4.0}>()
    half = Constant<value = float {0.5}>()
    fine = Less(magnitude, two_steps)
    middle = Less(magnitude, four_steps)
    coarse = Where(middle, unit, two_steps)
    step = Where(fine, half, coarse)
    steps = Div(inside, step)
    whole = Round(steps)
    values = Mul(whole, step)
"""
"""Values of E2M1, half to even: steps of 1/2 below 2, of 1 below 4, of 2 from there on."""


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
    text = _rounded(FLOAT_QUANTIZE, scheme, "x")
    return graph.call(text, [tensor, scale], f"{name}.real", top=_top(scheme))


def write_dynamic_floats(graph: GraphBuilder, tensor: str, scheme: Scheme, width: int, name: str, outer: float = 1.0) -> str:
    """Write the quantizer of a tensor whose scales are computed at run time, and return the name of its real values.

    Args:
        width: The length of the tensor's last axis.
        outer: The outer scale of a scheme with two levels.
    """
    shared, scale = scheme.scale.shared, scheme.scale
    size = shared.size if isinstance(shared, PerBlock) else width
    form, lines, parameter, value = "", _PLAIN_SCALE, "smallest", scale.low or 0.0
    if scale.format == E8M0:
        form, lines, value = "Power", _POWER_SCALE, 2.0**-127
    elif scale.within is not None:
        form, lines, parameter, value = "Inner", _INNER_SCALE, "outer", outer
    halves = scheme.format == E2M1
    text = DYNAMIC_FLOAT_QUANTIZE.replace("SCALE", lines).replace("ROUNDED", _HALVES if halves else _BYTES)
    text = text.replace("PARAMETER", parameter)
    text = _rounded(text, scheme, "groups").replace("DynamicFloat", f"Dynamic{form}{'Half' if halves else 'Float'}")
    return graph.call(text, [tensor], f"{name}.real", size=size, top=_top(scheme), **{parameter: value})


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


def _rounded(text: str, scheme: Scheme, operand: str) -> str:
    quotient = f"Div({operand}, s)" if scheme.division else f"Mul({operand}, inverse)"
    name = "FloatQuantize" if scheme.division else "FloatQuantizeByInverse"
    return text.replace("QUOTIENT", quotient).replace("FloatQuantize", name)
