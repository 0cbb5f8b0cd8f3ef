"""The ready block schemes, each against its source's formula in a loop, and MatMulNBits against ONNX Runtime itself."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
import torch
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnxruntime.capi import _pybind_state

from qfunc.numerics import dequantize, fake_quantize, quantize
from qfunc.numerics.bits import pack_nibbles, to_bits
from qfunc.numerics.qparams import of_tensor, qparams_shape
from qfunc.specs import PerBlock, PerChannel, PerTensor, PerToken, Scheme
from qfunc.specs.formats import (
    E2M1, E4M3FN, E8M0, GGUF_Q4_0, GGUF_Q5_0, GGUF_Q8_0, MATMUL_4BITS, MATMUL_4BITS_AFFINE, MXFP4, MXFP6_E2M3, MXFP6_E3M2,
    MXFP8_E4M3, MXFP8_E5M2, MXINT8, NVFP4, READY,
)  # fmt: skip
from qfunc.testing import oracle, strategies

MX = {
    "MXFP8_E4M3": (MXFP8_E4M3, 8, ml_dtypes.float8_e4m3fn),
    "MXFP8_E5M2": (MXFP8_E5M2, 15, ml_dtypes.float8_e5m2),
    "MXFP6_E3M2": (MXFP6_E3M2, 4, ml_dtypes.float6_e3m2fn),
    "MXFP6_E2M3": (MXFP6_E2M3, 2, ml_dtypes.float6_e2m3fn),
    "MXFP4": (MXFP4, 2, ml_dtypes.float4_e2m1fn),
}
"""The scheme, OCP's emax of the element, and the element."""

SHARED = [PerTensor(), PerChannel(1), PerToken(), PerBlock(-1, 32), PerBlock(-1, 16), PerBlock(0, 3)]
SHAPE = (3, 5, 64)


def sample(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Blocks of many magnitudes; one of zeros, one of a single number, one constant."""
    x = torch.randn(SHAPE, generator=torch.Generator().manual_seed(3)) * torch.logspace(-6, 6, 64)
    x[0, 0, :32], x[0, 1, :32], x[0, 2, 32:] = 0.0, 0.0, -0.75
    x[0, 1, 7] = 3.0
    return x.to(dtype)


def groups(x: torch.Tensor, shared: Any) -> list[list[tuple[int, ...]]]:
    """The places that share a scale, by brute force over every element."""
    found: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for place in np.ndindex(*x.shape):
        match shared:
            case PerTensor():
                key: tuple[int, ...] = ()
            case PerChannel(axis=int(axis)):
                key = (place[axis],)
            case PerToken():
                key = place[:-1]
            case _:
                axis = shared.axis % x.ndim
                key = tuple(p // shared.size if i == axis else p for i, p in enumerate(place))
        found.setdefault(key, []).append(place)
    return list(found.values())


def at(scheme: Scheme, shared: Any) -> Scheme:
    return evolve(scheme, scale=evolve(scheme.scale, shared=shared))


def exponent(x: float) -> int:
    return math.frexp(x)[1] - 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shared", SHARED, ids=str)
@pytest.mark.parametrize("kind", MX)
def test_mx_floats_follow_the_specification(kind: str, shared: Any, dtype: torch.dtype) -> None:
    """X = 2^max(floor(log2 absmax) - emax, -127), P = the clipped cast of v / X; element by element, and X's E8M0 bits."""
    scheme, emax, element = MX[kind]
    scheme, x = at(scheme, shared), sample(dtype)
    top = float(ml_dtypes.finfo(element).max)

    qparams = of_tensor(x, scheme)
    codes, held = quantize(x, qparams, scheme), fake_quantize(x, qparams, scheme)

    real = x.double().numpy()
    wanted, values, powers = np.zeros(SHAPE), np.zeros(SHAPE), []
    for places in groups(x, shared):
        absmax = max(abs(real[p]) for p in places)
        power = max(exponent(absmax) - emax, -127) if absmax else -127
        powers.append(power + 127)
        for p in places:
            ratio = np.clip(np.float32(real[p] * 2.0**-power), np.float32(-top), np.float32(top))
            wanted[p] = np.float32(ratio.astype(element))
            values[p] = wanted[p] * 2.0**power
    assert held.dtype == dtype
    np.testing.assert_array_equal(codes.double().numpy(), wanted)
    np.testing.assert_array_equal(held.double().numpy(), torch.tensor(values).to(dtype).double().numpy())
    assert sorted(to_bits(qparams.scale, E8M0).flatten().tolist()) == sorted(powers)


@pytest.mark.parametrize("shared", SHARED, ids=str)
def test_mxint8_follows_the_specification(shared: Any) -> None:
    """X = 2^floor(log2 absmax), elements in 64ths from -127/64 to 127/64, half to even."""
    scheme, x = at(MXINT8, shared), sample()

    held = fake_quantize(x, of_tensor(x, scheme), scheme)

    for places in groups(x, shared):
        absmax = max(abs(x[p].item()) for p in places)
        step = Fraction(2) ** (exponent(absmax) - 6)
        for p in places:
            code = oracle.clamp(oracle.rounded(Fraction(x[p].item()) / step, "half_even"), -127, 127)
            assert Fraction(held[p].item()) == code * step


@pytest.mark.parametrize("shared", SHARED, ids=str)
def test_nvfp4_follows_the_formula(shared: Any) -> None:
    """s2 = absmax / (6 * 448), s1 = e4m3(absmax(block) / (6 s2)) or 1, q = e2m1(x / (s1 s2)): TensorRT Model Optimizer."""
    scheme, x = at(NVFP4, shared), sample()

    qparams = of_tensor(x, scheme)
    held = dequantize(quantize(x, qparams, scheme), qparams, scheme)

    s2 = oracle.float32(Fraction(x.abs().max().item()) / (6 * 448))
    for places in groups(x, shared):
        absmax = Fraction(max(abs(x[p].item()) for p in places))
        s1 = np.float32(float(absmax / 6 / s2)).astype(ml_dtypes.float8_e4m3fn).astype(np.float64)
        s1 = 1.0 if absmax == 0 else min(max(float(s1), 2.0**-9), 448.0)
        step = np.float32(s1) * np.float32(float(s2))  # the hardware multiplies the two in float32
        for p in places:
            q = np.clip(np.float32(x[p].item()) / step, -6, 6).astype(ml_dtypes.float4_e2m1fn).astype(np.float32)
            assert held[p].item() == q * step
    to_bits(qparams.scale, E4M3FN)  # every block scale has a pattern
    to_bits(quantize(x, qparams, scheme), E2M1)


@pytest.mark.parametrize("shared", SHARED, ids=str)
@pytest.mark.parametrize("scheme", [GGUF_Q4_0, GGUF_Q5_0, GGUF_Q8_0, MATMUL_4BITS, MATMUL_4BITS_AFFINE])
def test_integer_blocks_follow_their_formulas(scheme: Scheme, shared: Any) -> None:
    """d = extreme / -8, absmax / 127 (float16 after the codes) or (max - min) / 15; codes of x (1/d); exact loop."""
    fmt, affine, small = scheme.format, scheme.zero_point is not None, scheme.scale.format.exponent == 5
    x = sample().clamp(-100, 100) if small else sample()
    scheme = at(scheme, shared)

    qparams = of_tensor(x, scheme)
    codes, held = quantize(x, qparams, scheme), dequantize(quantize(x, qparams, scheme), qparams, scheme)

    for places in groups(x, shared):
        values = [Fraction(x[p].item()) for p in places]
        low, high = min(*values, Fraction(0)), max(*values, Fraction(0))
        counts = next(v for v in values if abs(v) == max(-low, high)) if small else low if -low >= high else high
        half = -fmt.qmin  # type: ignore[union-attr]
        extreme = counts / -half if scheme.scale.signed else max(-low, high) / 127
        exact = (high - low) / 15 if affine else extreme
        d = float(np.float32(float(exact or 1)))
        stored = np.float16(d if exact else -0.0) if small else np.float32(d)
        z = oracle.clamp(oracle.rounded(-low / Fraction(d), "half_away"), 0, 15) if affine else 0
        for p in places:
            index = scheme.rounding.endswith("_on_index")
            ratio = np.float32(x[p].item()) * (np.float32(1) / np.float32(d)) + np.float32(half if index else z)
            rounding = scheme.rounding.removesuffix("_on_index")
            code = oracle.clamp(oracle.rounded(float(ratio), rounding) - half * index, fmt.qmin, fmt.qmax)  # type: ignore[union-attr]
            assert codes[p].item() == code
            assert held[p].item() == np.float32(code - z) * np.float32(stored)


@pytest.mark.parametrize("block", [16, 32, 64])
@pytest.mark.parametrize("scheme", [MATMUL_4BITS, MATMUL_4BITS_AFFINE], ids=["symmetric", "affine"])
def test_onnxruntime_quantizes_and_multiplies_the_same_blocks(scheme: Scheme, block: int) -> None:
    """Codes, scales and zero points of its own packer; and MatMulNBits times the identity is dequantize, every bit."""
    n, k, affine = 5, 128, scheme is MATMUL_4BITS_AFFINE
    scheme = at(scheme, PerBlock(-1, block))
    w = torch.randn(n, k, generator=torch.Generator().manual_seed(block))
    packed, scales = np.zeros((n, k // block, block // 2), np.uint8), np.zeros(n * k // block, np.float32)
    zeros = np.zeros(n * ((k // block + 1) // 2), np.uint8)
    columns = np.ascontiguousarray(w.numpy().T)
    _pybind_state.quantize_matmul_4bits(packed, columns, scales, zeros, block, n, k, not affine)

    qparams = of_tensor(w, scheme)
    codes = quantize(w, qparams, scheme)

    ours = pack_nibbles(codes if affine else codes + 8).reshape(packed.shape).numpy()
    ours_zeros = pack_nibbles(qparams.zero_point).flatten().numpy()
    np.testing.assert_array_equal(ours, packed)
    # ONNX Runtime rounds max - min to float32, then the quotient: at most one unit in the last place.
    np.testing.assert_array_max_ulp(qparams.scale.flatten().numpy(), scales, maxulp=1 if affine else 0)
    if affine:
        np.testing.assert_array_equal(ours_zeros, zeros)
    stored = [("b", TensorProto.UINT8, ours), ("s", TensorProto.FLOAT, qparams.scale.flatten().numpy())]
    stored += [("z", TensorProto.UINT8, ours_zeros)] if affine else []
    weights = [helper.make_tensor(name, kind, a.shape, a.tobytes(), raw=True) for name, kind, a in stored]
    names = ["a", *(name for name, _, _ in stored)]
    node = helper.make_node("MatMulNBits", names, ["y"], domain="com.microsoft", K=k, N=n, bits=4, block_size=block)
    ends = [helper.make_tensor_value_info(name, 1, [k, m]) for name, m in (("a", k), ("y", n))]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], "g", ends[:1], ends[1:], weights), opset_imports=opsets, ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])

    product: Any = session.run(None, {"a": np.eye(k, dtype=np.float32)})[0]

    np.testing.assert_array_equal(product.T, dequantize(codes, qparams, scheme).numpy())


@pytest.mark.parametrize("seed", range(20))
def test_onnxruntime_quantizes_ties_to_the_same_codes(seed: int) -> None:
    """Weights of few levels, and of bfloat16: x * (1/s) is near a tie for many, and the sum with 8 falls onto it."""
    r = np.random.default_rng(seed)
    few = (r.integers(-16, 17, (8, 64)) * np.float32(r.random())).astype(np.float32)
    for w in (torch.from_numpy(few), torch.randn(8, 64, generator=torch.Generator().manual_seed(seed)).bfloat16().float()):
        packed, scales, zeros = np.zeros((8, 2, 16), np.uint8), np.zeros(16, np.float32), np.zeros(8, np.uint8)
        _pybind_state.quantize_matmul_4bits(packed, np.ascontiguousarray(w.numpy().T), scales, zeros, 32, 8, 64, True)

        codes = quantize(w, of_tensor(w, MATMUL_4BITS), MATMUL_4BITS)

        np.testing.assert_array_equal(pack_nibbles(codes + 8).reshape(packed.shape).numpy(), packed)


@settings(max_examples=150)
@given(st.data())
def test_extreme_input_has_stated_results(data: st.DataObject) -> None:
    """Empty, one element, constant, float32's ends, subnormal: finite codes of the right shape, 0 is 0; NaN stays."""
    shape = data.draw(st.sampled_from(((0, 32), (1,), (2, 64), (3, 1, 32))))
    scheme = data.draw(strategies.block_schemes(shape=shape))
    x = torch.full(shape, data.draw(st.sampled_from((0.0, 1.0, -3.0, 1e-45, 2.0**-126, 3e38, -3.4e38))))
    if scheme.zero_point is not None:
        x = x.clamp(-1e38, 1e38)

    qparams = of_tensor(x, scheme)
    codes, held = quantize(x, qparams, scheme), fake_quantize(x, qparams, scheme)

    assert qparams.scale.shape == qparams_shape(scheme, shape)
    assert codes.shape == held.shape == x.shape
    assert torch.isfinite(qparams.scale).all()
    assert torch.isfinite(codes).all()
    if x.numel():
        assert not fake_quantize(torch.zeros(shape), qparams, scheme).any()
        seen = x.clone().flatten()
        seen[0] = math.nan
        assert fake_quantize(seen.reshape(shape), qparams, scheme).flatten()[0].isnan()


@pytest.mark.thorough
@pytest.mark.parametrize("scheme", READY)
def test_ready_schemes_compile_whole(scheme: Scheme) -> None:
    """Dynamic scales and quantization under torch.compile without graph breaks: the same bits."""

    def run(x: torch.Tensor) -> torch.Tensor:
        qparams = of_tensor(x, scheme)
        return dequantize(quantize(x, qparams, scheme), qparams, scheme)

    torch.compiler.reset()
    x = sample()
    assert torch.equal(torch.compile(run, fullgraph=True, backend="aot_eager")(x), run(x))
