"""Ready formats: small floats, and schemes whose blocks of one axis share a scale: OCP MX, NVFP4, and 4-bit weights.

All schemes are schemes of the last axis; `attrs.evolve` names another.

>>> from attrs import evolve
>>> evolve(MXFP4, scale=evolve(MXFP4.scale, shared=PerBlock(0, 32))).scale.shared
PerBlock(0, size=32)
"""

from __future__ import annotations

from attrs import evolve

from qfunc.specs.number_format import FLOAT16, Float, Int
from qfunc.specs.scheme import PerBlock, Scale, Scheme, ZeroPoint

E4M3FN = Float(4, 3, max=448.0)
E5M2 = Float(5, 2, max=57344.0)
E4M3FNUZ = evolve(E4M3FN, bias=8, max=240.0, negative_zero=False)
E5M2FNUZ = evolve(E5M2, bias=16, negative_zero=False)
E3M2 = Float(3, 2, max=28.0)
E2M3 = Float(2, 3, max=7.5)
E2M1 = Float(2, 1, max=6.0)
E8M0 = Float(8, 0, signed=False)

_POWER = Scale(PerBlock(-1, 32), format=E8M0, rounding="floor", divisor="emax")

MXFP8_E4M3 = Scheme(E4M3FN, _POWER)
"""OCP MXFP8 with E4M3 elements: s = 2^(floor(log2 absmax) - 8), half to even, saturating.

The floor makes values between the largest value and 2^(emax+1) s clip.  A block of zeros has the
smallest scale, 2^-127.  microxcaling, the reference library, rounds half away by default.

Source: OCP Microscaling Formats 1.0, table 1 and section 6.3.
"""

MXFP8_E5M2 = Scheme(E5M2, _POWER)
"""OCP MXFP8 with E5M2 elements: s = 2^(floor(log2 absmax) - 15).  Source: as `MXFP8_E4M3`."""

MXFP6_E3M2 = Scheme(E3M2, _POWER)
"""OCP MXFP6 with E3M2 elements: s = 2^(floor(log2 absmax) - 4).  Source: as `MXFP8_E4M3`."""

MXFP6_E2M3 = Scheme(E2M3, _POWER)
"""OCP MXFP6 with E2M3 elements: s = 2^(floor(log2 absmax) - 2).  Source: as `MXFP8_E4M3`."""

MXFP4 = Scheme(E2M1, _POWER)
"""OCP MXFP4, E2M1 elements: s = 2^(floor(log2 absmax) - 2).  Source: as `MXFP8_E4M3`."""

MXINT8 = Scheme(Int(8, low=-127), _POWER)
"""OCP MXINT8: elements are codes in 64ths, so that s = 2^(floor(log2 absmax) - 6) is 1/64 of the stored scale.

-128 is left unused, as the specification allows and microxcaling does.  Below absmax = 2^-121 s stays 2^-127,
where the stored scale could still fall to 2^-133.  Source: as `MXFP8_E4M3`, section 5.3.4.
"""

MXFP4_ROUNDED = evolve(MXFP4, scale=evolve(MXFP4.scale, divisor="emax_rounded"))
"""MXFP4 as compressed-tensors quantizes weights: s = 2^(floor(log2(absmax / 3.5))), a valid scale of `MXFP4`.

It is twice OCP's where absmax is at least 7/4 of a power of two, which OCP's scale clips by more than an eighth: the exponent
is that of absmax rounded half up to the bit of the elements' mantissa.  torchao calls this mode of scales EVEN.

Source: compressed-tensors, quantization/utils/mxfp_utils.py, generate_mx_scales.
"""

GGUF_MXFP4 = evolve(MXFP4, rounding="half_to_zero")
"""llama.cpp's MXFP4: as `MXFP4`, with the smaller of two elements that are equally near.

The bytes are llama.cpp's unless the absmax of a block is below 2^-125, or below a power of two by less than 2^-20 of it, where
the float32 logarithm of llama.cpp is an integer.  Source: llama.cpp, ggml/src/ggml-quants.c, quantize_row_mxfp4_ref.
"""

NVFP4 = Scheme(E2M1, Scale(PerBlock(-1, 16), format=E4M3FN, within=Scale()))
"""NVIDIA NVFP4: E2M1 in blocks of 16, E4M3 scales of the blocks, one float32 scale of the tensor.

s2 = absmax(tensor) / (6 * 448), s1 = E4M3(absmax(block) / (6 * s2)), 1 where that is 0; x_hat = q * (s1 * s2).
Source: TensorRT, "Working with quantized types"; TensorRT Model Optimizer, `NVFP4QTensor`.
"""

GGUF_Q4_0 = Scheme(
    Int(4), Scale(PerBlock(-1, 32), format=FLOAT16, rounded="after", divisor="-qmin", signed=True, equals="first"),
    rounding="half_up_on_index", division=False,
)  # fmt: skip
"""llama.cpp's Q4_0: d = (the first element of largest |x|, with its sign) / -8, q = floor(x * (1/d) + 8 + 1/2) - 8.

Codes are those of d in float32; the file has d in float16.  The bytes are llama.cpp's wherever 2^-126 <= |d| < 65520, or
d = 0.  Source: llama.cpp, ggml/src/ggml-quants.c.
"""

GGUF_Q5_0 = evolve(GGUF_Q4_0, format=Int(5))
"""llama.cpp's Q5_0: as `GGUF_Q4_0`, with d over -16 and codes from -16."""

GGUF_Q8_0 = Scheme(
    Int(8, low=-127), Scale(PerBlock(-1, 32), format=FLOAT16, rounded="after"), rounding="half_away", division=False
)
"""llama.cpp's Q8_0: d = absmax / 127, q = round(x * (1/d)).  Source and bytes: as `GGUF_Q4_0`."""

GGUF_Q4_1 = Scheme(
    Int(4, signed=False), Scale(PerBlock(-1, 32), format=FLOAT16, rounded="after"), rounding="half_up_on_index",
    division=False, minimum=True,
)  # fmt: skip
"""llama.cpp's Q4_1: m = min x, d = (max x - m) / 15, q = floor((x - m) * (1/d) + 1/2).

Codes are those of m and d in float32; the file has both in float16.  `functions.GgmlBlocks` computes them, as those of all
schemes below.  Source: as `GGUF_Q4_0`.
"""

GGUF_Q5_1 = evolve(GGUF_Q4_1, format=Int(5, signed=False))
"""llama.cpp's Q5_1: as `GGUF_Q4_1`, with d over 31."""

_SUPER = Scale(PerBlock(-1, 256), format=FLOAT16)

GGUF_Q4_K = Scheme(
    Int(4, signed=False), Scale(PerBlock(-1, 32), integers=Int(6, signed=False), within=_SUPER), minimum=True
)  # fmt: skip
"""llama.cpp's Q4_K: x_hat = d c q - e k, with d and e for 256 elements, integers c and k for 32.

Source: as `GGUF_Q4_0`, quantize_row_q4_K_ref.
"""

GGUF_Q5_K = evolve(GGUF_Q4_K, format=Int(5, signed=False))
"""llama.cpp's Q5_K: as `GGUF_Q4_K`, with codes of 5 bits."""

GGUF_Q6_K = Scheme(Int(6), Scale(PerBlock(-1, 16), signed=True, integers=Int(8), within=_SUPER))
"""llama.cpp's Q6_K: x_hat = d c q, with d for 256 elements and integers c for 16.  Source: as `GGUF_Q4_K`."""

GGUF_Q3_K = evolve(GGUF_Q6_K, format=Int(3), scale=evolve(GGUF_Q6_K.scale, integers=Int(6)))
"""llama.cpp's Q3_K: as `GGUF_Q6_K`, with codes of 3 bits and integers c of 6."""

GGUF_Q2_K = evolve(
    GGUF_Q4_K, format=Int(2, signed=False),
    scale=evolve(GGUF_Q4_K.scale, shared=PerBlock(-1, 16), integers=Int(4, signed=False)),
)  # fmt: skip
"""llama.cpp's Q2_K: as `GGUF_Q4_K`, with codes of 2 bits, and integers c and k of 4 bits for 16 elements."""

MATMUL_4BITS = evolve(GGUF_Q4_0, scale=Scale(PerBlock(-1, 32), divisor="-qmin", signed=True))
"""ONNX Runtime's MatMulNBits without zero points: s = (signed extreme) / -8, codes -8 to 7, stored plus 8.

x * (1/s) + 8 is rounded half up.

Source: ONNX Runtime, contrib operator MatMulNBits and core/mlas/lib/q4_dq.cpp.
"""

MATMUL_4BITS_AFFINE = Scheme(
    Int(4, signed=False), Scale(PerBlock(-1, 32)), ZeroPoint("half_away", added="before"), rounding="half_away", division=False
)
"""ONNX Runtime's MatMulNBits with zero points: s = (max - min) / 15, z = round(-min/s), q = round(x * (1/s) + z).

ONNX Runtime rounds max - min to float32 before its division, so that its scale can differ by one unit in the last
place.  Source: as `MATMUL_4BITS`.
"""

READY = (
    MXFP8_E4M3, MXFP8_E5M2, MXFP6_E3M2, MXFP6_E2M3, MXFP4, MXFP4_ROUNDED, MXINT8, NVFP4, GGUF_Q4_0, GGUF_Q5_0, GGUF_Q8_0,
    GGUF_MXFP4, MATMUL_4BITS, MATMUL_4BITS_AFFINE,
)  # fmt: skip
"""The schemes that quantize functions of blocks are tested with."""

__all__ = [
    "E2M1", "E2M3", "E3M2", "E4M3FN", "E4M3FNUZ", "E5M2", "E5M2FNUZ", "E8M0", "GGUF_MXFP4", "GGUF_Q2_K", "GGUF_Q3_K",
    "GGUF_Q4_0", "GGUF_Q4_1", "GGUF_Q4_K", "GGUF_Q5_0", "GGUF_Q5_1", "GGUF_Q5_K", "GGUF_Q6_K", "GGUF_Q8_0", "MATMUL_4BITS",
    "MATMUL_4BITS_AFFINE", "MXFP4", "MXFP4_ROUNDED", "MXFP6_E2M3", "MXFP6_E3M2", "MXFP8_E4M3", "MXFP8_E5M2", "MXINT8",
    "NVFP4",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)
