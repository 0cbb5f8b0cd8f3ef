"""Products whose input is quantized at run time: linear layers of language models with weights of few bits."""

from __future__ import annotations

from attrs import field, frozen

from qfunc.specs._check import instance_of, integer, one_of, refuse
from qfunc.specs._values import readable
from qfunc.specs.formats import BFLOAT16, FLOAT16, FLOAT32, Int
from qfunc.specs.scheme import PerBlock, PerToken, Scheme


@readable
@frozen
class WeightSums:
    """The zero point enters by sums of the weight: v_0 = k (z + offset), and acc_b is the sum of (q_x + offset) q_w.

    k = -sum_j float32(c_j s_w) in float32, one j after the other, with c_j the sum of `run` successive codes q_w along K.

    The offset makes codes unsigned, for instructions that multiply unsigned by signed bytes.

    Source: XNNPACK, src/packing.cc, xnn_pack_qs8_qb4w_gemm_goi_w (two times kr entries); x86 VPDPBUSD (128).

    >>> WeightSums(16, offset=128)
    WeightSums(16, offset=128)
    """

    run: int = field(validator=integer(1))
    offset: int = field(default=0, validator=integer(0, 2**15))


@readable
@frozen
class Lanes:
    """A sum over K in `count` partial sums: entry k belongs to lane floor(k / run) mod count.

    Each lane has its own acc_b and v; v_0 is that of the first.  At the end the lanes are added, n to n/2 until one is left:
    by "halves", v_i + v_(i + n/2), or by "pairs", v_2i + v_(2i + 1).

    Raises:
        SpecError: a count that is no power of two.
    Source: ggml-cpu/arch/x86/quants.c, hsum_float_8 (8 lanes of 4 entries); XNNPACK, MRx8c8-avx2.c.in (4 of 2, pairs).

    >>> Lanes(8, 4)
    Lanes(8, run=4)
    """

    count: int = field(default=1, validator=integer(1))
    run: int = field(default=1, validator=integer(1))
    order: str = field(default="halves", validator=one_of(("halves", "pairs")))

    def __attrs_post_init__(self) -> None:
        if self.count & (self.count - 1):
            raise refuse(self, "count", self.count, "a power of two", "Give the lanes of a vector register.")


@readable
@frozen
class DynamicProduct:
    """y = v s_x + bias, with v the sum over blocks of K of acc_b s_w in float32; the codes q_x are computed at run time.

    `input` divides x into groups, tokens or blocks along K, each with an s_x, a multiplier r and a zero point z:
    q_x = clamp(R(x r) + z), z = R(clamp(qmin - l r)).  In float32, with l = min(x, 0), h = max(x, 0), the span e = h - l and
    n = qmax - qmin; of a symmetric input e = max |x|, n its divisor and z = 0.  `multiplier` states what is a quotient:

    * "first": r = n / e, s_x = 1 / r;
    * "last": s_x = e / n, r = 1 / s_x;
    * "both": s_x = e / n, r = n / e.

    r and s_x are 1 where e is 0.  s_x is then rounded to its format; r is not computed again.  With ZeroPoint(nudge="nearest"),
    z = R(clamp(qmax - h r)) unless (qmin + l r) + (qmax + h r) > 0.

    acc_b is the exact sum of (q_x - z) q_w over the entries that share s_x and s_w.  v starts at 0, v <- v + acc_b m_b for one
    block after the other, and m_b = s_w; the weight is symmetric.

    Args:
        input: The scheme of the input, with a dynamic scale and without division.
        multiplier: As above.
        scales: "after": s_x multiplies the sum, as above; "inside": m_b = float32(s_x s_w), and y = v + bias.
        zero_point: How z enters; None: inside acc_b, as above.
        lanes: The partial sums.
        fma: v + acc_b m_b has one rounding.
        fused_bias: v s_x + bias has one rounding.
        denormals: False: operands and results below 2^-126 are 0.
        clamps: True: y = min(max(y, low), high), with the bounds of a fused activation or -inf and inf; low for NaN.
    Raises:
        SpecError: a scheme that is static, divides, has other codes than integers, or scales of other formats than float32,
            float16 and bfloat16; blocks whose scales come after the sum, or weight sums whose scales come inside.

    Source: XNNPACK, src/xnnpack/quantization.h and qd8-f32-qb4w-gemm; measured on executorch 1.5.1.

    >>> from qfunc.specs.scheme import Scale, ZeroPoint
    >>> DynamicProduct(Scheme(Int(8), Scale(PerToken(), dynamic=True), ZeroPoint(), division=False)).multiplier
    'first'
    """

    input: Scheme = field(validator=instance_of(Scheme))
    multiplier: str = field(default="first", kw_only=True, validator=one_of(("first", "last", "both")))
    scales: str = field(default="after", kw_only=True, validator=one_of(("after", "inside")))
    zero_point: WeightSums | None = field(default=None, kw_only=True, validator=instance_of(WeightSums, optional=True))
    lanes: Lanes = field(default=Lanes(), kw_only=True, validator=instance_of(Lanes))
    fma: bool = field(default=True, kw_only=True, validator=instance_of(bool))
    fused_bias: bool = field(default=False, kw_only=True, validator=instance_of(bool))
    denormals: bool = field(default=True, kw_only=True, validator=instance_of(bool))
    clamps: bool = field(default=False, kw_only=True, validator=instance_of(bool))

    def __attrs_post_init__(self) -> None:
        scale, zero = self.input.scale, self.input.zero_point
        last = isinstance(scale.shared, PerToken) or (isinstance(scale.shared, PerBlock) and scale.shared.axis == -1)
        plain = not (scale.power_of_two or scale.signed or scale.within or scale.minimum_range or scale.low or scale.high)
        computed = zero is None or (zero.value is None and zero.nudge != "outward" and zero.added == "after")
        stored = scale.format in (FLOAT32, FLOAT16, BFLOAT16)
        if not (isinstance(self.input.format, Int) and scale.dynamic and last and plain and computed and stored):
            wanted = "integers with dynamic scales of tokens or of blocks along the last axis, of 16 or 32 bits"
            raise refuse(self, "input", self.input, wanted, "Give Scheme(Int(8), Scale(PerToken(), dynamic=True), ...).")
        if self.input.division:
            raise refuse(self, "input", self.input, "no division", "Give the scheme division=False: codes are R(x r) + z.")
        if isinstance(scale.shared, PerBlock) and self.scales == "after":
            wanted = "scales of tokens, because the blocks of a sum have several scales"
            raise refuse(self, "input", self.input, wanted, 'Give scales="inside".')
        if self.zero_point is not None and self.scales == "inside":
            wanted = 'None with scales="inside", for WeightSums are in units of s_w'
            raise refuse(self, "zero_point", self.zero_point, wanted, 'Drop it, or give scales="after".')
