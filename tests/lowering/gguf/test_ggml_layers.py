"""The float ops of decoders: the C library's functions, ggml's own ops, and definitions in float64."""

from __future__ import annotations

import ctypes
import platform
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from qfunc.numerics import libm
from qfunc.targets.ggml.attention import TILE, attend, attention
from qfunc.targets.ggml.layers import angles, exp, gated, rms_norm, rotate
from qfunc.targets.runtimes import LlamaCppRunner
from tests.lowering.gguf.ggml_graphs import INSTALLED, PREVIOUS, computed

wide = INSTALLED and not LlamaCppRunner().comparable()
needs_llama = pytest.mark.skipif(not wide, reason="llama-cpp-python is not installed, or built without AVX-512")
needs_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")


def drawn(seed: int, *shape: int, largest: float = 3.0) -> Tensor:
    """Normal numbers, of several sizes in each row."""
    r = np.random.default_rng(seed)
    return torch.from_numpy((r.standard_normal(shape) * np.exp2(r.uniform(-3, largest, shape))).astype(np.float32))


SEEDS = st.integers(0, 2**32)


@needs_glibc
@pytest.mark.parametrize(("name", "low", "high"), [("expf", -110, 90), ("expf", -2, 0), ("cosf", 0, 2**13), ("sinf", 0, 2**13)])
def test_functions_are_those_of_the_c_library(name: str, low: float, high: float) -> None:
    """Every bit of 50,000 numbers; float64 rounded to float32 differs in one of 100 sines and 2,000 exponentials."""
    function = getattr(ctypes.CDLL("libm.so.6"), name)
    function.restype, function.argtypes = ctypes.c_float, (ctypes.c_float,)
    x = np.random.default_rng(0).uniform(low, high, 50_000).astype(np.float32)

    found = getattr(libm, name)(torch.from_numpy(x)).numpy()

    np.testing.assert_array_equal(found, np.array([function(float(v)) for v in x], np.float32))


@needs_llama
@settings(max_examples=25, deadline=None)
@given(SEEDS, st.integers(1, 600))
def test_norms_are_those_of_ggml(seed: int, size: int) -> None:
    x, weight = drawn(seed, 5, size), drawn(seed + 1, size)
    wanted = computed([("ggml_rms_norm", x.numpy(), 1e-5), ("ggml_mul", PREVIOUS, weight.numpy())], (5, size))
    np.testing.assert_array_equal(rms_norm(x, weight, 1e-5).numpy(), wanted)


@needs_llama
@settings(max_examples=25, deadline=None)
@given(SEEDS, st.integers(1, 40))
def test_gated_layers_are_those_of_ggml(seed: int, size: int) -> None:
    """Also where exponentials are subnormal, zero or infinite."""
    gate, up = drawn(seed, 3, 16 * size, largest=7.0), drawn(seed + 1, 3, 16 * size)
    wanted = computed([("ggml_swiglu_split", gate.numpy(), up.numpy())], (3, 16 * size))
    np.testing.assert_array_equal(gated(gate, up).numpy(), wanted)


@needs_llama
@settings(max_examples=25, deadline=None)
@given(SEEDS, st.integers(1, 16), st.sampled_from((1e4, 5e5, 1e6)), st.integers(0, 4000), st.booleans())
def test_angles_are_those_of_ggml(seed: int, eighth: int, base: float, first: int, adjacent: bool) -> None:
    """Both orders of pairs, at the start and late in a long sequence."""
    size, places = 8 * eighth, np.arange(first, first + 40, dtype=np.int32)
    x, numbers = drawn(seed, 40, 3, size), (size, 0 if adjacent else 2, 0, base, 1.0, 0.0, 1.0, 32.0, 1.0)
    wanted = computed([("ggml_rope_ext", x.numpy(), places, None, *numbers)], (40, 3, size))

    halves = x.reshape(40, 3, -1, 2).transpose(-1, -2).flatten(-2) if adjacent else x
    found = rotate(halves.transpose(0, 1), *angles(torch.from_numpy(places), size, base)).transpose(0, 1)
    found = found.reshape(40, 3, 2, -1).transpose(-1, -2).flatten(-2) if adjacent else found

    np.testing.assert_array_equal(found.numpy(), wanted)


@needs_llama
@settings(max_examples=40, deadline=None)
@given(SEEDS, st.sampled_from((1, 2, 7, 63, 64, 65, 128, 150)), st.sampled_from((2, 16, 64, 72, 80, 128)), st.integers(1, 2))
def test_attention_is_that_of_ggml(seed: int, tokens: int, size: int, threads: int) -> None:
    """Key by key and in tiles; heads that do not fill a register; a cache that is longer than the sequence."""
    q = drawn(seed, 4, tokens, size, largest=1.0)
    k, v = (drawn(seed + i, 2, tokens, size, largest=1.0).half() for i in (1, 2))
    cache = [np.concatenate([t.numpy(), np.zeros((2, -tokens % 256, size), np.float16)], 1) for t in (k, v)]
    mask = np.full((tokens, cache[0].shape[1]), -np.inf, np.float16)
    mask[np.tril_indices(tokens)] = 0
    step = ("ggml_flash_attn_ext", q.numpy(), *cache, mask, size**-0.5, 0.0, 0.0)
    wanted = computed([step], (tokens, 4, size), threads)

    keys, values = (t.float().repeat_interleave(2, 0) for t in (k, v))

    np.testing.assert_array_equal(attention(q, keys, values, size**-0.5).transpose(0, 1).numpy(), wanted)


@given(SEEDS, st.sampled_from((1, 5, TILE, TILE + 6)))
@settings(max_examples=20, deadline=None)
def test_a_block_attends_by_definition(seed: int, tokens: int) -> None:
    """Angles, grouped heads, a causal softmax and norms of heads in float64.

    Each of up to 63 sums in float16 errs by 2^-12 of its value at most, queries and shares less: 2^-6 of the largest value.
    """
    q, k, v = (
        drawn(seed, 2, tokens, 64, largest=0.0),
        drawn(seed + 1, 2, tokens, 32),
        drawn(seed + 2, 2, tokens, 32, largest=0.0),
    )
    norms: Any = (drawn(seed + 3, 16, largest=-2.0), drawn(seed + 4, 16, largest=-2.0))

    found = attend(q, k, v, norms, 16, 1e4, 1e-6, True)

    def heads(x: Tensor) -> Tensor:
        return x.double().reshape(2, tokens, -1, 16).transpose(1, 2)

    def turned(x: Tensor, weight: Tensor) -> Tensor:
        x = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight
        numbers = torch.view_as_complex(torch.stack([x[..., :8], x[..., 8:]], -1))
        theta = torch.arange(tokens).double()[:, None] * 1e4 ** (-torch.arange(8).double() / 8)
        turned = torch.view_as_real(numbers * torch.polar(torch.ones_like(theta), theta))
        return torch.cat([turned[..., 0], turned[..., 1]], -1)

    keys, values = turned(heads(k), norms[1]).repeat_interleave(2, 1), heads(v).repeat_interleave(2, 1)
    scores = turned(heads(q), norms[0]) @ keys.transpose(-1, -2) / 4
    scores = scores.masked_fill(torch.ones(tokens, tokens).triu(1).bool(), -torch.inf)
    wanted = (scores.softmax(-1) @ values).transpose(1, 2).flatten(2)
    assert (found - wanted).abs().max() <= 2**-6 * float(values.abs().max())


def test_exponentials_at_their_ends() -> None:
    x = torch.tensor([-torch.inf, -1000.0, 0.0, 1000.0, torch.inf])
    assert exp(x).tolist() == [0.0, 0.0, 1.0, torch.inf, torch.inf]
