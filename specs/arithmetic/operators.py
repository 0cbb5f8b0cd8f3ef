"""Arithmetic of single operators: average pools, softmax, curves, resizing.

Each value is one runtime's own form, implemented once.  Notation: x the input codes minus their zero point, s_x and s_y
the scales, z the output's zero point, R the rounding.
"""

from __future__ import annotations

from attrs import field, frozen

from qfunc.specs._check import ROUNDINGS, instance_of, integer, one_of
from qfunc.specs._values import readable

_rounding = one_of(ROUNDINGS)


@readable
@frozen
class NormFixed:
    """A layer, group, instance or RMS norm in int32: y = R(x̂ w + b) + z, x̂ = c / sqrt(A + E), for the N codes of a statistic.

    c = x - round(mean(x)) and r = sum(c); an RMS norm has c = x and r = 0.  A + E = sum(c^2) - r^2 / N + N eps / s_x^2, with as
    many fractional bits as 31 bits leave.  Its inverse root is read from a table by 8 bits and refined by one step of Newton's
    method, to within 2^-14 of itself.  c - r / N and the products have 31 bits, each rounded half up, and y is rounded once.

    Source: qfunc; TOSA 1.0: REDUCE_SUM, MUL, CLZ, TABLE, RESCALE.

    >>> NormFixed()
    NormFixed()
    """


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


@readable
@frozen
class QuantizeLanes:
    """As QuantizeInt32, rounded as in the scheme for runs of `lanes` entries in memory, by `rest` in float64 for those left.

    Source: TFLite optimized_ops AffineQuantize (vectors of 8, then one by one by a double).

    >>> QuantizeLanes()
    QuantizeLanes()
    """

    rest: str = field(default="half_away", validator=_rounding)
    lanes: int = field(default=8, validator=integer(1))
    saturates: bool = field(default=False, validator=instance_of(bool))


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
