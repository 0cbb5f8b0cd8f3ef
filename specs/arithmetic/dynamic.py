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
class RegisterLanes:
    """A sum over K of unsigned weights in the float32 lanes of registers of 64 codes, and a sum over blocks for zero points.

    y = (v + bias) + w.  u are the unsigned codes of the weight and z_w their zero points, as a file stores them in b = 2, 4 or
    8 bits: signed codes plus 2^(b - 1), and that.

    A dot is a sum of four products q_x u along K.  Each step takes two registers, 128 codes, and adds to lane 4 j + r (of 16)
    the dots i and i + 2, i = 4 j + (r mod 2), of register floor(r / 2), for blocks of 16 and 32; i = 4 j + floor(r / 2), of
    register r mod 2, for 64; for 128 and 256 lane l adds the dots l of both.  Blocks that are left over have the block / 4
    dots, or 8 pairs of products, as lanes; before those of 16 and 32 the 16 lanes become 8, v_i + v_(i + 8).  With 2 bits each
    lane l adds the dots l of a block, for groups of four blocks: v + ((d_0 + d_2) + (d_1 + d_3)).  All products with
    float32(s_x s_w) are fused with their sums.

    At the end the lanes are added by halves.  In whole runs of four output channels, four neighbours are added in order
    first: in the last row of an odd number of rows, and in all rows for blocks of 16 and 32, and of 64 with 8 bits; never with
    2 bits.

    w is the sum, block by block and fused, of float32(s_x sum(q_x)) and float32(-s_w z_w).

    Source: ONNX Runtime, mlas/lib/sqnbitgemm_kernel_avx512vnni.cpp and sqnbitgemm_kernel_avx512_int8_blklen*.h; measured on
        onnxruntime 1.31.

    >>> RegisterLanes()
    RegisterLanes()
    """


@readable
@frozen
class BrgemmChunks:
    """A sum over K in chunks of oneDNN's matrix kernels, each of which starts at 0: v = (c_0 + c_1) + c_2 ...

    A chunk adds its blocks in order: c <- fma(float32(acc_b s_x), s_w, c), with acc_b the exact sum of q_x (q_w - z_w) over the
    entries that share s_x.  Then y = v + bias.

    With n = K / 16 and d the largest divisor of n up to 64, a chunk has 16 d entries; 1024 if d < 16; 16 g if those are not
    whole blocks, of g entries, of the weight; and K at most.

    Source: measured on openvino 2026.4.1, AVX-512 VNNI: K up to 21,440, blocks of 32, 64 and 128.

    >>> BrgemmChunks()
    BrgemmChunks()
    """


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
    block after the other, and m_b = s_w; the weight is symmetric, except with `RegisterLanes` and
    `BrgemmChunks`.

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
            float16 and bfloat16; blocks whose scales come after the sum, or weight sums whose scales come inside;
            RegisterLanes or BrgemmChunks with another input than symmetric blocks, or other sums than they state.

    Source: XNNPACK, src/xnnpack/quantization.h and qd8-f32-qb4w-gemm; measured on executorch 1.5.1.

    >>> from qfunc.specs.scheme import Scale, ZeroPoint
    >>> DynamicProduct(Scheme(Int(8), Scale(PerToken(), dynamic=True), ZeroPoint(), division=False)).multiplier
    'first'
    """

    input: Scheme = field(validator=instance_of(Scheme))
    multiplier: str = field(default="first", kw_only=True, validator=one_of(("first", "last", "both")))
    scales: str = field(default="after", kw_only=True, validator=one_of(("after", "inside")))
    zero_point: WeightSums | None = field(default=None, kw_only=True, validator=instance_of(WeightSums, optional=True))
    lanes: Lanes | RegisterLanes | BrgemmChunks = field(
        default=Lanes(), kw_only=True, validator=instance_of(Lanes, RegisterLanes, BrgemmChunks)
    )
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
        if not isinstance(self.lanes, Lanes):
            quotient = "both" if isinstance(self.lanes, RegisterLanes) else "last"
            blocks = isinstance(scale.shared, PerBlock) and zero is None and self.input.format == Int(8, low=-127)
            sums = self.multiplier == quotient and self.scales == "inside" and self.fma and self.denormals and not self.clamps
            if not blocks or not sums or scale.format != FLOAT32 or self.input.rounding != "half_even":
                wanted = f'Lanes, except for symmetric blocks of Int(8, low=-127), multiplier="{quotient}" and scales="inside"'
                raise refuse(self, "lanes", self.lanes, wanted, "Give Lanes, or those values and no others.")
