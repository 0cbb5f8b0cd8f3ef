"""Exponentials of negative numbers and the logistic in float32, as XNNPACK computes them with and without AVX-512."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from qfunc.numerics.kernels.integer import fma, horner
from qfunc.numerics.sums.dynamic import flushed

_DEGREE_FIVE = tuple(
    float.fromhex(c) for c in ("0x1.0F9F9Cp-7", "0x1.573A1Ap-5", "0x1.555A80p-3", "0x1.FFFDC6p-2", "0x1.FFFFF6p-1")
)
_SHORT_LN2 = tuple(float.fromhex(c) for c in ("-0x1.62E400p-1", "-0x1.7F7D1Cp-20"))
_SHIFT, _CUTOFF = float.fromhex("0x1.8000FEp23"), float.fromhex("-0x1.5D589Ep6")
_STEPS = 32
_LN2 = tuple(float.fromhex(c) for c in ("-0x1.62E430p-1", "0x1.05C61p-29"))
_LOG2_E, _LINEAR = float.fromhex("0x1.715476p+0"), float.fromhex("0x1.0000F6p+0")


def sigmoid(input: Tensor) -> Tensor:
    """Return e / (e + 1) with e = exp(-|x|), or 1 minus that of a positive x.

    e = 2^m (b + t b (c + t / 2)) with b = 2^(i/32), of 32 powers, and t = -|x| - (m + i/32) ln(2); c is close to 1.

    Source: XNNPACK, f32-vsigmoid, avx512f_rr2_lut32_p2_perm2_scalef_div; measured on executorch 1.5.1.

    >>> sigmoid(torch.tensor([0.0, 30.0])).tolist()
    [0.5, 1.0]
    """
    x = input.float()
    z = -x.abs()
    shift = torch.tensor(1.5 * 2.0**18)  # rounds to a multiple of 1/32
    n = fma(z, torch.tensor(_LOG2_E), shift)
    powers = (2 ** (torch.arange(_STEPS, dtype=torch.float64) / _STEPS)).float().to(x.device)
    power = powers[(n.view(torch.int32) % _STEPS).long()]
    n = n - shift
    t = z
    for part in _LN2:
        t = fma(n, torch.tensor(part), t)
    polynomial = fma(t * power, fma(t, torch.tensor(0.5), torch.tensor(_LINEAR)), power)
    e = flushed((polynomial.double() * torch.exp2(n.floor().double().clamp(-400, 400))).float())
    e = torch.where(n == -torch.inf, 0.0, e)
    value = e / (e + 1)
    return torch.where(torch.signbit(x), value, 1 - value)


def exponentials(x: Tensor, ln2: tuple[float, ...] = _SHORT_LN2) -> Tensor:
    """Return e^x of x <= 0 as s + (t s) p(t), with s = 2^n and n + t / ln(2) = x log2(e); 0 below e^-87.3.

    `ln2` is -ln(2), in parts.

    Source: XNNPACK, f32-raddstoreexpminusmax, rr2_p5; measured on executorch 1.5.1.

    >>> exponentials(torch.tensor([0.0, -100.0])).tolist()
    [1.0, 0.0]
    """
    shift = torch.full_like(x, _SHIFT)
    n = fma(x, torch.full_like(x, _LOG2_E), shift)
    power = (n.view(torch.int32) << 23).view(torch.float32)
    n, t = n - shift, x
    for part in ln2:
        t = fma(n, torch.full_like(x, part), t)
    found = flushed(fma(flushed(t * power), horner(_DEGREE_FIVE, t), power))
    return torch.where(x < _CUTOFF, 0.0, found)


def sigmoid_of_degree_five(input: Tensor) -> Tensor:
    """Return e / (e + 1) with e = exp(-|x|) of a polynomial of degree 5, or 1 minus that of a positive x.

    Source: XNNPACK, f32-vsigmoid, avx2_rr1_p5_div; measured on executorch 1.5.1.

    >>> sigmoid_of_degree_five(torch.tensor([0.0, 30.0])).tolist()
    [0.5, 1.0]
    """
    x = input.float()
    e = exponentials(-x.abs(), _LN2[:1])
    value = e / (e + 1)
    return torch.where(torch.signbit(x), value, 1 - value)


def silu_of_degree_five(input: Tensor) -> Tensor:
    """Return x times that logistic.

    >>> silu_of_degree_five(torch.tensor([0.0, 30.0])).tolist()
    [0.0, 30.0]
    """
    return input.float() * flushed(sigmoid_of_degree_five(input))


def silu(input: Tensor) -> Tensor:
    """Return x times its logistic.

    >>> silu(torch.tensor([0.0, 30.0])).tolist()
    [0.0, 30.0]
    """
    return input.float() * flushed(sigmoid(input))


FUNCTIONS: dict[str, Callable[..., Tensor]] = {"sigmoid": sigmoid, "silu": silu}
"""The function of each kind of op."""

FUNCTIONS_ON_AVX2: dict[str, Callable[..., Tensor]] = {"sigmoid": sigmoid_of_degree_five, "silu": silu_of_degree_five}
"""The same without AVX-512."""
