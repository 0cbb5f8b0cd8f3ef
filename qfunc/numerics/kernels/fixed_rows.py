"""Softmax and norms of codes in 32-bit integers: of the reference kernels of TensorFlow Lite, and of TOSA."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from attrs import frozen
from torch import Tensor

from qfunc.numerics.kernels.fixed_point import fixed_multiplier, shift_right

_ARGUMENT_BITS, _SUM_BITS = 5, 12  # integer bits of the exponent's argument, and of the sum of exponentials
_ONE = 2**31 - 1
_EXP_EIGHTH, _THIRD = 1895147668, 715827883  # exp(-1/8) and 1/3, times 2^31
_POWERS = (1672461947, 1302514674, 790015084, 290630308, 39332535, 720401, 242)  # exp(-2^k) times 2^31, k = -2 ... 4
LONGEST = 2**15
"""The largest number of codes of one statistic."""
ROOTS = tuple(round(128 / math.sqrt((j + 0.5) / 256)) if j >= 64 else 0 for j in range(256))
"""1 / sqrt(u) with 7 fractional bits, by the first eight bits of u in [1/4, 1)."""
_LEAST_BITS, _MOST_BITS, _LARGEST = 10, 24, 2**31 - 1


def softmax_fixed(codes: Tensor, dim: int, scale_in: float, low: int, high: int) -> Tensor:
    """Return the codes of softmax with output scale 1/256 and zero point `low`: see `specs.SoftmaxFixed`.

    Args:
        codes: At most 8191 along `dim`, so that the sum does not overflow.

    >>> softmax_fixed(torch.tensor([[10.0, 10.0]]), -1, 0.1, -128, 127).tolist()
    [[0.0, 0.0]]
    """
    logits = codes.long().movedim(dim, -1)
    e = exponentials(scale_in).to(codes.device)[logits - logits.amax(-1, keepdim=True) + 255]
    return _shares(e, low, high).movedim(-1, dim)


def masked_softmax_fixed(codes: Tensor, drop: Tensor | None, scale_in: float, low: int, high: int) -> Tensor:
    """Return the codes of `ops.attention.masked_softmax`, like `softmax_fixed`: exponentials of dropped entries are 0.

    Args:
        drop: True for dropped entries, not for all of a row; None for those after the diagonal.

    >>> masked_softmax_fixed(torch.tensor([[10.0, 10.0, 90.0]]), torch.tensor([False, False, True]), 0.1, -128, 127).tolist()
    [[0.0, 0.0, -128.0]]
    """
    dropped = torch.ones_like(codes, dtype=torch.bool).triu(1) if drop is None else drop
    logits = codes.long()
    largest = torch.where(dropped, -(2**31), logits).amax(-1, keepdim=True)
    e = torch.where(dropped, 0, exponentials(scale_in).to(codes.device)[(logits - largest).clamp(-255, 0) + 255])
    return _shares(e, low, high)


def _shares(e: Tensor, low: int, high: int) -> Tensor:
    # The codes of exponentials, divided by their sum along the last axis.
    total = shift_right(e, torch.tensor(_SUM_BITS), "half_away").sum(-1, keepdim=True)
    reciprocal, over = _reciprocal(total)
    probability = shift_right(_high(reciprocal, e), over + 23, "half_away")
    return (probability + low).clamp(low, high).float()


def exponentials(scale: float) -> Tensor:
    """Return exp(d s) times 2^31 for d = -255 ... 0; 0 where d s does not fit into 5 integer bits.

    >>> round(exponentials(0.5)[-2].item() / 2**31, 4)
    0.6065
    """
    m, e = fixed_multiplier(torch.tensor(min(scale * 2.0 ** (31 - _ARGUMENT_BITS), 2.0**31 - 1), dtype=torch.float64))
    left, d = max(31 - int(e), 0), torch.arange(-255, 1)  # TFLite takes no scale of 2^-26 or less, whose powers are all 1
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


@frozen(eq=False)
class NormConstants:
    """The constants of a norm over `count` codes: see `specs.NormFixed` for the symbols.

    Attributes:
        f: The fractional bits of the squared length; fewer than 0 cut bits off.
        h: The fractional bits of the centred codes.
        epsilon: E, epsilon with the scale of the squared length.
        bits: B, the fractional bits of the result before its one rounding.
        shift: t, the shift of the product with a factor.
        factors: The weight times the scales, with bits + shift fractional bits, in the weight's shape.
        limit: The largest magnitude of a normalized value, or None if no bound is needed; beyond it the codes saturate.
        offsets: The bias in codes, with `bits` fractional bits, in the bias' shape.
    """

    f: int
    h: int
    epsilon: int
    bits: int
    shift: int
    limit: int | None
    factors: Tensor
    offsets: Tensor


def norm_constants(
    count: int, centred: bool, scale_in: float, scale_out: float, weight: Tensor, bias: Tensor, eps: float
) -> NormConstants:
    """Return the constants of a norm.

    Args:
        count: The number of codes of one statistic.
        centred: The mean is subtracted.
        weight: The factors in the shape in which they multiply the result; likewise the summands in `bias`.
    """
    eps_codes = float(torch.tensor(eps, dtype=torch.float32)) / float(scale_in) ** 2
    f = 31 - math.frexp(count * ((2**14 if centred else 2**16) + eps_codes))[1]
    h = max(0, min(22, 14 + (f >> 1)))
    factor = math.sqrt(count * 2.0**f) * 2.0 ** (-14.5 - h) / float(scale_out)
    gains, shifts = weight.double(), bias.double() / float(scale_out)
    largest = math.sqrt(count) * float(gains.abs().max()) / float(scale_out) + float(shifts.abs().max())
    fitting = 30 - math.frexp(largest)[1]
    bits = max(_LEAST_BITS, min(_MOST_BITS, fitting))
    scaled = gains * (factor * 2.0**bits)
    shift = min(62, 31 - math.frexp(float(scaled.abs().max()))[1])
    factors = torch.round(scaled * 2.0**shift).clamp(-_LARGEST, _LARGEST).long()
    epsilon, greatest = round(eps_codes * count * 2.0**f), float(gains.abs().max()) * factor
    limit = min(_LARGEST, int(2.0 ** (30 - bits) / greatest)) if fitting < bits and greatest else None
    offsets = torch.round(shifts * 2.0**bits).clamp(-(2**30), 2**30 - 1).long()
    return NormConstants(f, h, epsilon, bits, shift, limit, factors, offsets)


def norm_fixed(
    codes: Tensor, zero_in: int, shape: Sequence[int], centred: bool, scale_in: float, scale_out: float, weight: Tensor,
    bias: Tensor, eps: float, zero: int, low: int, high: int,
) -> Tensor:  # fmt: skip
    """Return the codes of a norm: see `specs.NormFixed`.

    Args:
        shape: The codes as rows: one statistic for each entry of the last axis' rows; -1 is computed.
        weight: One factor an entry, in a shape that broadcasts with `codes`; likewise `bias`.

    >>> one, none = torch.ones(1), torch.zeros(1)
    >>> norm_fixed(torch.tensor([[2.0, 4.0]]), 0, (-1, 2), True, 1.0, 0.5, one, none, 1e-5, 0, -128, 127).tolist()
    [[-2.0, 2.0]]
    """
    q = (codes.long() - int(zero_in)).reshape(tuple(shape))
    k = norm_constants(q.shape[-1], centred, scale_in, scale_out, weight, bias, eps)
    rest = torch.zeros_like(q[..., :1])
    if centred:
        m, e = fixed_multiplier(torch.tensor(1 / q.shape[-1], dtype=torch.float64))
        q = q - shift_right(q.sum(-1, keepdim=True) * m, e, "half_up")
        rest = q.sum(-1, keepdim=True)
    squares, surplus = (q * q).sum(-1, keepdim=True), _scaled(rest * rest, 2.0**k.f / q.shape[-1])
    squares = squares << k.f if k.f >= 0 else shift_right(squares, torch.tensor(min(-k.f, 31)), "half_up")
    length = (squares - surplus + k.epsilon).clamp(min=1)
    up = (31 - torch.frexp(length.double()).exponent.long()) & ~1
    unit = length << up
    y = torch.tensor(ROOTS, device=unit.device)[unit >> 23]
    y = shift_right(y * (3 * 2**29 - shift_right(unit * y * y, torch.tensor(16), "half_up")), torch.tensor(7), "half_up")
    centre = ((q << k.h) - _scaled(rest, 2.0**k.h / q.shape[-1])) << (up >> 1)
    normal = shift_right(centre * y, torch.tensor(31), "half_up").reshape(codes.shape)
    normal = normal if k.limit is None else normal.clamp(-k.limit, k.limit)
    value = shift_right(normal * k.factors, torch.tensor(k.shift), "half_up") + k.offsets
    return (shift_right(value, torch.tensor(k.bits), "half_up") + zero).clamp(low, high).float()


def _scaled(x: Tensor, factor: float) -> Tensor:
    m, e = fixed_multiplier(torch.tensor(factor, dtype=torch.float64))
    return shift_right(x * m, e, "half_up")
