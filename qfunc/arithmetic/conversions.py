"""Quantize and dequantize outside of kernels: codes of real values, and real values of codes."""

from __future__ import annotations

from typing import Any

from attrs import field, frozen

from qfunc.arithmetic.computation import Computation
from qfunc.numerics.kernels.integer import dequantize_codes, quantize_codes, quantize_int32
from qfunc.numerics.kernels.pooling import quantize_interior
from qfunc.numerics.kernels.requantize import quantize_by_range
from qfunc.numerics.kernels.vector import dequantize_sum, quantize_lanes
from qfunc.specs import Int, Scheme
from qfunc.specs._check import ROUNDINGS, instance_of, integer, one_of
from qfunc.specs._values import readable


@frozen
class Plain:
    """q = clamp(R(x / s) + z) and x = (q - z) s in float32, as in ONNX: the conversions of targets without others."""

    def codes(self, real: Any, scale: Any, zero_point: Any, scheme: Scheme, constant: bool) -> Computation:
        """Return the codes of real values."""
        how = (integers(scheme).qmin, integers(scheme).qmax, scheme.rounding, scheme.division)
        if scheme.zero_point is not None and scheme.zero_point.added == "before":
            return Computation(quantize_interior, (real, scale, zero_point, *how, "before"))
        return Computation(quantize_codes, (real, scale, zero_point, *how))

    def reals(self, codes: Any, scale: Any, zero_point: Any) -> Computation:
        """Return the real values of codes."""
        return Computation(dequantize_codes, (codes, scale, zero_point))


@readable
@frozen
class QuantizeInt32:
    """q = clamp(R(x / s) + z) in 32 bits as x86-64 computes it: an R(x / s) outside of int32 is -2^31, and the sum wraps.

    With z < 0, everything beyond 2^31 steps has the highest code, else the lowest.  The arithmetic of Op("quantize"): of
    real values that become codes outside a kernel.  `saturates`: an R(x / s) outside of int32 is the next one in it, and 0
    for NaN, as ARM64 converts; the sum wraps.

    Source: TFLite reference_ops AffineQuantize (static_cast<int32_t>, then the sum, then the clamp); Intel SDM, CVTTSS2SI
        ("the indefinite integer value"); Arm ARM, FCVTZS; measured.

    >>> QuantizeInt32()
    QuantizeInt32()
    """

    saturates: bool = field(default=False, validator=instance_of(bool))

    def codes(self, real: Any, scale: Any, zero_point: Any, scheme: Scheme, constant: bool) -> Computation:
        """Return the codes of real values."""
        ends = (integers(scheme).qmin, integers(scheme).qmax)
        how = (*ends, scheme.rounding, scheme.division, self.saturates)
        return Computation(quantize_int32, (real, scale, zero_point, *how))


@readable
@frozen
class QuantizeLanes:
    """As QuantizeInt32, rounded as in the scheme for runs of `lanes` entries in memory, by `rest` in float64 for those left.

    Source: TFLite optimized_ops AffineQuantize (vectors of 8, then one by one by a double).

    >>> QuantizeLanes()
    QuantizeLanes()
    """

    rest: str = field(default="half_away", validator=one_of(ROUNDINGS))
    lanes: int = field(default=8, validator=integer(1))
    saturates: bool = field(default=False, validator=instance_of(bool))

    def codes(self, real: Any, scale: Any, zero_point: Any, scheme: Scheme, constant: bool) -> Computation:
        """Return the codes of real values."""
        ends = (integers(scheme).qmin, integers(scheme).qmax)
        how = (*ends, scheme.rounding, scheme.division, self.rest, self.lanes, self.saturates)
        return Computation(quantize_lanes, (real, scale, zero_point, *how))


@readable
@frozen
class QuantizeRange:
    """q = R_even(clamp(x, l, h) r + c) + qmin with one rounding for product and sum, r = n/(h - l), c = -l n/(h - l).

    n = qmax - qmin; l = s (qmin - z) and h = s (qmax - z) are the ends of the range.  Each step is in float32.  The scheme's
    rounding should be "half_even_on_index".  The arithmetic of Op("quantize"): of real values that become codes outside a
    kernel.

    Source: OpenVINO operation specification, FakeQuantize-1 (the ends); measured in openvino 2026.4.

    >>> QuantizeRange()
    QuantizeRange()
    """

    def codes(self, real: Any, scale: Any, zero_point: Any, scheme: Scheme, constant: bool) -> Computation:
        """Return the codes of real values; those of a constant are in the file, x / s as in ONNX."""
        ends = (integers(scheme).qmin, integers(scheme).qmax)
        if constant:
            return Computation(quantize_codes, (real, scale, zero_point, *ends, "half_even", True))
        return Computation(quantize_by_range, (real, scale, zero_point, *ends))


@readable
@frozen
class DequantizeSum:
    """x = float32(q s) + float32(-z s) for runs of `lanes` entries in memory, (q - z) s for those left over.

    The arithmetic of Op("dequantize"): of codes that an output, or an op in float, reads.  `fma`: the sum is fused with the
    product q s.

    Source: TFLite optimized_ops Dequantize (vectors of 8, then one by one; vmlaq is fused on ARM64).

    >>> DequantizeSum()
    DequantizeSum()
    """

    lanes: int = field(default=8, validator=integer(1))
    fma: bool = field(default=False, validator=instance_of(bool))

    def reals(self, codes: Any, scale: Any, zero_point: Any) -> Computation:
        """Return the real values of codes."""
        return Computation(dequantize_sum, (codes, scale, zero_point, self.lanes, self.fma))


def integers(scheme: Scheme) -> Int:
    """Return the integer format of a scheme."""
    assert isinstance(scheme.format, Int)
    return scheme.format
