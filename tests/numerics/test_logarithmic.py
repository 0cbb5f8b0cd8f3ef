"""Logarithmic codes against the vendor's equation, one number at a time in float64."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qfunc.numerics import Affine, dequantize, quantize
from qfunc.numerics.logarithmic import decode, encode
from qfunc.numerics.qparams import from_range, of_tensor
from qfunc.specs import Log, PerBlock, PerChannel, PerTensor, PerToken, Scale, Scheme

NNIE = Scheme(Log(7, 16))


def origin_of(clip: float) -> int:
    """z = round(16 log2 c) - 127."""
    return round(16 * math.log2(clip)) - 127


def code_of(x: float, z: int) -> int:
    """The code of the user guide of MQBench's NNIE backend: 0x00-0x7F above zero, 0x80 zero, 0x81-0xFF below."""
    if x >= 2.0 ** ((z - 16) / 16):
        return min(max(round(16 * math.log2(x)) - z, 0), 127) if x < math.inf else 127
    if x <= -(2.0 ** ((z + 1 - 16) / 16)):
        return 128 + (min(max(round(16 * math.log2(-x)) - z, 1), 127) if x > -math.inf else 127)
    return 128


def value_of(code: int, z: int) -> float:
    if code == 128:
        return 0.0
    return 2.0 ** ((code + z) / 16) if code < 128 else -(2.0 ** ((code - 128 + z) / 16))


def near_thresholds(z: int) -> list[float]:
    """float32 numbers on both sides of every rounding threshold 2^((z + k + 1/2) / 16), and of the two zero bounds."""
    places = [2.0 ** ((z + k + 0.5) / 16) for k in range(-20, 130)] + [2.0 ** ((z - 16) / 16), 2.0 ** ((z - 15) / 16)]
    near = [float(np.nextafter(np.float32(p), np.float32(s))) for p in places for s in (0.0, p, math.inf)]
    return [s * v for v in near for s in (1.0, -1.0)] + [0.0, -0.0, math.inf, -math.inf, 1e-45, 3e38]


@pytest.mark.parametrize("clip", [1.0, 6.0, 0.37, 1e-6, 4096.0, 1e30])
def test_codes_and_values_follow_the_vendors_equation(clip: float) -> None:
    """Beside every threshold, at zero, saturated; the scale that from_range gives is 2^(z/16)."""
    z = origin_of(clip)
    x = near_thresholds(z)
    qparams = from_range(torch.tensor(-clip, dtype=torch.float64), torch.tensor(clip / 2, dtype=torch.float64), NNIE)

    codes = quantize(torch.tensor(x), qparams, NNIE)

    held = torch.tensor(x).tolist()
    assert qparams.scale.item() == float(np.float32(2.0 ** (z / 16)))
    assert codes.tolist() == [code_of(v, z) for v in held]
    wanted = [float(np.float32(value_of(code_of(v, z), z))) for v in held]
    assert dequantize(codes, qparams, NNIE).tolist() == wanted


def test_the_thresholds_themselves_are_quantized() -> None:
    """x >= lo+, as the user guide says; MQBench's code leaves x == lo+ as it is."""
    z = origin_of(1.0)  # -127; lo+ = 2^((z - 16) / 16), and a power of two is exact where 16 divides the exponent
    scale = torch.tensor(2.0 ** ((z - 1) / 16))
    assert encode(torch.tensor([2.0**-9, -(2.0**-9)]), scale, Log()).tolist() == [0.0, 128.0]
    assert encode(torch.tensor([-(2.0**-9)]), torch.tensor(2.0 ** ((z - 2) / 16)), Log()).tolist() == [129.0]


@given(st.integers(-1800, 1700), st.integers(0, 255))
def test_codes_are_fixed_points(z: int, code: int) -> None:
    """encode(decode(q)) == q for every code and origin, in float32 and float64."""
    scale = torch.tensor(2.0 ** (z / 16))
    for dtype in (torch.float32, torch.float64):
        held = decode(torch.tensor([float(code)], dtype=dtype), scale, Log())
        assert held.dtype == dtype
        assert encode(held, scale, Log()).tolist() == [code]


@given(st.lists(st.floats(-8, 8, width=32), min_size=2))
def test_rounding_is_monotone_and_holds_zero(x: list[float]) -> None:
    """Values grow with x; 0 has a code; signs stay."""
    real = torch.tensor(sorted(x))
    qparams = of_tensor(torch.tensor([4.0]), NNIE)

    held = dequantize(quantize(real, qparams, NNIE), qparams, NNIE)

    assert (held[1:] >= held[:-1]).all()
    assert (held * real >= 0).all()
    assert dequantize(quantize(torch.zeros(1), qparams, NNIE), qparams, NNIE).item() == 0.0


@pytest.mark.parametrize(("bits", "steps"), [(1, 1), (3, 2), (7, 16), (10, 16), (15, 1), (7, 1), (15, 64)])
def test_any_log_format_holds_the_extreme_within_half_a_step(bits: int, steps: int) -> None:
    """|log2(held / c)| <= 1/2 step and float32's rounding, for c from the smallest normal float32 to the largest."""
    scheme = Scheme(Log(bits, steps))
    for clip in (2.0**-126, 1e-30, 0.7, 1.0, 3.3e8, 3.4e38):
        x = torch.tensor([clip, -clip])
        qparams = of_tensor(x, scheme)
        held = dequantize(quantize(x, qparams, scheme), qparams, scheme)
        # The top step is half an octave / steps wider: 2^128 is no float32.  2^-20: float32 holds 2^(k/steps) so well.
        room = (1.0 if clip > 1e38 else 0.5) / steps + 2.0**-20
        assert torch.isfinite(held).all()
        assert abs(math.log2(held[0].item()) - math.log2(clip)) <= room
        if bits > 1 and clip > 1e-37:  # the magnitude at the lower end has no negative
            assert held[1] == -held[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shared", [PerTensor(), PerChannel(1), PerToken(), PerBlock(2, 4), PerBlock(0, 3)])
def test_every_granularity_is_a_loop(shared: PerTensor, dtype: torch.dtype) -> None:
    """Each element by the equation, with the origin of its own group."""
    x = (torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(1)) * 3).to(dtype)
    scheme = Scheme(Log(7, 16), Scale(shared))
    extreme = x.double().abs()
    match shared:
        case PerTensor():
            groups = extreme.amax().expand(x.shape)
        case PerChannel():
            groups = extreme.amax((0, 2), keepdim=True).expand(x.shape)
        case PerToken():
            groups = extreme.amax(-1, keepdim=True).expand(x.shape)
        case PerBlock(axis=2):
            groups = extreme.reshape(3, 5, 2, 4).amax(-1, keepdim=True).expand(3, 5, 2, 4).reshape(x.shape)
        case _:
            groups = extreme.amax(0, keepdim=True).expand(x.shape)

    codes = quantize(x, of_tensor(x, scheme), scheme)

    wanted = [code_of(v, origin_of(c)) for v, c in zip(x.flatten().tolist(), groups.flatten().tolist(), strict=True)]
    assert codes.flatten().tolist() == wanted


@pytest.mark.parametrize(("bits", "steps"), [(7, 16), (3, 1), (12, 64)])
def test_thresholds_lie_where_rational_numbers_put_them(bits: int, steps: int) -> None:
    """x has at least code q where x^(2 k) >= 2^(2 (q + z) - 1), in integers: both neighbours of each threshold in float32.

    Many numbers and one scale go by thresholds and tables, few scales of many groups by logarithms: both are right.
    """
    fmt, top = Log(bits, steps), (1 << bits) - 1
    z = 3 - 5 * steps
    near = [np.float32(2.0 ** ((q + z - 0.5) / steps)) for q in range(1, top + 1, max(1, top // 150))]
    real = torch.tensor([float(np.nextafter(v, np.float32(e))) for v in near for e in (0, v, 9e9)])
    codes = encode(real, torch.tensor(2.0 ** (z / steps)), fmt)
    for x, q in zip(map(Fraction, real.tolist()), map(int, codes.tolist()), strict=True):
        power = x ** (2 * steps)
        assert power >= Fraction(2) ** (2 * (q + z) - 1) or q == 0
        assert power < Fraction(2) ** (2 * (q + z) + 1) or q == top
    scales = torch.full((len(real), 1), 2.0 ** (z / steps))
    assert torch.equal(encode(real[:, None], scales, fmt)[:, 0], codes)
    whole = torch.arange(2.0 * (top + 1)).repeat(3)
    assert torch.equal(decode(whole, scales[0, 0], fmt), decode(whole[:, None], scales[0, 0].expand(len(whole), 1), fmt)[:, 0])


def test_nan_stays_and_nothing_and_zeros_are_fine() -> None:
    """NaN keeps being seen; an empty tensor and one of zeros have a scale."""
    for many in (1, 2000):  # few codes are computed, many looked up
        assert encode(torch.full((many,), math.nan), torch.tensor(0.5), Log()).isnan().all()
        assert decode(torch.full((many,), math.nan), torch.tensor(0.5), Log()).isnan().all()
    for x in (torch.zeros(0, 3), torch.zeros(2, 3), torch.full((2, 3), 1e-45)):
        qparams = of_tensor(x, NNIE)
        assert torch.isfinite(qparams.scale).all()
        assert not dequantize(quantize(x, qparams, NNIE), qparams, NNIE).any()


def test_it_compiles_whole_and_maps() -> None:
    """torch.compile without graph breaks; vmap over scales."""
    x, scales = torch.tensor(near_thresholds(-127)), torch.tensor([2.0**-8, 2.0 ** (-127 / 16), 2.0**3])

    def run(scale: torch.Tensor) -> torch.Tensor:
        qparams = Affine(scale, torch.zeros_like(scale))
        return dequantize(quantize(x, qparams, NNIE), qparams, NNIE)

    torch.compiler.reset()
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(scales[0]), run(scales[0]))
    assert torch.equal(torch.func.vmap(run)(scales), torch.stack([run(s) for s in scales]))
    rows = x[:600].reshape(3, 200)
    mapped = torch.func.vmap(lambda row: quantize(row, Affine(scales[0], torch.zeros(())), NNIE))(rows)
    assert torch.equal(mapped, quantize(rows, Affine(scales[0], torch.zeros(())), NNIE))
