"""How zero points and minimums of a weight enter products whose input is quantized at run time."""

from __future__ import annotations

from attrs import field, frozen

from qfunc.specs._check import instance_of, integer, refuse
from qfunc.specs._values import readable
from qfunc.specs.arithmetic.lanes import Lanes
from qfunc.specs.number_format import Float


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
class MinimumSums:
    """The minimums of the weight, x_hat = q s_w + m, enter by sums of the input: y = v + w + bias.

    w starts at 0, w <- w + a_b m_b for one block after the other, each with one rounding, in `lanes`.  a_b is the sum of k q_x
    over the entries that share s_x and m, and m_b = float32(s_x m), with m the minimum of a block and k = 1; or with m = -e and
    k the integer of the minimum where e has integers.

    Args:
        lanes: The partial sums.
        rounded: The format of s_x sum(q_x), with s_x in float32: w <- w + m rounded(s_x sum(q_x)).  None: as above.
        inside: True: a_b m_b is added to v before acc_b, in the lanes of v with the runs of `lanes`, and y = v + bias.
    Raises:
        SpecError: both rounded sums and sums inside.

    Source: ggml-cpu/arch/x86/quants.c, ggml_vec_dot_q4_1_q8_1 (FLOAT16), ggml_vec_dot_q4_K_q8_K (4 lanes of 64),
        ggml_vec_dot_q2_K_q8_K (inside).

    >>> MinimumSums(Lanes(4, 64))
    MinimumSums(Lanes(4, run=64))
    """

    lanes: Lanes = field(default=Lanes(), validator=instance_of(Lanes))
    rounded: Float | None = field(default=None, kw_only=True, validator=instance_of(Float, optional=True))
    inside: bool = field(default=False, kw_only=True, validator=instance_of(bool))

    def __attrs_post_init__(self) -> None:
        if self.inside and self.rounded is not None:
            raise refuse(self, "rounded", self.rounded, "None for minimums inside of v", "Drop one of them.")
