"""Sine, cosine and sums of rows in float32, as ONNX Runtime computes them with Eigen on x86-64.

Its packets have four lanes, and products are rounded before they are added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from attrs import frozen
from torch import Tensor

from qfunc.numerics import libm
from qfunc.specs._values import readable

_LANES = 4
_ROUND = 1.5 * 2**23  # adding and subtracting it rounds to an integer
_HALF_PI = tuple(float.fromhex(c) for c in ("-0x1.92p+0", "-0x1.fb8p-12", "0x1.5dcp-23", "0x1.e973dcp-35"))
"""-pi / 2 in parts; the products of the first two with an integer of 14 bits are exact."""
_COS = (2.4372266125283204e-05, -0.0013886520173400640, 0.041666619479656219, -0.5, 1.0)
_SIN = (-0.00019592341140837029, 0.0083326873655616852, -0.16666662039829826)
_LARGE_COS, _LARGE_SIN = 18838.0, 25966.0
_TWO_OVER_PI = 0xA2F9836E4E441529FC2757D1F534DDC0DB6295993C439041FE5163ABDEBBC561B7246E3A
"""The first 288 bits after the point of 2 / pi."""
_WORDS = 288 + 26 - 32
_HALF_PI_62 = 3.4061215800865545e-19  # pi/2 2^-62


def sin(input: Tensor) -> Tensor:
    """Return the sine: of x less a multiple of pi/2, by a polynomial.

    The last entries, which fill no packet of four, are those of the C library.

    Source: Eigen, arch/Default/GenericPacketMathFunctions.h, psincos_float without fused multiply-adds; measured on
        onnxruntime 1.31.

    >>> sin(torch.tensor([0.0, 1.0, 2.0, 3.0])).tolist()
    [0.0, 0.8414709568023682, 0.9092974066734314, 0.14112000167369843]
    """
    return _with_rest(input.float(), _packet_sin, libm.sinf)


def cos(input: Tensor) -> Tensor:
    """Return the cosine, likewise.

    Source: as that of `sin`.

    >>> cos(torch.tensor([0.0, 1.0, 2.0, 3.0])).tolist()
    [1.0, 0.5403022766113281, -0.41614681482315063, -0.9899924993515015]
    """
    return _with_rest(input.float(), _packet_cos, libm.cosf)


def _with_rest(x: Tensor, packets: Callable[[Tensor], Tensor], scalar: Callable[[Tensor], Tensor]) -> Tensor:
    flat = x.flatten()
    whole = len(flat) // _LANES * _LANES
    return torch.cat((packets(flat[:whole]), scalar(flat[whole:]))).reshape(x.shape)


def _packet_sin(x: Tensor) -> Tensor:
    rest, quadrant = _reduced(x.abs(), _LARGE_SIN)
    value = torch.where(quadrant & 1 == 0, _sin_polynomial(rest), _cos_polynomial(rest))
    return torch.where(torch.signbit(x) ^ (quadrant & 2 != 0), -value, value)


def _packet_cos(x: Tensor) -> Tensor:
    rest, quadrant = _reduced(x.abs(), _LARGE_COS)
    value = torch.where(quadrant & 1 == 0, _cos_polynomial(rest), _sin_polynomial(rest))
    return torch.where((quadrant + 1) & 2 != 0, -value, value)


def _reduced(size: Tensor, large: float) -> tuple[Tensor, Tensor]:
    # |x| less the nearest multiple of pi/2, and that multiple.
    shifted = size * 0.636619746685028076171875 + _ROUND
    quadrant, multiple = shifted.view(torch.int32).long(), shifted - _ROUND
    rest = size
    for part in _HALF_PI:
        rest = multiple * part + rest
    if not bool((size >= large).any()):
        return rest, quadrant
    exact = [_reduced_exactly(v) if v >= large and v != torch.inf else None for v in size.tolist()]
    rests = [r if e is None else e[0] for r, e in zip(rest.tolist(), exact, strict=True)]
    quadrants = [q if e is None else e[1] for q, e in zip(quadrant.tolist(), exact, strict=True)]
    return torch.tensor(rests, dtype=torch.float32, device=size.device), torch.tensor(quadrants, device=size.device)


def _reduced_exactly(size: float) -> tuple[float, int]:
    # The significand of x times 96 bits of 2 / pi, of which 62 are kept after the point.
    numerator, denominator = size.as_integer_ratio()
    exponent = numerator.bit_length() - denominator.bit_length()
    significand = int(size * 2.0 ** (23 - exponent))
    offset = exponent + 127 - 118
    significand <<= offset & 7
    words = [_word((offset >> 3) + shift) for shift in (-1, 3, 7)]
    p = (significand * words[1] + (significand * words[2] >> 32) + (significand * words[0] << 32)) % 2**64
    quadrant = (p + 2**61) % 2**64 >> 62
    p = (p - (quadrant << 62) + 2**63) % 2**64 - 2**63
    return float(torch.tensor(float(p) * _HALF_PI_62, dtype=torch.float64).float()), quadrant


def _word(index: int) -> int:
    # 32 bits of 2 / pi, after 26 zeros; each index is 8 bits further.
    return _TWO_OVER_PI >> (_WORDS - 8 * index) & 0xFFFFFFFF


def _cos_polynomial(x: Tensor) -> Tensor:
    square, value = x * x, torch.full_like(x, _COS[0])
    for c in _COS[1:]:
        value = value * square + c
    return value


def _sin_polynomial(x: Tensor) -> Tensor:
    square, value = x * x, torch.full_like(x, _SIN[0])
    for c in _SIN[1:]:
        value = value * square + c
    return value * square * x + x


def rms_norm(input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    """Return x / sqrt(mean(x^2) + eps) * weight over the last axes, each step rounded; the mean is that of `row_means`.

    Source: the ops Mul, ReduceMean, Add, Sqrt, Div and Mul of ONNX Runtime.

    >>> rms_norm(torch.tensor([[3.0, 4.0]]), (2,), eps=0.0).tolist()
    [[0.8485281467437744, 1.1313709020614624]]
    """
    rows = input.float().reshape(*input.shape[: input.ndim - len(normalized_shape)], -1)
    epsilon = torch.finfo(torch.float32).eps if eps is None else eps
    root = (row_means(rows * rows)[..., None] + epsilon).double().sqrt().float()
    y = (rows / root).reshape(input.shape)
    return y if weight is None else y * weight.float()


def row_means(rows: Tensor) -> Tensor:
    """Return the means [...] of rows [..., n]: the sums of `row_sums`, divided by n.

    >>> row_means(torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0]])).tolist()
    [3.0]
    """
    return row_sums(rows) / rows.shape[-1]


def row_sums(rows: Tensor) -> Tensor:
    """Return the float32 sums [...] of rows [..., n], by packets of four.

    Packets begin where the address of an entry is a multiple of 16 bytes, if the first row begins there.  Even and odd packets
    are added to two sums.  The lanes are added by halves, then come the entries before the packets and those after them.

    Source: ONNX Runtime, reduction_ops.h, FastReduceKR, and Eigen, Core/Redux.h; measured on onnxruntime 1.31.

    >>> row_sums(torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0]])).tolist()
    [15.0]
    """
    n = rows.shape[-1]
    flat = rows.reshape(-1, n)
    starts = (-n * torch.arange(len(flat), device=rows.device)) % _LANES
    totals = torch.empty(len(flat), device=rows.device)
    for start in sorted(set(starts.tolist())):
        chosen = starts == start
        totals[chosen] = _in_packets(flat[chosen], min(start, n))
    return totals.reshape(rows.shape[:-1])


def last_axis_sum(input: Tensor, dim: int | tuple[int, ...], keepdim: bool = False) -> Tensor:
    """Return the sums along the last axis, which `dim` is: those of `row_sums` for float32, else of any order.

    >>> last_axis_sum(torch.tensor([[1.0, 2.0, 3.0]]), -1, True).tolist()
    [[6.0]]
    """
    if input.dtype != torch.float32 or not input.shape[-1]:
        return input.sum(dim, keepdim)
    sums = row_sums(input)
    return sums.unsqueeze(-1) if keepdim else sums


def _in_packets(rows: Tensor, start: int) -> Tensor:
    whole = (rows.shape[1] - start) // _LANES
    packets = rows[:, start : start + whole * _LANES].reshape(len(rows), whole, _LANES).unbind(1)
    if not packets:
        first, *others = rows.unbind(1)
        return sum(others, first)
    even, last = packets[0], len(packets) // 2 * 2
    if len(packets) > 1:
        odd = packets[1]
        for at in range(2, last, 2):
            even, odd = even + packets[at], odd + packets[at + 1]
        even = even + odd
        if last < len(packets):
            even = even + packets[-1]
    total = (even[:, 0] + even[:, 2]) + (even[:, 1] + even[:, 3])
    end = start + _LANES * len(packets)
    return sum((*rows[:, :start].unbind(1), *rows[:, end:].unbind(1)), total)


FUNCTIONS: dict[str, Callable[..., Tensor]] = {"sin": sin, "cos": cos, "rms_norm": rms_norm, "sum": last_axis_sum}
"""The function of each kind of op."""


@readable
@frozen
class Eigen:
    """RMS norms, sums along the last axis, sine and cosine in packets of four lanes.

    >>> Eigen().form("cos").__name__
    'cos'
    """

    def form(self, kind: str) -> Callable[..., Tensor] | None:
        """Return the function of a kind of op, or None."""
        return FUNCTIONS.get(kind)
