"""The bytes of GGUF's blocks: those of ggml's own quantizer, and of the NumPy quantizer of the package gguf."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qfunc.lowering.gguf.blocks import pack, unpack
from qfunc.lowering.gguf.engine import engine
from qfunc.numerics import quantize
from qfunc.numerics.qparams import of_tensor
from qfunc.numerics.scales import stored_scale
from qfunc.specs import GGUF_Q4_0, GGUF_Q5_0, GGUF_Q8_0

needs_ggml = pytest.mark.skipif(importlib.util.find_spec("libggml") is None, reason="libggml-python is not installed")
needs_gguf = pytest.mark.skipif(importlib.util.find_spec("gguf") is None, reason="gguf is not installed")
SCHEMES = {"Q8_0": GGUF_Q8_0, "Q5_0": GGUF_Q5_0, "Q4_0": GGUF_Q4_0}


@st.composite
def rows(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    """Weights with ties, equal extremes, zeros of both signs and scales from 2^-122 up to float16."""
    count, blocks = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    r = np.random.default_rng(draw(st.integers(0, 2**32)))
    shape = (count, blocks, 32)
    kind = draw(st.sampled_from(("normal", "halves", "bfloat16", "few levels", "sparse")))
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
    x = x * np.exp2(r.integers(draw(st.sampled_from((-116, -24, 0))), 12, (count, blocks, 1)))
    return x.astype(np.float32).reshape(count, -1)


def ours(x: np.ndarray[Any, Any], kind: str) -> np.ndarray[Any, Any]:
    """The bytes of the scheme's codes and stored scales."""
    scheme, value = SCHEMES[kind], torch.from_numpy(x)
    qparams = of_tensor(value, scheme)
    return pack(quantize(value, qparams, scheme).numpy(), stored_scale(qparams.scale, scheme).numpy(), kind)


@needs_ggml
@settings(max_examples=300)
@given(rows(), st.sampled_from(sorted(SCHEMES)))
def test_the_bytes_are_those_of_ggml(x: np.ndarray[Any, Any], kind: str) -> None:
    """Codes, scales and the sign of the scale of zeros."""
    np.testing.assert_array_equal(ours(x, kind), engine().quantize(kind, x))


@needs_gguf
@settings(max_examples=300)
@given(rows(), st.sampled_from(sorted(SCHEMES)))
def test_the_bytes_are_those_of_the_package_gguf(x: np.ndarray[Any, Any], kind: str) -> None:
    """Zeros are made positive: for a block of -0 the package has another sign of the scale than ggml."""
    import gguf

    theirs = gguf.quants.quantize(x + 0.0, gguf.GGMLQuantizationType[kind])

    np.testing.assert_array_equal(ours(x, kind), theirs)


@pytest.mark.parametrize("kind", sorted(SCHEMES))
def test_bytes_are_read_back(kind: str) -> None:
    """Every code and a negative scale."""
    low, high = {"Q4_0": (-8, 7), "Q5_0": (-16, 15), "Q8_0": (-128, 127)}[kind]
    codes = np.resize(np.arange(low, high + 1), (2, 256))
    scale = np.float32(np.arange(16).reshape(2, 8) / 8 - 1)

    found, scales = unpack(pack(codes, scale, kind), kind)

    np.testing.assert_array_equal(found, codes)
    np.testing.assert_array_equal(scales, scale)


@pytest.mark.parametrize(("kind", "wanted"), [("Q8_0", "66 3e 01 ff"), ("Q5_0", "66 3e fd ff"), ("Q4_0", "66 3e 19 07")])
def test_a_block_by_hand(kind: str, wanted: str) -> None:
    """A little-endian float16, then the codes: in Q4_0 entries i and i + 16 share a byte; Q5_0 has highest bits before."""
    codes = np.zeros((1, 32))
    codes[0, [0, 1, 16, 17]] = (1, -1, -7, -8)

    assert pack(codes, np.float32([[1.6]]), kind).tobytes()[:4].hex(" ") == wanted
