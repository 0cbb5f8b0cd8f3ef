"""Small floats against ml_dtypes, exact rationals and the ONNX reference evaluator."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from attrs import evolve
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from qfunc.errors import SpecError
from qfunc.numerics import Affine, quantize
from qfunc.numerics.minifloat import nearest
from qfunc.specs import BFLOAT16, FLOAT16, FLOAT32, Float, Levels, Log, Scheme
from qfunc.specs.formats import E2M1, E2M3, E3M2, E4M3FN, E4M3FNUZ, E5M2, E5M2FNUZ, E8M0
from qfunc.testing import oracle

KINDS: dict[str, tuple[Float, Any]] = {
    "E4M3FN": (E4M3FN, ml_dtypes.float8_e4m3fn),
    "E5M2": (E5M2, ml_dtypes.float8_e5m2),
    "E4M3FNUZ": (E4M3FNUZ, ml_dtypes.float8_e4m3fnuz),
    "E5M2FNUZ": (E5M2FNUZ, ml_dtypes.float8_e5m2fnuz),
    "E3M2": (E3M2, ml_dtypes.float6_e3m2fn),
    "E2M3": (E2M3, ml_dtypes.float6_e2m3fn),
    "E2M1": (E2M1, ml_dtypes.float4_e2m1fn),
    "E4M3 of IEEE": (Float(4, 3), ml_dtypes.float8_e4m3),
    "E3M4": (Float(3, 4), ml_dtypes.float8_e3m4),
    "E4M3B11FNUZ": (Float(4, 3, bias=11, max=30.0, negative_zero=False), ml_dtypes.float8_e4m3b11fnuz),
    "FLOAT16": (FLOAT16, np.float16),
    "BFLOAT16": (BFLOAT16, ml_dtypes.bfloat16),
    "E8M0": (E8M0, ml_dtypes.float8_e8m0fnu),
}
"""The format, and the dtype of a library that shares no code with this one."""

MODES = [*(m for m in oracle.MODES if not m.endswith("_on_index")), "stochastic"]
NAN, INF = math.nan, math.inf


def bits(values: Any) -> np.ndarray[Any, Any]:
    """Bit patterns of float32, all NaN alike: -0 differs from 0."""
    real = np.asarray(values, np.float32)
    return np.where(np.isnan(real), np.int64(-1), real.view(np.int32).astype(np.int64))


def cast(values: np.ndarray[Any, Any], dtype: Any) -> np.ndarray[Any, Any]:
    with np.errstate(all="ignore"):
        return values.astype(dtype).astype(np.float32)


def near_ties(dtype: Any) -> np.ndarray[Any, Any]:
    """Every value, every middle of neighbours and one float32 either side, both signs; up to 2^17 of them."""
    count = 1 << 8 * np.dtype(dtype).itemsize
    with np.errstate(all="ignore"):
        held = np.arange(count, dtype=np.uint16 if count > 256 else np.uint8).view(dtype).astype(np.float64)
        held = np.unique(np.abs(held[np.isfinite(held)]))
        beyond = held[-1] + (held[-1] - held[-2]) * np.array([0.5, 1.0, 1.5, 2.0])  # where overflow begins
        places = np.concatenate([held, (held[1:] + held[:-1]) / 2, beyond]).astype(np.float32)
        around = np.concatenate([np.nextafter(places, np.float32(s)) for s in (0, np.inf)])
    every = np.concatenate([places, around])
    return np.concatenate([every, -every]).astype(np.float32)


def comparable(x: np.ndarray[Any, Any], kind: str) -> np.ndarray[Any, Any]:
    """Without NaN where the format has none: ml_dtypes makes it -0 or so, qfunc keeps it visible.

    For E8M0 without subnormals: ml_dtypes 0.6 rounds 1.02 * 2^-127 up to 2^-126.
    """
    if kind in ("E3M2", "E2M3", "E2M1"):
        return x[~np.isnan(x)]
    return x[(x == 0) | ~(np.abs(x) < 2.0**-126)] if kind == "E8M0" else x


@pytest.mark.parametrize("kind", KINDS)
def test_every_bfloat16_pattern_is_rounded_as_in_ml_dtypes(kind: str) -> None:
    """All 2^16 patterns: subnormals, overflow, infinities and NaN; every bit."""
    fmt, dtype = KINDS[kind]
    x = comparable((np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32), kind)

    found = nearest(torch.tensor(x), evolve(fmt, saturate=False))

    np.testing.assert_array_equal(bits(found), bits(cast(x, dtype)))


@pytest.mark.parametrize("kind", KINDS)
def test_ties_and_their_neighbours_are_rounded_as_in_ml_dtypes(kind: str) -> None:
    """Every middle of two neighbouring values and the float32 beside it, and where overflow begins; every bit."""
    fmt, dtype = KINDS[kind]
    x = comparable(near_ties(dtype), kind)

    for given_as in (torch.float32, torch.float64):
        found = nearest(torch.tensor(x).to(given_as), evolve(fmt, saturate=False))
        np.testing.assert_array_equal(bits(found), bits(cast(x, dtype)))


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "E8M0"])
def test_saturation_is_a_clip_before_the_cast(kind: str) -> None:
    """Library casts disagree on overflow, but not after a clip to the largest finite value."""
    fmt, dtype = KINDS[kind]
    x = comparable(np.concatenate([near_ties(dtype), np.float32([INF, -INF, NAN, 3e38, -3e38])]), kind)
    top = float(ml_dtypes.finfo(dtype).max)

    found = nearest(torch.tensor(x), evolve(fmt, saturate=True))

    np.testing.assert_array_equal(bits(found), bits(cast(np.clip(x, -top, top), dtype)))


@pytest.mark.parametrize(
    ("fmt", "x", "loose", "tight"),
    [
        (E4M3FN, 464.0, 448.0, 448.0),
        (E4M3FN, 464.1, NAN, 448.0),
        (E4M3FN, -INF, NAN, -448.0),
        (E5M2, 61439.0, 57344.0, 57344.0),
        (E5M2, 61440.0, INF, 57344.0),
        (E5M2, -1e9, -INF, -57344.0),
        (E4M3FNUZ, 248.0, NAN, 240.0),
        (E5M2FNUZ, 61440.0, NAN, 57344.0),
        (E2M1, 1e9, 6.0, 6.0),
        (E2M3, INF, 7.5, 7.5),
        (E3M2, -29.0, -28.0, -28.0),
        (E8M0, 0.0, NAN, 2.0**-127),
        (E8M0, -1.0, NAN, 2.0**-127),
        (E8M0, 3e38, NAN, 2.0**127),
        (E8M0, 2.0**-149, 2.0**-127, 2.0**-127),
        (FLOAT32, INF, INF, 3.4028234663852886e38),
    ],
)
def test_overflow_follows_the_table_of_the_formats(fmt: Float, x: float, loose: float, tight: float) -> None:
    """OCP's 8-bit and Microscaling specifications: what lies beyond the largest value, without and with saturation."""
    found = [nearest(torch.tensor(x), evolve(fmt, saturate=s)).item() for s in (False, True)]

    assert bits(found).tolist() == bits([loose, tight]).tolist()


@pytest.mark.parametrize("kind", ["E4M3FN", "E5M2", "E4M3FNUZ", "E5M2FNUZ"])
def test_quantize_equals_onnx(kind: str) -> None:
    """QuantizeLinear of opset 19 by ONNX's reference evaluator, saturating, a power-of-two scale."""
    fmt, dtype = KINDS[kind]
    element = getattr(TensorProto, f"FLOAT8{kind}")
    x, scale = near_ties(dtype) * np.float32(0.25), np.float32(0.25)
    x = x[np.isfinite(x)]
    names = ["x", "s", "z"]
    given_as = [helper.make_tensor_value_info(n, t, None) for n, t in zip(names, (1, 1, element), strict=True)]
    node = helper.make_node("QuantizeLinear", names, ["y"])
    graph = helper.make_graph([node], "g", given_as, [helper.make_tensor_value_info("y", element, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)])
    results: Any = ReferenceEvaluator(model).run(None, {"x": x, "s": scale, "z": np.zeros((), dtype)})

    found = quantize(torch.tensor(x), Affine(torch.tensor(0.25), torch.tensor(0.0)), Scheme(fmt))

    np.testing.assert_array_equal(bits(found), bits(results[0].astype(np.float32)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("shape", [(0, 3), (), (1,), (2, 3, 5)])
def test_shape_and_dtype_stay_and_nothing_is_written(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Empty, scalar, one element, strided; x is what it was."""
    x = torch.linspace(-9, 500, math.prod(shape), dtype=torch.float64).reshape(shape).to(dtype)
    x = x.movedim(0, -1) if x.ndim > 2 else x
    before = x.clone()
    for fmt in (E4M3FN, BFLOAT16, FLOAT32, E8M0):
        for mode in MODES:
            found = nearest(x, fmt, mode, torch.zeros_like(x))
            assert found.shape == x.shape
            assert found.dtype == dtype
    assert torch.equal(x, before)


@pytest.mark.parametrize("fmt", [E4M3FN, E5M2FNUZ, BFLOAT16, E8M0])
@pytest.mark.parametrize("mode", ["half_even", "half_up", "stochastic"])
def test_it_compiles_whole_and_maps(fmt: Float, mode: str) -> None:
    """torch.compile without graph breaks, and torch.func.vmap, give the same bits."""
    x = torch.cat([torch.tensor(near_ties(ml_dtypes.float4_e2m1fn)), torch.tensor([NAN, INF, -INF])]).repeat(3, 1)
    noise = torch.linspace(0, 0.99, x.numel()).reshape(x.shape)

    def run(x: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        return nearest(x, fmt, mode, noise)

    torch.compiler.reset()
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")(x, noise)

    np.testing.assert_array_equal(bits(compiled), bits(run(x, noise)))
    np.testing.assert_array_equal(bits(torch.func.vmap(run)(x, noise)), bits(run(x, noise)))


def test_what_has_no_meaning_is_refused() -> None:
    """An index of floats, a missing noise, and a format beyond float64."""
    with pytest.raises(SpecError) as index:
        nearest(torch.zeros(1), E4M3FN, "half_even_on_index")
    with pytest.raises(SpecError) as wide:
        nearest(torch.zeros(1), Float(4, 3, bias=4000))
    with pytest.raises(SpecError, match="noise"):
        nearest(torch.zeros(1), E4M3FN, "stochastic")
    wanted = "minifloat.nearest: found 'half_even_on_index', wanted a rounding of values. Use another rounding."
    assert str(index.value) == wanted
    assert str(wide.value) == (
        "minifloat.nearest: found Float(4, mantissa=3, bias=4000), wanted a format with values that fit into float64. "
        "Use another bias, or fewer mantissa bits."
    )


@pytest.mark.parametrize(
    ("fmt", "rounding", "wanted"),
    [
        (E4M3FN, "half_even_on_index", "a rounding of values, because floats have no index. Name another."),
        (Log(), "half_up", "'half_even', the one of codebooks and logarithms. Drop it."),
        (Levels((0.0, 1.0)), "floor", "'half_even', the one of codebooks and logarithms. Drop it."),
    ],
)
def test_a_scheme_refuses_a_rounding_that_its_format_does_not_have(fmt: Any, rounding: str, wanted: str) -> None:
    """Rather than leave it unused."""
    with pytest.raises(SpecError) as error:
        Scheme(fmt, rounding=rounding)
    assert str(error.value) == f"Scheme.rounding: found {rounding!r}, wanted {wanted}"
