"""The table's rows of ready schemes whose blocks share a scale: against plain loops."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import torch

from qfunc import specs
from qfunc.functions import GgmlBlocks
from qfunc.numerics import dequantize, quantize
from qfunc.numerics.qparams import of_tensor
from qfunc.specs import Scheme
from tests.equations.row import Row


def blocks(scheme: Scheme, value: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Callable[[], int]:
    """Blocks of ordinary, tiny and large numbers; `value(row of blocks, one block)` is a loop's float64 result."""

    def check() -> int:
        size = scheme.scale.shared.size  # type: ignore[union-attr]
        x = torch.randn(5, 4 * size, generator=torch.Generator().manual_seed(size)) * 2.0 ** torch.arange(-8, 12, 4)[:, None]
        qparams = of_tensor(x, scheme)
        found = dequantize(quantize(x, qparams, scheme), qparams, scheme)
        split = x.numpy().astype(np.float64).reshape(5, 4, size)
        wanted = np.stack([np.stack([value(x.numpy().astype(np.float64), b) for b in row]) for row in split])
        # float32 products of a code and a scale, of up to two roundings.
        assert np.allclose(found.numpy(), wanted.reshape(found.shape), rtol=2.0**-22, atol=0)
        return x.numel()

    return check


def mx(theirs: Any, emax: int) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """OCP MX: 2^(floor(log2 absmax) - emax), elements saturate."""

    def value(_: np.ndarray, block: np.ndarray) -> np.ndarray:
        scale = 2.0 ** (math.frexp(np.abs(block).max())[1] - 1 - emax)
        top = float(ml_dtypes.finfo(theirs).max)
        return np.clip(block / scale, -top, top).astype(np.float32).astype(theirs).astype(np.float64) * scale

    return value


def mx_rounded(_: np.ndarray, block: np.ndarray) -> np.ndarray:
    """compressed-tensors: half of the elements' last bit is added to the bits of absmax, whose exponent then counts."""
    bits = np.float32(np.abs(block).max()).view(np.int32) + (1 << 23 - 1 - 1)
    scale = float((bits & 0x7F800000).view(np.float32)) / 4
    return np.clip(block / scale, -6, 6).astype(ml_dtypes.float4_e2m1fn).astype(np.float64) * scale


def mx_int8(_: np.ndarray, block: np.ndarray) -> np.ndarray:
    """OCP MXINT8: 64ths of 2^floor(log2 absmax)."""
    scale = 2.0 ** (math.frexp(np.abs(block).max())[1] - 7)
    return np.clip(np.round(block / scale), -127, 127) * scale


def nvfp4(every: np.ndarray, block: np.ndarray) -> np.ndarray:
    """Two levels: E4M3 of absmax(block) / (6 s2), s2 = absmax / (6 * 448)."""
    outer = float(np.float32(np.abs(every).max() / (6 * 448)))
    inner = float(np.float32(np.abs(block).max() / 6 / outer).astype(ml_dtypes.float8_e4m3fn)) or 1.0
    scale = float(np.float32(inner * outer))
    codes = np.clip((block / scale).astype(np.float32), -6, 6).astype(ml_dtypes.float4_e2m1fn)
    return codes.astype(np.float64) * scale


def q4_0(_: np.ndarray, block: np.ndarray) -> np.ndarray:
    """llama.cpp: the signed extreme over -8, in float16 after the codes are computed."""
    d = np.float32(block[np.argmax(np.abs(block))] / -8)
    codes = np.trunc(block.astype(np.float32) * (np.float32(1) / d) + np.float32(8.5)).clip(max=15) - 8
    return codes.astype(np.float64) * float(np.float16(d))


def q5_0(_: np.ndarray, block: np.ndarray) -> np.ndarray:
    """llama.cpp: as q4_0, with 32 codes."""
    d = np.float32(block[np.argmax(np.abs(block))] / -16)
    codes = np.trunc(block.astype(np.float32) * (np.float32(1) / d) + np.float32(16.5)).clip(max=31) - 16
    return codes.astype(np.float64) * float(np.float16(d))


def q8_0(_: np.ndarray, block: np.ndarray) -> np.ndarray:
    """llama.cpp: absmax over 127, in float16 after the codes are computed; C's roundf, half away from zero."""
    d = np.float32(np.abs(block).max() / 127)
    real = (block.astype(np.float32) * (np.float32(1) / d)).astype(np.float64)
    return np.sign(real) * np.floor(np.abs(real) + 0.5) * float(np.float16(d))


def four_bits(_: np.ndarray, block: np.ndarray) -> np.ndarray:
    """MatMulNBits without zero points: the signed extreme over -8, in float32; half up."""
    s = np.float32(block[np.argmax(np.abs(block))] / -8)
    codes = np.floor(block.astype(np.float32) * (np.float32(1) / s) + np.float32(8) + np.float32(0.5)) - 8
    return np.clip(codes, -8, 7).astype(np.float64) * float(s)


def four_bits_affine(_: np.ndarray, block: np.ndarray) -> np.ndarray:
    """MatMulNBits with zero points: 15 steps from the least (or 0) to the largest (or 0); zero added before rounding."""
    low, high = min(float(block.min()), 0.0), max(float(block.max()), 0.0)
    s = np.float32((high - low) / 15)
    zero = math.floor(-low / float(s) + 0.5)
    codes = np.floor(block.astype(np.float32) * (np.float32(1) / s) + np.float32(zero) + np.float32(0.5))
    return (np.clip(codes, 0, 15).astype(np.float64) - zero) * float(s)


def of_ends(scheme: specs.Scheme) -> Callable[[], int]:
    """llama.cpp's Q4_1 and Q5_1 in float32: steps from the least value, which is real; both numbers in float16 afterwards."""

    def check() -> int:
        x, top = torch.randn(8, 32, generator=torch.Generator().manual_seed(0)), scheme.format.qmax  # type: ignore[union-attr]
        qparams = of_tensor(x, scheme)
        found = GgmlBlocks().apply(GgmlBlocks().init(qparams, x, scheme), x, scheme)
        for block, values in zip(x.numpy(), found.numpy(), strict=True):
            low, d = block.min(), (block.max() - block.min()) / np.float32(top)
            codes = np.trunc((block - low) * (np.float32(1) / d) + np.float32(0.5)).clip(max=top)
            wanted = codes * np.float32(np.float16(d)) + np.float32(np.float16(low))
            np.testing.assert_array_equal(values, wanted.astype(np.float32))
        return found.numel()

    return check


def of_super_blocks(scheme: specs.Scheme) -> Callable[[], int]:
    """llama.cpp's K types: x_hat = d c q - e k with the nearest q, for the numbers that the search found."""

    def check() -> int:
        x, size = torch.randn(3, 512, generator=torch.Generator().manual_seed(0)), scheme.scale.shared.size  # type: ignore[union-attr]
        codes, q = GgmlBlocks().export(GgmlBlocks().init(of_tensor(x, scheme), x, scheme), x, scheme)
        found = GgmlBlocks().apply(q, x, scheme).double().numpy()
        assert q.outer is not None
        scale = (q.outer.double() * q.scale.double()).numpy().repeat(size, 1)
        least = 0.0 if q.minimum is None or q.outer_minimum is None else (q.minimum.double() * q.outer_minimum.double()).numpy()
        offset = np.broadcast_to(least, q.scale.shape).repeat(size, 1)
        ends = scheme.format.qmin, scheme.format.qmax  # type: ignore[union-attr]
        np.testing.assert_array_equal(codes.numpy(), np.round((x.double().numpy() - offset) / scale).clip(*ends))
        assert np.allclose(found, codes.double().numpy() * scale + offset, rtol=0, atol=2.0**-22)
        return x.numel()

    return check


def micro(name: str, theirs: str, emax: int) -> Callable[[], int]:
    """The check of an MX scheme."""
    return blocks(getattr(specs.formats, name), mx(getattr(ml_dtypes, theirs), emax))


MX = (("MXFP8_E4M3", "float8_e4m3fn", 8), ("MXFP8_E5M2", "float8_e5m2", 15), ("MXFP6_E3M2", "float6_e3m2fn", 4),
      ("MXFP6_E2M3", "float6_e2m3fn", 2), ("MXFP4", "float4_e2m1fn", 2))  # fmt: skip
ROWS = (
    *(Row(n, "OCP Microscaling Formats 1.0, section 6.3", "loop with ml_dtypes", micro(n, t, e)) for n, t, e in MX),
    Row("MXFP4_ROUNDED", "compressed-tensors, mxfp_utils.py", "loop with float32's bits",
        blocks(specs.formats.MXFP4_ROUNDED, mx_rounded)),
    Row("MXINT8", "OCP Microscaling Formats 1.0, section 5.3.4", "loop in float64", blocks(specs.formats.MXINT8, mx_int8)),
    Row("NVFP4", "NVIDIA TensorRT Model Optimizer", "loop with ml_dtypes", blocks(specs.formats.NVFP4, nvfp4)),
    Row("GGUF_MXFP4", "llama.cpp, ggml-quants.c", "loop with ml_dtypes", micro("GGUF_MXFP4", "float4_e2m1fn", 2)),
    Row("GGUF_Q4_0", "llama.cpp, ggml-quants.c", "loop in float64", blocks(specs.formats.GGUF_Q4_0, q4_0)),
    Row("GGUF_Q5_0", "llama.cpp, ggml-quants.c", "loop in float64", blocks(specs.formats.GGUF_Q5_0, q5_0)),
    *(Row(n, "llama.cpp, ggml-quants.c", "loop in NumPy's float32", of_ends(getattr(specs.formats, n)))
      for n in ("GGUF_Q4_1", "GGUF_Q5_1")),
    *(Row(n, "llama.cpp, ggml-quants.c", "nearest codes in float64", of_super_blocks(getattr(specs.formats, n)))
      for n in ("GGUF_Q2_K", "GGUF_Q3_K", "GGUF_Q4_K", "GGUF_Q5_K", "GGUF_Q6_K")),
    Row("GGUF_Q8_0", "llama.cpp, ggml-quants.c", "loop in float64", blocks(specs.formats.GGUF_Q8_0, q8_0)),
    Row("MATMUL_4BITS", "ONNX Runtime, q4_dq.cpp", "loop in float64", blocks(specs.formats.MATMUL_4BITS, four_bits)),
    Row("MATMUL_4BITS_AFFINE", "ONNX Runtime, q4_dq.cpp", "loop in float64",
        blocks(specs.formats.MATMUL_4BITS_AFFINE, four_bits_affine)),
)  # fmt: skip
