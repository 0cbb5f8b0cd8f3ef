"""The bytes of GGUF's blocks: those of ggml's own quantizer, and of the NumPy quantizer of the package gguf."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qfunc.functions import Fixed, GgmlBlocks
from qfunc.numerics import dequantize
from qfunc.numerics.qparams import Affine, of_tensor
from qfunc.numerics.scales import stored_scale
from qfunc.targets.ggml.engine import engine
from qfunc.targets.ggml.types import WEIGHTS, Parts

needs_ggml = pytest.mark.skipif(importlib.util.find_spec("libggml") is None, reason="libggml-python is not installed")
needs_gguf = pytest.mark.skipif(importlib.util.find_spec("gguf") is None, reason="gguf is not installed")
KINDS = sorted(WEIGHTS)


@st.composite
def rows(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    """Weights with ties, equal extremes, zeros of both signs, offsets and scales above 2^-126 up to 2^15, as float16 has."""
    count, blocks = draw(st.integers(1, 4)), 8 * draw(st.integers(1, 2))
    r = np.random.default_rng(draw(st.integers(0, 2**32)))
    shape = (count, blocks, 32)
    kind = draw(st.sampled_from(("normal", "halves", "bfloat16", "few levels", "sparse", "offsets")))
    if kind == "halves":
        x = r.integers(-254, 255, shape) / 2
    elif kind == "few levels":
        x = r.integers(-8, 9, shape) * r.random()
    else:
        x = r.standard_normal(shape)
    if kind == "sparse":
        x *= r.random(shape) < 0.05
    if kind == "bfloat16":
        x = torch.from_numpy(x).bfloat16().double().numpy()
    if kind == "offsets":
        x += r.standard_normal((count, blocks, 1)) * 4
    x = x * np.exp2(r.integers(draw(st.sampled_from((-100, -24, 0))), 9, (count, blocks, 1)))
    return x.astype(np.float32).reshape(count, -1)


def quantized(x: np.ndarray[Any, Any], kind: str) -> tuple[torch.Tensor, Affine]:
    """The codes and qparams of the type's scheme, as targets.gguf has them."""
    scheme, value = WEIGHTS[kind].scheme, torch.from_numpy(x)
    function = GgmlBlocks() if scheme.searched else Fixed()
    params = function.init(of_tensor(value, scheme), value, scheme)
    return function.export(params, value, scheme)


def ours(x: np.ndarray[Any, Any], kind: str) -> np.ndarray[Any, Any]:
    """The bytes of the scheme's codes, stored scales and minimums."""
    codes, qparams = quantized(x, kind)
    scale, *others = (
        qparams.scale if part is None else stored_scale(part, WEIGHTS[kind].scheme)
        for part in (qparams.scale, qparams.outer, qparams.minimum, qparams.outer_minimum)
    )
    return WEIGHTS[kind].pack(Parts(codes.numpy(), scale.numpy(), *(part.numpy() for part in others)))


@needs_ggml
@settings(max_examples=400, deadline=None)
@given(rows(), st.sampled_from(KINDS))
def test_the_bytes_are_those_of_ggml(x: np.ndarray[Any, Any], kind: str) -> None:
    """Codes, those of blocks whose scale is 0 too, scales, minimums, and the sign of the scale of zeros."""
    np.testing.assert_array_equal(ours(x, kind), engine().quantize(kind, x))


@needs_gguf
@settings(max_examples=300, deadline=None)
@given(rows(), st.sampled_from(("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")))
def test_the_bytes_are_those_of_the_package_gguf(x: np.ndarray[Any, Any], kind: str) -> None:
    """Zeros are made positive: for a block of -0 the package has another sign of the scale than ggml."""
    import gguf

    theirs = gguf.quants.quantize(x + 0.0, gguf.GGMLQuantizationType[kind])

    np.testing.assert_array_equal(ours(x + 0.0, kind), theirs)


@needs_gguf
@settings(max_examples=300, deadline=None)
@given(rows(), st.sampled_from(KINDS))
def test_the_package_gguf_reads_the_values_of_the_simulation(x: np.ndarray[Any, Any], kind: str) -> None:
    """Every bit, except that the package has the order d q + m in all types, as `dequantize` has."""
    import gguf

    wanted = dequantize(*quantized(x, kind), WEIGHTS[kind].scheme).numpy()

    found = gguf.quants.dequantize(ours(x, kind), gguf.GGMLQuantizationType[kind])

    np.testing.assert_array_equal(found, wanted)


SIMPLE = [
    ("Q8_0", (1, -1, -7, -8), "66 3e 01 ff"),
    ("Q5_0", (1, -1, -7, -8), "66 3e fd ff"),
    ("Q4_0", (1, -1, -7, -8), "66 3e 19 07"),
    ("Q5_1", (1, 17, 7, 8), "66 3e 00 c0 02 00 00 00 71 81"),
    ("Q4_1", (1, 15, 7, 8), "66 3e 00 c0 71 8f"),
]


@pytest.mark.parametrize(("kind", "codes", "wanted"), SIMPLE)
def test_a_block_by_hand(kind: str, codes: tuple[int, ...], wanted: str) -> None:
    """A little-endian float16, a minimum in some types, then the codes.

    In 4 bits entries i and i + 16 share a byte; in 5 bits the highest bits come before.
    """
    block, scale = np.zeros((1, 32)), np.float32([[1.6]])
    block[0, [0, 1, 16, 17]] = codes

    found = WEIGHTS[kind].pack(Parts(block, scale, scale, np.float32([[-2]]), scale))

    assert found.tobytes()[: len(bytes.fromhex(wanted))].hex(" ") == wanted


def test_a_block_of_mxfp4_by_hand() -> None:
    """The exponent of the scale plus 127, then entries i and i + 16 in a byte; bit 3 is the sign, except of zeros."""
    block = np.zeros((1, 32))
    block[0, [0, 1, 2, 3, 16, 17, 18]] = 0.5, -0.5, 6, -0.0, 4, -3, 1.5

    found = WEIGHTS["MXFP4"].pack(Parts(block, np.float32([[0.25]]), block, block, block))

    assert found.tobytes()[:5].hex(" ") == "7d 61 d9 37 00"
    assert found.shape == (1, 17)


def test_a_super_block_of_q4_k_by_hand() -> None:
    """d, e, then integers: c_0..c_3 with two high bits of c_4..c_7, k likewise, the low bits; entries i and i + 32 share."""
    codes, scale, minimum = np.zeros((1, 256)), np.arange(8.0)[None] + 40, -(np.arange(8.0)[None] + 10)
    codes[0, [0, 32, 64, 96]] = 1, 2, 3, 31
    outer, outer_minimum = np.full((1, 8), 1.0), np.full((1, 8), -2.0)

    found = WEIGHTS["Q5_K"].pack(Parts(codes, scale, outer, minimum, outer_minimum)).tobytes()

    assert found[:16].hex(" ") == "00 3c 00 c0 a8 a9 aa ab 0a 0b 4c 4d ec fd 0e 1f"
    assert found[16] == 8  # the highest bit of entry 96, of the fourth run of 32
    assert (found[48], found[80]) == (0x21, 0xF3)
    assert len(found) == 176


def test_a_super_block_of_q6_k_by_hand() -> None:
    """Low bits of entries i and i + 64, high bits of four entries, integers in int8, and d."""
    codes = np.full((1, 256), -32)
    codes[0, [0, 32, 64, 96, 128]] = -31, 31, 0, 5, -30

    found = WEIGHTS["Q6_K"].pack(Parts(codes, np.arange(-8, 8)[None], np.full((1, 16), 1.5), codes, codes)).tobytes()

    assert (found[0], found[32], found[64]) == (0x01, 0x5F, 0x02)
    assert found[128] == 0b10101100  # 37, 32, 63 and 1, shifted by 4
    assert found[192:].hex(" ") == "f8 f9 fa fb fc fd fe ff 00 01 02 03 04 05 06 07 00 3e"


def test_a_super_block_of_q3_k_by_hand() -> None:
    """High bits of codes + 4, the other bits of four entries, low and high bits of integers + 32, and d."""
    codes = np.full((1, 256), -4)
    codes[0, [0, 32, 64, 96, 128]] = 3, -3, -2, -1, 1
    integers = np.arange(-32, 0, 2)[None]

    found = WEIGHTS["Q3_K"].pack(Parts(codes, integers, np.full((1, 16), 1.5), codes, codes)).tobytes()

    assert found[0] == 0b10001  # entries 0 and 128 are at least 0
    assert (found[32], found[64]) == (0b11100111, 0b01)
    assert found[96:].hex(" ") == "00 22 44 66 88 aa cc ee 50 50 50 50 00 3e"
    assert len(found) == 110


def test_a_super_block_of_q2_k_by_hand() -> None:
    """Integers c and k of 4 bits in a byte, codes of four entries, d and e."""
    codes = np.zeros((1, 256))
    codes[0, [0, 32, 64, 96, 128]] = 1, 2, 3, 0, 2
    scale, minimum = np.arange(16)[None], -np.arange(15, -1, -1)[None]

    found = WEIGHTS["Q2_K"].pack(Parts(codes, scale, np.full((1, 16), 1.0), minimum, np.full((1, 16), 2.0))).tobytes()

    assert found[:16].hex() == "f0e1d2c3b4a5968778695a4b3c2d1e0f"
    assert (found[16], found[48]) == (0b00111001, 0b10)
    assert found[80:].hex(" ") == "00 3c 00 40"
