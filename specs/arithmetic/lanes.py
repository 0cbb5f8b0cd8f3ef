"""The float32 lanes in which engines add the products of a sum over K."""

from __future__ import annotations

from attrs import field, frozen

from qfunc.specs._check import integer, one_of, refuse
from qfunc.specs._values import readable


@readable
@frozen
class Lanes:
    """A sum over K in `count` partial sums: entry k belongs to lane floor(k / run) mod count.

    Each lane has its own acc_b and v; v_0 is that of the first.  At the end the lanes are added, n to n/2 until one is left:
    by "halves", v_i + v_(i + n/2), or by "pairs", v_2i + v_(2i + 1).  The entries after the last whole round, of count * run
    entries, are in lanes like all others; with rest="after", their blocks are added to that sum, without lanes.

    Raises:
        SpecError: a count that is no power of two.
    Source: ggml-cpu/arch/x86/quants.c, hsum_float_8 (8 lanes of 4 entries), ggml_vec_dot_mxfp4_q8_0 (16 and a rest);
        XNNPACK, MRx8c8-avx2.c.in (4 of 2, pairs).

    >>> Lanes(8, 4)
    Lanes(8, run=4)
    """

    count: int = field(default=1, validator=integer(1))
    run: int = field(default=1, validator=integer(1))
    order: str = field(default="halves", validator=one_of(("halves", "pairs")))
    rest: str = field(default="lanes", kw_only=True, validator=one_of(("lanes", "after")))

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
class LaneOffset:
    """Codes enter acc_b as u = q_w + offset, in their lanes; the rest enters in runs of another length.

    acc_b of a lane is the sum of c q_x u over its entries, minus `offset` times the sum of c q_x over the entries with
    floor(k / run) mod count equal to the lane.  c is the integer of the scale, or 1.

    Source: ggml-cpu/arch/x86/quants.c, ggml_vec_dot_q6_K_q8_K.

    >>> LaneOffset(32, run=32)
    LaneOffset(32, run=32)
    """

    offset: int = field(validator=integer(1))
    run: int = field(validator=integer(1))


@readable
@frozen
class TokenGroups:
    """Whole groups of `tokens` successive tokens, of all that a product has, are added in parts of `part` entries.

    Their acc_b, and their sums for minimums, are those of `part` entries.  Tokens after the last whole group are added as all
    are without groups.

    Source: ggml-cpu/arch/x86/repack.cpp, ggml_gemm_q4_K_8x8_q8_K and ggml_gemv_q4_K_8x8_q8_K.

    >>> TokenGroups(4, part=64)
    TokenGroups(4, part=64)
    """

    tokens: int = field(validator=integer(2))
    part: int = field(validator=integer(1))


@readable
@frozen
class TokenTiles:
    """Products of at least `least` tokens are added in tiles: one lane, block after block, with the minimums inside.

    v <- fma(t_b, s_x, v) with t_b = fma(-e, a_b, float32(d acc_b)), or float32(d acc_b) for a weight without minimums.
    acc_b and a_b are exact sums of integers over the entries that share d, rounded to float32.

    Source: ggml-cpu/tiled/tiled-kernel.cpp, tiled_run_micro_vnni_8x16; tiled.cpp, ggml_tiled_min_batch.

    >>> TokenTiles(8)
    TokenTiles(8)
    """

    least: int = field(validator=integer(2))
