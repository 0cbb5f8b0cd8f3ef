"""The table's rows of formats, roundings and zero points: against exact rationals and ml_dtypes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import torch

from qfunc import specs
from qfunc.numerics import Affine, dequantize, from_range, quantize
from qfunc.numerics.minifloat import nearest
from qfunc.numerics.rounding import round_by
from qfunc.specs import Float, Int, Levels, Log, Scheme, ZeroPoint
from qfunc.testing import oracle
from tests.equations.row import Row
from tests.functions.test_nnie_log import by_hand as nnie

EVERY_BFLOAT16 = np.arange(1 << 16, dtype=np.uint16).view(ml_dtypes.bfloat16).astype(np.float32)
TIES = [Fraction(k, 4) for k in range(-44, 45)]


def rounding(mode: str) -> Callable[[], int]:
    """Quarters, so that every tie is met, on both sides of zero."""

    def check() -> int:
        found = round_by(torch.tensor([float(v) for v in TIES]), mode, -11)
        assert found.tolist() == [oracle.rounded(v, mode, -11) for v in TIES]
        return len(TIES)

    return check


def stochastic() -> int:
    """floor(x + noise) in exact rationals: quarters, with noises at both sides of every jump."""
    noises = [Fraction(n, 1 << 24) for k in range(4) for n in ((k << 22) - 1, k << 22, (k << 22) + 1) if n >= 0]
    for noise in noises:
        found = round_by(torch.tensor([float(v) for v in TIES]), "stochastic", noise=torch.full((len(TIES),), float(noise)))
        assert found.tolist() == [math.floor(v + noise) for v in TIES]
    return len(TIES) * len(noises)


def integers() -> int:
    """Every width from 2 to 16 bits, signed or not, with and without cut ends, at ties and beyond both ends."""
    compared = 0
    for bits, signed, cut in itertools.product(range(2, 17), (True, False), (0, 1)):
        full = Int(bits, signed)
        fmt = Int(bits, signed, low=full.qmin + cut, high=full.qmax)
        scheme, zero = Scheme(fmt, zero_point=ZeroPoint()), (fmt.qmin + fmt.qmax) // 2
        near = [zero, fmt.qmin, fmt.qmax, fmt.qmin - 2, fmt.qmax + 2]
        reals = [(Fraction(2 * (c - zero) + side, 2)) / 4 for c in near for side in (-1, 0, 1)]
        qparams = Affine(torch.tensor(0.25), torch.tensor(float(zero)))
        found = quantize(torch.tensor([float(r) for r in reals]), qparams, scheme)
        assert found.tolist() == [oracle.quantize(r, Fraction(1, 4), zero, fmt.qmin, fmt.qmax) for r in reals]
        compared += len(reals)
    return compared


def small_float(fmt: Float, theirs: Any) -> Callable[[], int]:
    """Every bfloat16 in the range of the format; beyond it casts of libraries disagree."""

    def check() -> int:
        top = float(ml_dtypes.finfo(theirs).max)
        x = EVERY_BFLOAT16[np.isfinite(EVERY_BFLOAT16) & (np.abs(EVERY_BFLOAT16) <= top)]
        wanted = x.astype(theirs).astype(np.float32)
        found = nearest(torch.from_numpy(x.copy()), fmt).numpy()
        assert (found == wanted).all()
        assert nearest(torch.tensor([1e30, -1e30]), fmt).tolist() == [top, -top]
        return len(x) + 2

    return check


def wide_float(fmt: Float, kept: int, theirs: Any, wider: Any) -> Callable[[], int]:
    """Numbers of a wider type: values of which `kept` bits of mantissa stay, ties, and both neighbours of ties."""

    def check() -> int:
        whole = np.dtype(wider).itemsize * 8
        free = np.finfo(wider).nmant - kept
        values = np.random.default_rng(kept).integers(0, 1 << whole - 1, 5000) >> free << free
        tie = 1 << free - 1
        x = np.concatenate([values, values + tie - 1, values + tie, values + tie + 1]).astype(f"int{whole}").view(wider)
        top = float(ml_dtypes.finfo(theirs).max)
        x = np.concatenate([x, -x])[np.tile(np.abs(x) <= top, 2)]
        found = nearest(torch.from_numpy(x), fmt).numpy()
        assert (found == x.astype(theirs).astype(wider)).all()
        return len(x)

    return check


def powers() -> int:
    """E8M0 has neither zero nor sign; ml_dtypes rounds subnormals of float32 in another way, so that those are left out."""
    x = EVERY_BFLOAT16[np.isfinite(EVERY_BFLOAT16) & (EVERY_BFLOAT16 >= 2.0**-126) & (EVERY_BFLOAT16 <= 2.0**127)]
    assert (
        nearest(torch.from_numpy(x.copy()), specs.formats.E8M0).numpy() == x.astype(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    ).all()
    assert nearest(torch.tensor([0.0, -3.0, 3e38]), specs.formats.E8M0).tolist() == [2.0**-127, 2.0**-127, 2.0**127]
    return len(x) + 3


def codebook() -> int:
    """The nearest of uneven levels by exact distances; a tie takes the level of even index."""
    levels = (-1.0, -0.375, 0.0, 0.125, 0.5, 1.0)
    x = [Fraction(k, 64) for k in range(-90, 90)]
    found = quantize(torch.tensor([float(v) for v in x]), Affine(torch.tensor(1.0), torch.tensor(0.0)), Scheme(Levels(levels)))
    wanted = [min(range(6), key=lambda i, v=v: (abs(Fraction(levels[i]) - v), i % 2)) for v in x]
    assert found.tolist() == wanted
    return len(x)


def logarithm() -> int:
    """The vendor's equation for every code, both signs, and below the smallest magnitude."""
    x = torch.cat([torch.exp2((torch.arange(-300, 100).double() + 0.3) / 16), torch.zeros(1, dtype=torch.float64)])
    x = torch.cat([x, -x]).float()
    scheme = Scheme(Log())
    qparams = from_range(torch.tensor(-4.0), torch.tensor(4.0), scheme)
    found = dequantize(quantize(x, qparams, scheme), qparams, scheme)
    wanted = torch.tensor([nnie(v, 32 - 127) for v in x.tolist()])
    assert ((found - wanted).abs() <= 2.0**-23 * wanted.abs()).all()  # one ulp: exp2 of two libraries
    return len(x)


def nudged(nudge: str) -> Callable[[], int]:
    """Zero point and scale of a thousand ranges, in exact rationals."""

    def check() -> int:
        scheme = Scheme(Int(8, signed=False), zero_point=ZeroPoint(nudge=nudge))
        for k in range(1000):
            low, high = -Fraction(k % 37, 8), Fraction(k % 101 + 1, 16)
            scale = oracle.float32((high - low) / 255)
            zero = oracle.zero_of_range(low, scale, 0, 255)
            if nudge == "nearest" and not 0 + abs(low / scale) < 255 + abs(high / scale):
                zero = oracle.clamp(oracle.rounded(255 - high / scale, "half_even"), 0, 255)
            if nudge == "outward":
                sides = [(-low, zero), (high, 255 - zero)]
                scale = oracle.float32(max(room / codes if codes else Fraction(0) for room, codes in sides))
            found = from_range(torch.tensor(float(low)), torch.tensor(float(high)), scheme)
            assert (found.scale.item(), found.zero_point.item()) == (float(scale), zero), (low, high)
        return 2000

    return check


def added_before() -> int:
    """Ascend: R(x/s + z), which differs from R(x/s) + z at ties and odd z."""
    scheme = Scheme(Int(8), zero_point=ZeroPoint(added="before"))
    qparams = Affine(torch.tensor(1.0), torch.tensor(3.0))
    found = quantize(torch.tensor([float(v) for v in TIES]), qparams, scheme)
    assert found.tolist() == [oracle.rounded(v + 3, "half_even") for v in TIES]
    return len(TIES)


def both(name: str, theirs: str) -> tuple[Float, Any]:
    """Our format and ml_dtypes'."""
    return getattr(specs.formats if name in specs.formats.__all__ else specs, name), getattr(ml_dtypes, theirs, np.float16)


MODES = ("half_even", "half_away", "half_up", "half_down", "half_to_zero", "floor", "trunc", "half_even_on_index",
         "half_up_on_index", "negative_ceil_else_half_even")  # fmt: skip
SMALL = (("E4M3FN", "float8_e4m3fn"), ("E5M2", "float8_e5m2"), ("E4M3FNUZ", "float8_e4m3fnuz"), ("E5M2FNUZ", "float8_e5m2fnuz"),
         ("E3M2", "float6_e3m2fn"), ("E2M3", "float6_e2m3fn"), ("E2M1", "float4_e2m1fn"), ("FLOAT16", "float16"))  # fmt: skip
ROWS = (
    *(Row(f"rounding {m}", "hardware's name; numerics.rounding", "exact rationals", rounding(m)) for m in MODES),
    Row("rounding stochastic", "arXiv:1502.02551, section 3.1", "exact rationals", stochastic),
    Row("Int, 2 to 16 bits", "ONNX QuantizeLinear", "exact rationals", integers),
    *(Row(n, "OCP FP8 1.0; OCP MX 1.0; IEEE 754", "ml_dtypes", small_float(*both(n, t))) for n, t in SMALL),
    Row("E8M0", "OCP MX 1.0, section 5.4.1", "ml_dtypes", powers),
    Row("BFLOAT16", "float32's upper half", "ml_dtypes", wide_float(specs.BFLOAT16, 7, ml_dtypes.bfloat16, np.float32)),
    Row("FLOAT32", "IEEE 754", "numpy", wide_float(specs.FLOAT32, 23, np.float32, np.float64)),
    Row("Levels", "the nearest level", "exact rationals", codebook),
    Row("Log", "HiSilicon NNIE, MQBench's user guide", "Python floats", logarithm),
    Row("zero point from the low bound", "ONNX Runtime quantization tool", "exact rationals", nudged("low")),
    Row("zero point, nearest", "gemmlowp, ChooseQuantizationParams", "exact rationals", nudged("nearest")),
    Row("zero point, outward", "NNCF, tune_range", "exact rationals", nudged("outward")),
    Row("zero point before rounding", "Ascend AMCT", "exact rationals", added_before),
)  # fmt: skip
