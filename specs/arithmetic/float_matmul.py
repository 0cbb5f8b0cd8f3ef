"""Products of real tensors in float32."""

from __future__ import annotations

from attrs import field, frozen

from qfunc.specs._check import integer
from qfunc.specs._values import readable


@readable
@frozen
class FloatMatmul:
    """y = f sum_k a_ik b_kj in float32, with a number f that the runtime fuses with the product, or f = 1.

    The sum over k is cut into slices of `depth` entries.  If b has fewer columns than rows, the slices double while half of
    the columns of a panel, first `depth` and at last 16, hold those of b.  A slice is added from 0 on, one fused multiply-add
    after the other, is multiplied by f, and fused with the sum of the slices before it.

    A single row without f is added without fused multiply-adds: four neighbours along k in order, then to the sum.  If b is
    stored transposed, or has a single column, there are eight sums, of the entries k, k + 8, k + 16 ...

    Of more than 2^16 products, several of the `threads` of the runtime compute parts of the rows, or of the columns in groups
    of 16, if there are more of these; each part has the order above.  So has a matrix of which there are several.

    It computes matmuls in float, and a `scale`, or a `mul` or `div` by a number, that is fused with them; and linear layers
    whose weight in blocks is dequantized, b = w^T, which is stored transposed.  The slices are added to their bias.

    Source: ONNX Runtime, mlas/lib/sgemm.cpp and x86_64/FgemmKernelAvx512FCommon.h, SgemmKernelM1Avx.S,
        SgemmKernelM1TransposeBAvx.S; contrib_ops/cpu/quantization/matmul_nbits.cc.

    >>> FloatMatmul(threads=2)
    FloatMatmul(threads=2)
    """

    depth: int = field(default=128, validator=integer(16))
    threads: int = field(default=1, validator=integer(1))


__all__ = ["FloatMatmul"]
