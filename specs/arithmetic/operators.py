"""Arithmetic of single operators: average pools, softmax, curves, resizing.

Each value is one runtime's own form, implemented once.  Notation: x the input codes minus their zero point, s_x and s_y
the scales, z the output's zero point, R the rounding.
"""

from __future__ import annotations

from attrs import field, frozen

from qfunc.specs._check import ROUNDINGS, as_tuple, instance_of, integer, one_of, refuse, tuple_of
from qfunc.specs._values import readable


@readable
@frozen
class AveragePool:
    """y = R(sum / count * s_x / s_y) + z; `reciprocals` replaces 1 / count by k / 2^n: (kernel, k, n) triples.

    `reciprocal_bits`: kernels that are not listed have the k / 2^n nearest to 1 / count, the smallest n of
    equals, with n < reciprocal_bits + ceil(log2 count); None divides.

    Source: TFLite reference AveragePool; Vitis AI, vart/cpu-runner/src/op/pool_fix.cpp (3x3 is 7/2^6; 7 bits).

    >>> AveragePool("half_away")
    AveragePool('half_away')
    """

    rounding: str = field(validator=one_of(ROUNDINGS))
    reciprocals: tuple[tuple[tuple[int, int], int, int], ...] = field(default=(), converter=as_tuple, validator=tuple_of(tuple))
    reciprocal_bits: int | None = field(default=None, validator=integer(1, 24, optional=True))

    def __attrs_post_init__(self) -> None:
        for entry in self.reciprocals:
            if not _is_reciprocal(entry):
                wanted = "((height, width), numerator, shift), ints with shift in [0, 62] and the others at least 1"
                raise refuse(self, "reciprocals", entry, wanted, "Write 7/64 for 3x3 as ((3, 3), 7, 6).")
        if len({entry[0] for entry in self.reciprocals}) < len(self.reciprocals):
            raise refuse(self, "reciprocals", self.reciprocals, "each kernel once", "Drop the repeated one.")


def _is_reciprocal(entry: tuple[object, ...]) -> bool:
    if len(entry) != 3 or type(entry[0]) is not tuple or len(entry[0]) != 2:
        return False
    ints = [v for v in (*entry[0], *entry[1:]) if type(v) is int]
    return len(ints) == 4 and min(ints[:3]) >= 1 and 0 <= ints[3] <= 62


_rounding = one_of(ROUNDINGS)


@readable
@frozen
class AverageCodes:
    """y = R(sum(q) / count), of codes with their zero point, which is that of the output; `count` are those inside.

    `centred`: y = R(sum(q - z) / count) + z.

    Source: TFLite reference_integer_ops AveragePool; TOSA 1.0 AVG_POOL2D (centred; its reciprocal of 31 bits makes ties go
        away from zero).

    >>> AverageCodes("half_away")
    AverageCodes('half_away')
    """

    rounding: str = field(validator=_rounding)
    centred: bool = field(default=False, kw_only=True, validator=instance_of(bool))


@readable
@frozen
class HardSwish16:
    """hardswish with x = 2^7 (q - z) in 16 bits; h = SRDHM(x, m_y), r = (SRDHM(x, m_6) + 2^15) / 2, y = R(h r 2^-15 2^e) + z.

    m_y 2^e = s_x / (2^7 s_y) and m_6 = s_x 2^15 / (3 * 2^7), both divided in float32 and rounded to 16 bits; h r 2^-15 is cut
    off, R is half away.

    Whole runs of `lanes` entries in memory round h r 2^-15 down and all else half up.  None: no entries do.

    Source: TFLite reference_ops HardSwish; optimized_ops HardSwish, NEON (8 lanes).

    >>> HardSwish16()
    HardSwish16()
    """

    lanes: int | None = field(default=None, validator=integer(1, optional=True))


@readable
@frozen
class Bilinear:
    """Bilinear resizing with weights of `bits` bits: "integer" positions, or "float" ones whose weights are rounded half even.

    "integer": scale = floor((2^bits n_x + n_y / 2) / n_y), the sum is rounded half away from zero.  "float": positions
    in float32, clamped to the image, and the sum is rounded half up.  "rational": whole weights of a sum n_y n_x, where an
    entry is 1 / n apart; the sum times 1 / (n_y n_x), a FixedPoint, is rounded half up.  Emulation refuses n > 2^bits.

    Source: TFLite reference_ops ResizeBilinearInteger (integer, 10 bits); XNNPACK indirection.c and s8-ibilinear (float, 11);
        TOSA 1.0 RESIZE and RESCALE (rational, 11).

    >>> Bilinear("integer", 10)
    Bilinear('integer', bits=10)
    """

    positions: str = field(validator=one_of(("integer", "float", "rational")))
    bits: int = field(validator=integer(1, 14))


@readable
@frozen
class SoftmaxFloat:
    """e_i = exp(-s_x (max(q) - q_i)) in float32, summed in order; y_i = floor(e_i * float32(1 / (sum(e) s_y)) + 1/2) + z.

    Source: TFLite optimized_ops Softmax for 8 bits.

    >>> SoftmaxFloat()
    SoftmaxFloat()
    """


@readable
@frozen
class SoftmaxTable16:
    """e_i = floor(65535 float32(exp(-s_x (max(q) - q_i))) + 1/2), summed exactly; y_i = R(e_i m 2^-e) + z, rounded twice.

    m 2^-e = float32(1 / float32(sum(e) s_y)) as of `FixedPoint`.

    Source: TFLite optimized_ops PopulateSoftmaxUInt8LookupTable and SoftmaxInt8LUT, of ARM64.

    >>> SoftmaxTable16()
    SoftmaxTable16()
    """


@readable
@frozen
class SoftmaxFixed:
    """e_i = exp(s_x (q_i - max(q))) in 31 bits, y_i = R(e_i / sum(e) * 2^8) + z, all in 32-bit fixed point; s_y is 1/256.

    exp: a Taylor series within a quarter, times exp(-2^k) for each bit k above; 0 from s_x (max(q) - q_i) = 31 on.  The
    sum has 19 fractional bits, its reciprocal takes three steps of Newton's method, and R is half away.  Of a masked softmax
    the maximum is that of the entries which the mask keeps; e_i of the others is 0.

    Source: TFLite reference_ops Softmax; gemmlowp fixedpoint.h, exp_on_negative_values, one_over_one_plus_x_for_x_in_0_1.

    >>> SoftmaxFixed()
    SoftmaxFixed()
    """


@readable
@frozen
class GluTable:
    """y = R((a - z_x) T[b] s_x / (2^23 s_y)) + z, a and b the halves of int8 codes and T = R(2^23 sigmoid(s_x (b - z_x))).

    The multiplier has 31 bits, and R is half up.

    Source: qfunc; TOSA 1.0: TABLE, MUL, RESCALE.

    >>> GluTable()
    GluTable()
    """


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


@readable
@frozen
class SoftmaxTable:
    """softmax over codes by a table of float32 exponentials, summed in order: y = R(e_i * floor(1/s_y) / sum(e)) + z.

    e_i * floor(1/s_y) may be infinite: over one entry, where s_y = 1/256, and over more where s_y is less. There R is 0.
    `saturates`: R is the largest integer of 32 bits, 2^32 - 1, to which z is added modulo 2^32.

    Source: ONNX Runtime contrib_ops/cpu/quantization/qlinear_softmax.cc; of ARM64 and WebAssembly, measured.

    >>> SoftmaxTable()
    SoftmaxTable()
    """

    rounding: str = field(default="half_even", validator=_rounding)
    saturates: bool = field(default=False, validator=instance_of(bool))
