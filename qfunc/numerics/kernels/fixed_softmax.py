"""Softmax of codes in 32-bit fixed point, as in the reference kernels of TensorFlow Lite."""

from __future__ import annotations

import torch
from torch import Tensor

from qfunc.numerics.kernels.fixed_point import fixed_multiplier, shift_right

_ARGUMENT_BITS, _SUM_BITS = 5, 12  # integer bits of the exponent's argument, and of the sum of exponentials
_ONE = 2**31 - 1
_EXP_EIGHTH, _THIRD = 1895147668, 715827883  # exp(-1/8) and 1/3, times 2^31
_POWERS = (1672461947, 1302514674, 790015084, 290630308, 39332535, 720401, 242)  # exp(-2^k) times 2^31, k = -2 ... 4


def softmax_fixed(codes: Tensor, dim: int, scale_in: float, low: int, high: int) -> Tensor:
    """Return the codes of softmax with output scale 1/256 and zero point `low`: see `specs.SoftmaxFixed`.

    Args:
        codes: At most 8191 along `dim`, so that the sum does not overflow.

    >>> softmax_fixed(torch.tensor([[10.0, 10.0]]), -1, 0.1, -128, 127).tolist()
    [[0.0, 0.0]]
    """
    logits = codes.long().movedim(dim, -1)
    e = exponentials(scale_in)[logits - logits.amax(-1, keepdim=True) + 255]
    total = shift_right(e, torch.tensor(_SUM_BITS), "half_away").sum(-1, keepdim=True)
    reciprocal, over = _reciprocal(total)
    probability = shift_right(_high(reciprocal, e), over + 23, "half_away")
    return (probability + low).clamp(low, high).float().movedim(-1, dim)


def exponentials(scale: float) -> Tensor:
    """Return exp(d s) times 2^31 for d = -255 ... 0; 0 where d s does not fit into 5 integer bits.

    >>> round(exponentials(0.5)[-2].item() / 2**31, 4)
    0.6065
    """
    m, e = fixed_multiplier(torch.tensor(min(scale * 2.0 ** (31 - _ARGUMENT_BITS), 2.0**31 - 1), dtype=torch.float64))
    left, d = 31 - int(e), torch.arange(-255, 1)
    least = -((((1 << _ARGUMENT_BITS) - 1) << (31 - _ARGUMENT_BITS)) >> left)
    a = _high(d << left, m)
    quarter = 1 << (31 - _ARGUMENT_BITS - 2)
    rest = (a & (quarter - 1)) - quarter  # in [-1/4, 0): a minus a multiple of 1/4
    value, times = _exp_quarter(rest << _ARGUMENT_BITS), rest - a
    for k, power in enumerate(_POWERS):
        value = torch.where((times & (quarter << k)) != 0, _high(value, torch.tensor(power)), value)
    return torch.where(a == 0, _ONE, value).masked_fill(d < least, 0)


def _exp_quarter(a: Tensor) -> Tensor:
    # exp(a) for a in [-1/4, 0), by its Taylor series around -1/8 to the fourth power.
    x = a + 2**28
    x2 = _high(x, x)
    x3, x4 = _high(x2, x), _high(x2, x2)
    cubic = _high(shift_right(x4, torch.tensor(2), "half_away") + x3, torch.tensor(_THIRD))
    series = x + shift_right(cubic + x2, torch.tensor(1), "half_away")
    return _EXP_EIGHTH + _high(torch.tensor(_EXP_EIGHTH), series)


def _reciprocal(total: Tensor) -> tuple[Tensor, Tensor]:
    # (u, k) with u 2^-31 = 2^k 2^-19 / total, k the integer bits of the sum: three Newton steps for 1 / (1 + f).
    length = torch.frexp(total.double()).exponent.long()
    fraction = (total << (32 - length)) - 2**31
    half = (fraction + _ONE + 1) >> 1
    x = 1515870810 + _high(half, torch.tensor(-1010580540))
    for _ in range(3):
        x = x + _shift_left(_high(x, 2**29 - _high(half, x)), 2)
    return _shift_left(x, 1), length - (32 - _SUM_BITS)


def _shift_left(x: Tensor, times: int) -> Tensor:
    # x 2^times, saturated to 32 bits.
    return (x << times).clamp(-(2**31), _ONE)


def _high(a: Tensor, b: Tensor | int) -> Tensor:
    # The saturating rounding doubling high multiply of 32 bits; no pair of factors is (-2^31, -2^31).
    product = a * b
    return torch.div(product + torch.where(product >= 0, 2**30, 1 - 2**30), 2**31, rounding_mode="trunc")


__all__ = ["exponentials", "softmax_fixed"]
