"""The nodes that quantize one tensor: Q/DQ for integers, functions of the model for other formats."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from onnx import helper
from torch import Tensor

from qfunc.lowering.onnx.builder import GraphBuilder, storage, stored_in
from qfunc.lowering.onnx_quantizers.floats import is_small_float, write_float_constant, write_float_quantizer
from qfunc.numerics.logarithmic import origin
from qfunc.placement.encoding import Encoding, is_integer_encoding, require_integers
from qfunc.specs import Int, Log, PerBlock, PerChannel
from qfunc.specs.protocols import OnnxFunction

LOG_QUANTIZE = """
<opset_import: ["" : 21], domain: "qfunc">
LogQuantize <steps: float, top: float>(x, z) => (y) {
    real = Cast<to=11>(x)
    least = Cast<to=11>(z)
    k = Constant<value_float: float = @steps>()
    steps = Cast<to=11>(k)
    n = Constant<value_float: float = @top>()
    top = Cast<to=11>(n)
    zero = Constant<value = double {0.0}>()
    one = Constant<value = double {1.0}>()
    ln2 = Constant<value = double {0.6931471805599453}>()
    magnitude = Abs(real)
    nepers = Log(magnitude)
    octaves = Div(nepers, ln2)
    scaled = Mul(octaves, steps)
    rounded = Round(scaled)
    shifted = Sub(rounded, least)
    negative = Less(real, zero)
    low = Where(negative, one, zero)
    above = Max(shifted, low)
    code = Min(above, top)
    place = Add(code, least)
    power = Div(place, steps)
    exponent = Mul(power, ln2)
    value = Exp(exponent)
    start = Add(least, low)
    first = Div(start, steps)
    halved = Sub(first, one)
    bound = Mul(halved, ln2)
    threshold = Exp(bound)
    small = Less(magnitude, threshold)
    signs = Sign(real)
    signed = Mul(signs, value)
    held = Where(small, zero, signed)
    y = Cast<to=1>(held)
}
"""
"""NNIE's logarithmic quantizer as `numerics.logarithmic` states it, in double precision."""


WIDE_DEQUANTIZE = """
<opset_import: ["" : 21], domain: "qfunc">
DequantizeLinear <axis: int = 0>(codes, scale, zero_point) => (y) {
    offset = Sub(codes, zero_point)
    real = Cast<to=1>(offset)
    y = Mul(real, scale)
}
"""
"""DequantizeLinear of a vector of int64, such as a bias: ONNX's own has at most int32."""


def write_quantizer(graph: GraphBuilder, tensor: str, encoding: Encoding, name: str, hidden: bool = False) -> str:
    """Write the quantizer of a float tensor, and return the name of its values in real units, `name.real`.

    `hidden` keeps ONNX Runtime from fusing the pair into integer kernels.  A quantize function with a method
    `onnx(graph, tensor, qparams, scheme, name)` writes its own nodes.  Narrow integers are clipped first, because
    QuantizeLinear saturates at the ends of its type.

    Raises:
        SpecError: a format that has no ONNX operator.
    """
    site = encoding.quantizer.module.site
    if isinstance(site.function, OnnxFunction):
        return site.function.onnx(graph, tensor, encoding.qparams, site.scheme, f"{name}.real")
    fmt = site.scheme.format
    if isinstance(fmt, Log) and _logarithmic(encoding):
        z = graph.constant(origin(encoding.qparams.scale, fmt).float(), f"{name}.origin")
        steps, top = float(fmt.steps_per_octave), float((1 << fmt.magnitude_bits) - 1)
        return graph.call(LOG_QUANTIZE, [tensor, z], f"{name}.real", steps=steps, top=top)
    if is_small_float(site.scheme):
        return write_float_quantizer(graph, tensor, encoding, name)
    require_writable(encoding)
    codes_of = encoding.format
    storage_type = stored_in(codes_of, whole=hidden)
    parameters, attributes = _qparams(graph, encoding, name, storage(storage_type, name))
    if (codes_of.qmin, codes_of.qmax) != (storage_type.qmin, storage_type.qmax):
        tensor = _clipped(graph, tensor, encoding, name)
    if not hidden:
        codes = graph.node("QuantizeLinear", [tensor, *parameters], f"{name}.codes", **attributes)
        return graph.node("DequantizeLinear", [codes, *parameters], f"{name}.real", **attributes)
    # ONNX Runtime also fuses pairs of codes for which it has no kernel, and then refuses to load the model or changes
    # the codes.  It does not look through a Max of one tensor, which is a copy.
    copied = graph.node("Max", [tensor], f"{name}.copied")
    codes = graph.node("QuantizeLinear", [copied, *parameters], f"{name}.codes", **attributes)
    real = graph.node("DequantizeLinear", [codes, *parameters], f"{name}.held", **attributes)
    return graph.node("Max", [real], f"{name}.real")


def write_constant(graph: GraphBuilder, value: Tensor, encoding: Encoding, name: str, rows: Tensor | None = None) -> str:
    """Return a quantized constant in real units: its codes dequantized (narrow ones in bytes), or its values for a Log format.

    `rows` permutes the constant's rows and adds a first axis.
    """

    def permute(tensor: Tensor) -> Tensor:
        return tensor if rows is None else tensor[rows][None]

    if _logarithmic(encoding):
        module = encoding.quantizer.module
        with torch.no_grad():
            return graph.constant(permute(module.site.function.apply(module.params(), value, module.site.scheme)), name)
    if is_small_float(encoding.quantizer.module.site.scheme):
        return write_float_constant(graph, value, encoding, name)
    require_writable(encoding)
    fmt = encoding.format
    storage_type = Int(next(b for b in (8, 16, 32, 64) if b >= fmt.bits), fmt.signed)
    stored = graph.stored(permute(encoding.codes(value)), storage_type, f"{name}.codes")
    parameters, attributes = _qparams(graph, encoding, name, storage(storage_type, name), rows)
    if storage_type.bits == 64:
        return graph.call(WIDE_DEQUANTIZE, [stored, *parameters], f"{name}.real", **attributes)
    return graph.node("DequantizeLinear", [stored, *parameters], f"{name}.real", **attributes)


def require_writable(encoding: Encoding) -> None:
    """Raise if ONNX has no form of a site's format.

    Raises:
        SpecError: names the site.
    """
    if not is_integer_encoding(encoding.quantizer) and not _logarithmic(encoding) and not _in_blocks(encoding):
        require_integers(encoding.quantizer)


def _in_blocks(encoding: Encoding) -> bool:
    site = encoding.quantizer.module.site
    return site.constant and isinstance(site.scheme.format, Int) and isinstance(site.scheme.scale.shared, PerBlock)


def _logarithmic(encoding: Encoding) -> bool:
    return isinstance(encoding.quantizer.module.site.scheme.format, Log) and encoding.qparams.scale.numel() == 1


def _qparams(
    graph: GraphBuilder, encoding: Encoding, name: str, kind: int, rows: Tensor | None = None
) -> tuple[list[str], dict[str, Any]]:
    """Return ([scale, zero point], attributes): rank 0 per tensor, rank 1 with an axis per channel."""
    scheme = encoding.quantizer.module.site.scheme
    scale, zero = encoding.qparams.scale.flatten(), encoding.qparams.zero_point.flatten()
    axis, shared = None, scheme.scale.shared
    if isinstance(shared, PerBlock):
        zeros = encoding.qparams.zero_point.cpu().numpy().astype(helper.tensor_dtype_to_np_dtype(kind))
        names = [graph.constant(encoding.qparams.scale.float(), f"{name}.scale"), graph.constant(zeros, f"{name}.zero_point")]
        return names, {"axis": shared.axis % zeros.ndim, "block_size": shared.size}
    if isinstance(shared, PerChannel):
        axis = int(shared.axis) % max(encoding.qparams.scale.ndim, 1)
    elif encoding.qparams.scale.ndim == 0:
        scale, zero = scale.reshape(()), zero.reshape(())
    if rows is not None and axis is not None:
        scale, zero = (scale, zero) if axis else (scale[rows], zero[rows])
        axis += 1
    zeros = zero.cpu().numpy().astype(np.int64).astype(helper.tensor_dtype_to_np_dtype(kind))
    names = [graph.constant(scale.float(), f"{name}.scale"), graph.constant(zeros, f"{name}.zero_point")]
    return names, {} if axis is None else {"axis": axis}


def _clipped(graph: GraphBuilder, tensor: str, encoding: Encoding, name: str) -> str:
    # (q - z) s divided by s is within an ulp of q - z, so that the ends stay codes of the format.
    fmt, scale, zero = encoding.format, encoding.qparams.scale.cpu(), encoding.qparams.zero_point.cpu()
    ends = [graph.constant(((q - zero) * scale).float(), f"{name}.{end}") for q, end in ((fmt.qmin, "low"), (fmt.qmax, "high"))]
    if scale.ndim == 0:
        return graph.node("Clip", [tensor, *ends], f"{name}.clipped")
    above = graph.node("Max", [tensor, ends[0]], f"{name}.raised")  # Clip's ends are scalars
    return graph.node("Min", [above, ends[1]], f"{name}.clipped")
