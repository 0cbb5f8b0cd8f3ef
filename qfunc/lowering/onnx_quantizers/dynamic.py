"""Quantizers whose scales are computed at run time, as functions of the ONNX model."""

from __future__ import annotations

from qfunc.lowering.onnx.builder import GraphBuilder
from qfunc.lowering.onnx_quantizers.floats import write_dynamic_floats
from qfunc.numerics.scales import divisor
from qfunc.specs import BFLOAT16, FLOAT16, Float, Int, PerBlock, PerTensor, Scheme

DYNAMIC_QUANTIZE = """
<opset_import: ["" : 21], domain: "qfunc">
DynamicQuantize <size: int, steps: float, smallest: float, largest: float>(x) => (y) {
    shape = Shape(x)
    last = Constant<value_int: int = @size>()
    one = Constant<value = int64[1] {1}>()
    size = Reshape(last, one)
    any = Constant<value = int64[1] {-1}>()
    rows = Concat<axis = 0>(any, size)
FILLED
    zero = Constant<value = float {0.0}>()
EXTREMES
    n = Constant<value_float: float = @steps>()
    wide_n = Cast<to = 11>(n)
    wide = Div(wide_span, wide_n)
    ratio = Cast<to = 1>(wide)
    least = Constant<value = float {1.1754943508222875e-38}>()
    tiny = Less(ratio, least)
    unit = Constant<value = float {1.0}>()
    chosen = Where(tiny, unit, ratio)
    narrow = Cast<to = FORMAT>(chosen)
    s = Cast<to = 1>(narrow)
    c = Constant<value_float: float = @smallest>()
    d = Constant<value_float: float = @largest>()
ZERO_POINT
    inverse = Div(unit, CODED)
    scaled = QUOTIENT
    rounded = Round(scaled)
    moved = Add(rounded, z)
    raised = Max(moved, c)
    codes = Min(raised, d)
    offsets = Sub(codes, z)
    reals = Mul(offsets, s)
RESULT
}
"""
"""Quantize and dequantize groups of `size` entries, with the scales and zero points of `numerics.qparams.of_tensor`."""

_WHOLE_GROUPS = "    groups = Reshape(x, rows)", "    y = Reshape(reals, shape)"
_FILLED_GROUPS = (
    """
    length = Shape<start: int = -1>(x)
    beyond = Neg(length)
    missing = Mod(beyond, size)
    none = Constant<value = int64[1] {0}>()
    pads = Concat<axis = 0>(none, missing)
    filled = Pad(x, pads, , any)
    groups = Reshape(filled, rows)
""",
    """
    filled_shape = Shape(filled)
    every = Reshape(reals, filled_shape)
    y = Slice(every, none, length, any)
""",
)
"""The groups of x and its values again, also where a partial last group is filled with zeros."""

_AFFINE_EXTREMES = """
    lows = ReduceMin<keepdims = 1>(groups, one)
    low = Min(lows, zero)
    highs = ReduceMax<keepdims = 1>(groups, one)
    high = Max(highs, zero)
    wide_low = Cast<to = 11>(low)
    wide_high = Cast<to = 11>(high)
    wide_span = Sub(wide_high, wide_low)
"""
_AFFINE_ZERO_POINT = """
    wide_s = Cast<to = 11>(s)
    below = Div(wide_low, wide_s)
    wide_c = Cast<to = 11>(c)
    from_low = Sub(wide_c, below)
NEAREST
    whole = Round(offset)
    wide_z = Cast<to = 1>(whole)
    above = Max(wide_z, c)
    z = Min(above, d)
"""
_FROM_LOW = "    offset = Identity(from_low)"
_FROM_NEAREST = """
    beyond = Div(wide_high, wide_s)
    wide_d = Cast<to = 11>(d)
    from_high = Sub(wide_d, beyond)
    size_c = Abs(wide_c)
    size_low = Abs(below)
    error_low = Add(size_c, size_low)
    size_d = Abs(wide_d)
    size_high = Abs(beyond)
    error_high = Add(size_d, size_high)
    lower = Less(error_low, error_high)
    offset = Where(lower, from_low, from_high)
"""
_SYMMETRIC_EXTREMES = """
    sizes = Abs(groups)
    span = ReduceMax<keepdims = 1>(sizes, one)
    wide_span = Cast<to = 11>(span)
"""
_SYMMETRIC_ZERO_POINT = "    z = Identity(zero)"


def write_dynamic_quantizer(
    graph: GraphBuilder, tensor: str, scheme: Scheme, width: int | None, name: str, outer: float = 1.0
) -> str:
    """Write the quantizer of a tensor whose scales are computed at run time, and return the name of its real values.

    Args:
        width: The length of the tensor's last axis; None for one that varies, if the tensor is a single group.
        outer: The outer scale of a scheme with two levels.
    """
    fmt, shared = scheme.format, scheme.scale.shared
    if isinstance(shared, PerTensor):
        # The arithmetics that take it have the scheme of this operator.
        codes, scale, zero_point = (f"{name}.{part}_at_run_time" for part in ("codes", "scale", "zero_point"))
        graph.many("DynamicQuantizeLinear", [tensor], [codes, scale, zero_point])
        return graph.node("DequantizeLinear", [codes, scale, zero_point], f"{name}.real")
    assert width is not None
    if isinstance(fmt, Float):
        return write_dynamic_floats(graph, tensor, scheme, width, name, outer)
    assert isinstance(fmt, Int)  # DynamicProduct requires it
    symmetric = scheme.symmetric
    text = DYNAMIC_QUANTIZE.replace("EXTREMES", _SYMMETRIC_EXTREMES if symmetric else _AFFINE_EXTREMES)
    text = text.replace("ZERO_POINT", _SYMMETRIC_ZERO_POINT if symmetric else _AFFINE_ZERO_POINT)
    nearest = scheme.zero_point is not None and scheme.zero_point.nudge == "nearest"
    text = text.replace("NEAREST", _FROM_NEAREST if nearest else _FROM_LOW)
    text = text.replace("FORMAT", {FLOAT16: "10", BFLOAT16: "16"}.get(scheme.scale.format, "1"))
    text = text.replace("QUOTIENT", "Div(groups, CODED)" if scheme.division else "Mul(groups, inverse)")
    after = scheme.scale.rounded == "after"
    text = text.replace("CODED", "chosen" if after else "s")
    size = shared.size if isinstance(shared, PerBlock) else width
    partial = width % size > 0
    for place, lines in zip(("FILLED", "RESULT"), _FILLED_GROUPS if partial else _WHOLE_GROUPS, strict=True):
        text = text.replace(place, lines)
    forms = (
        ("Partial", partial),
        ("Symmetric", symmetric),
        ("Div", scheme.division),
        ("Low", not (symmetric or nearest)),
        ("After", after),
    )
    name_of = "DynamicQuantize" + "".join(word for word, holds in forms if holds)  # one function for each form
    text = text.replace("DynamicQuantize", name_of + {FLOAT16: "Half", BFLOAT16: "Brain"}.get(scheme.scale.format, ""))
    steps = divisor(scheme) if symmetric else float(fmt.qmax - fmt.qmin)
    ends = {"smallest": float(fmt.qmin), "largest": float(fmt.qmax)}
    return graph.call(text, [tensor], f"{name}.real", size=size, steps=steps, **ends)
