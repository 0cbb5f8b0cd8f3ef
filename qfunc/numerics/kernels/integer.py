"""Integer kernels: quantize, requantize, pool and apply softmax to codes.

Codes and accumulators are integers stored in floating point; `accumulators` computes the exact
accumulators.  Scales are Python floats or tensors, exactly representable in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import torch
import torch.nn.functional as F
from attrs import frozen
from torch import Tensor

from qfunc.numerics.kernels.fixed_point import fixed_multiplier, scale_fixed
from qfunc.numerics.rounding import round_by
from qfunc.specs._values import readable


def quantize_codes(
    x: Tensor,
    scale: float | Tensor,
    zero_point: int | Tensor,
    low: int,
    high: int,
    rounding: str = "half_even",
    division: bool = True,
) -> Tensor:
    """Return the codes of real values: clamp(R(x / s) + z, low, high), or R(x * (1/s)) without `division`; tensors broadcast.

    >>> quantize_codes(torch.tensor([0.3, -9.0]), 0.25, 3, 0, 255).tolist()
    [4.0, 0.0]
    """
    s = torch.as_tensor(scale, dtype=torch.float32)
    real = x.float() / s if division else x.float() * (1 / s)
    return (round_by(real, rounding, low - zero_point) + zero_point).clamp(low, high)


def quantize_int32(
    x: Tensor, scale: float | Tensor, zero_point: int | Tensor, low: int, high: int, rounding: str, division: bool,
    saturates: bool = False,
) -> Tensor:  # fmt: skip
    """Return the codes of `quantize_codes`, with R(x / s) and the sum in 32 bits: see `specs.QuantizeInt32`.

    >>> quantize_int32(torch.tensor([0.3, 2.0**40, -(2.0**40)]), 0.25, -3, -128, 127, "half_even", True).tolist()
    [-2.0, 127.0, 127.0]
    """
    s = torch.as_tensor(scale, dtype=torch.float32)
    real = x.float() / s if division else x.float() * (1 / s)
    return int32_codes(round_by(real, rounding, low - zero_point), zero_point, low, high, saturates)


def int32_codes(rounded: Tensor, zero_point: int | Tensor, low: int, high: int, saturates: bool = False) -> Tensor:
    """Return clamp(i + z, low, high) in float32; i is -2^31 where the integer or NaN is none of 32 bits, and the sum wraps.

    `saturates`: i is the integer of 32 bits next to it, and 0 for NaN.

    >>> int32_codes(torch.tensor([-5.0, 2.0**31, float("nan")]), 3, -128, 127).tolist()
    [-2.0, -128.0, -128.0]
    >>> int32_codes(torch.tensor([-5.0, 2.0**31, float("nan")]), -3, -128, 127, saturates=True).tolist()
    [-8.0, 127.0, -3.0]
    """
    wide = rounded.double()
    if saturates:
        integers = wide.nan_to_num(0.0).clamp(-(2.0**31), 2.0**31 - 1)
    else:
        integers = torch.where((wide >= -(2.0**31)) & (wide < 2.0**31), wide, -(2.0**31))
    return (torch.remainder(integers + zero_point + 2.0**31, 2.0**32) - 2.0**31).clamp(low, high).float()


def dequantize_codes(codes: Tensor, scale: float | Tensor, zero_point: int | Tensor) -> Tensor:
    """Return the real values of codes in float32: (q - z) * s; tensors broadcast.

    >>> dequantize_codes(torch.tensor([4.0]), 0.25, 3).tolist()
    [0.25]
    """
    return (codes - zero_point) * torch.as_tensor(scale, dtype=torch.float32)


def quantize_wide(
    x: Tensor, scale: float, zero_point: int, low: int, high: int, rounding: str, division: bool, place: str
) -> Tensor:
    """Return the codes of real values in float64: clamp(R(x / s) + z), or R(x / s + z) with place "before".

    >>> quantize_wide(torch.tensor([0.625]).double(), 0.25, 1, 0, 255, "half_even", True, "before").tolist()
    [4.0]
    """
    quotient, first = x.double() / scale if division else x.double() * (1 / scale), zero_point if place == "before" else 0
    return (round_by(quotient + first, rounding, low - zero_point + first) + (zero_point - first)).clamp(low, high).float()


def dequantize_wide(codes: Tensor, scale: float | Tensor, zero_point: int | Tensor) -> Tensor:
    """Return the real values of codes in float64, in which (q - z) * s is exact; tensors broadcast.

    >>> dequantize_wide(torch.tensor([4.0]), 0.25, 3).tolist()
    [0.25]
    """
    return (codes.double() - zero_point) * torch.as_tensor(scale, dtype=torch.float64)


def requantize(acc: Tensor, multiplier: Tensor, zero_point: int, low: int, high: int, rounding: str, place: str) -> Tensor:
    """Return the codes of an accumulator: clamp(R(acc * M) + z), or R(acc * M + z) with place "before", in the type of M.

    Source: ONNX Runtime MLAS, quantized output stage.

    >>> requantize(torch.tensor([5.0]), torch.tensor(0.5), 1, 0, 255, "half_even", "after").tolist()
    [3.0]
    """
    value = acc.to(multiplier.dtype) * multiplier
    if place == "before":
        return round_by(value + zero_point, rounding, low).clamp(low, high).float()
    return (round_by(value.clamp(low - zero_point, high - zero_point), rounding, low - zero_point) + zero_point).float()


def fma(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Return round_float32(a*b + c) of float32 operands, with one rounding for product and sum.

    The product is exact in float64.  The two-sum error rounds the float64 sum to odd, so that
    the conversion to float32 does not round twice.
    Source: Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", IEEE TC 2008.

    >>> a = torch.tensor(1 + 2.0**-12)
    >>> fma(a, a, torch.tensor(-1.0)).item() == 2.0**-11 + 2.0**-24
    True
    """
    product, c = a.double() * b.double(), c.double()
    total = product + c
    if not _double_rounding_is_possible(total):
        return total.float()
    addend = total - product
    error = (product - (total - addend)) + (c - addend)
    even = (total.contiguous().view(torch.int64) & 1) == 0
    odd = torch.nextafter(total, torch.copysign(torch.full_like(total, torch.inf), error))
    return torch.where((error != 0) & even, odd, total).float()


def _double_rounding_is_possible(total: Tensor) -> bool:
    # True if a float64 is midway between two float32, so that its rounding decides, or if it is subnormal in float32.
    bits = total.contiguous().view(torch.int64) & 0x1FFFFFFF
    return bool(((bits == 0x10000000) | ((total.abs() < 2.0**-125) & (total != 0))).any())


def average_pool_real(
    x: Tensor, kernel: tuple[int, ...], stride: tuple[int, ...], padding: tuple[int, ...], ceil_mode: bool, include_pad: bool
) -> Tensor:
    """Average-pool real values: sum in float32 in window order, row by row, then divide by the count.

    x is [N, C, ...]; the count is that of the window, or of its elements inside x without `include_pad`.
    Source: ONNX Runtime QLinearAveragePool (float inside).

    >>> average_pool_real(torch.arange(4.0).reshape(1, 1, 4), (2,), (2,), (0,), False, True).tolist()
    [[[0.5, 2.5]]]
    """
    rank, size = x.ndim - 2, x.shape[2:]
    out_sizes = [_output_size(size[d], kernel[d], stride[d], padding[d], ceil_mode) for d in range(rank)]
    end_pads = [max(0, (out_sizes[d] - 1) * stride[d] + kernel[d] - size[d] - padding[d]) for d in range(rank)]
    pads = [p for d in reversed(range(rank)) for p in (padding[d], end_pads[d])]
    x, inside = F.pad(x, pads) if any(pads) else x, F.pad(torch.ones(size, device=x.device), pads)
    total, count = None, torch.zeros((), device=x.device)
    for offset in product(*(range(k) for k in kernel)):
        window = [slice(o, o + (n - 1) * s + 1, s) for o, n, s in zip(offset, out_sizes, stride, strict=True)]
        term = x[(slice(None), slice(None), *window)]
        total = term.clone() if total is None else total.add_(term)
        count = count + inside[tuple(window)]
    assert total is not None
    return total / (float(math.prod(kernel)) if include_pad else count)


def _output_size(size: int, kernel: int, stride: int, pad: int, ceil_mode: bool) -> int:
    span = size + 2 * pad - kernel
    out = (-(-span // stride) if ceil_mode else span // stride) + 1
    return out - 1 if ceil_mode and (out - 1) * stride >= size + pad else out


def logistic(x: Tensor, fused: bool = True) -> Tensor:
    """Return 1 / (1 + exp(-x)) by the rational polynomial on [-18, 18] that MLAS evaluates, with FMA where it is `fused`.

    Source: ONNX Runtime mlas/lib/logistic.cpp (coefficients of Eigen).

    >>> logistic(torch.tensor([0.0])).item()
    0.5
    """
    alpha = (4.37031012579801e-11, 1.15627324459942e-07, 6.08574864600143e-05, 8.51377133304701e-03, 2.48287947061529e-01)
    beta = (6.10247389755681e-13, 5.76102136993427e-09, 6.29106785017040e-06, 1.70198817374094e-03, 1.16817656904453e-01,
            9.93151921023180e-01)  # fmt: skip
    x = x.float().clamp(-18.0, 18.0)
    return (x * horner(alpha, x * x, fused) / horner(beta, x * x, fused) + 0.5).clamp(min=0.0)


def gelu_erfc(x: Tensor, approximate: str = "none") -> Tensor:
    """Return 0.5 x erfc(-x / sqrt(2)), or 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), with erfc and tanh rounded once.

    Source: TFLite kernels/internal/reference/gelu.h.

    >>> gelu_erfc(torch.tensor([0.0, 10.0])).tolist()
    [0.0, 10.0]
    """
    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
        return 0.5 * x * (1 + torch.tanh(inner.double()).float())
    return 0.5 * x * torch.erfc((x * -math.sqrt(0.5)).double()).float()


@readable
@frozen
class GeluErfc:
    """GELU by erfc.

    >>> GeluErfc().form("gelu").__name__
    'gelu_erfc'
    """

    def form(self, kind: str) -> Callable[..., Tensor] | None:
        """Return the function of a kind of op, or None."""
        return gelu_erfc if kind == "gelu" else None


def horner(coefficients: tuple[float, ...], x: Tensor, fused: bool = True) -> Tensor:
    """Return c_0 x^n + c_1 x^(n-1) + ... + c_n in float32 by multiply-adds, starting from c_0; `fused` ones round once.

    Source: ONNX Runtime mlas/lib/logistic.cpp and erf.cpp.

    >>> horner((2.0, 0.0, 1.0), torch.tensor([3.0])).tolist()
    [19.0]
    """
    value = torch.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        addend = torch.tensor(c, dtype=torch.float32)
        value = fma(value, x, addend) if fused else value * x + addend
    return value


def softmax_codes(
    codes: Tensor, dim: int, scale_in: float, scale: float, zero_point: int, high: int, rounding: str = "half_even",
    saturates: bool = False,
) -> Tensor:  # fmt: skip
    """Return the uint8 codes of softmax, computed with a table of exponentials: see `specs.SoftmaxTable`.

    e_i = t[q_i - max(q) + 255],  t[i] = float32(exp((i - 255) * s_x + c)),  c = max(0, ln(FLT_MAX / n) - 5),
    y = R(e_i * floor(1/s_y) / sum(e)) + z, the sum in float32 and in order. R(inf) = 0, or 2^32 - 1 if it saturates.
    Source: ONNX Runtime contrib_ops/cpu/quantization/qlinear_softmax.cc.

    >>> softmax_codes(torch.tensor([[10.0, 10.0]]), -1, 0.1, 1 / 256, 0, 255).tolist()
    [[128.0, 128.0]]
    >>> [softmax_codes(torch.tensor([[10.0]]), -1, 0.1, 1 / 256, z, 255, saturates=True).tolist() for z in (0, 3)]
    [[[255.0]], [[2.0]]]
    """
    terms = codes.long().movedim(dim, 0).contiguous()  # each term of the sum is contiguous in memory
    s = float(torch.tensor(scale_in, dtype=torch.float32))
    log_limit = float(torch.log(torch.tensor(torch.finfo(torch.float32).max, dtype=torch.float32) / terms.shape[0]))
    shift = max(0.0, log_limit - 5.0) / s
    table = torch.exp((torch.arange(256, dtype=torch.float64) - 255 + shift) * s).float()
    e = table.to(codes.device)[terms - terms.amax(0) + 255]
    total = torch.zeros_like(e[0])
    for term in e:
        total += term
    y = round_by(e * torch.floor(1 / torch.tensor(scale, dtype=torch.float32)) / total, rounding, -zero_point)
    infinite = zero_point if not saturates else zero_point - 1 if zero_point else high
    return torch.where(torch.isinf(y), infinite, y + zero_point).clamp(max=high).movedim(0, dim)


def softmax_float(codes: Tensor, dim: int, scale_in: float, scale: float, zero_point: int, low: int, high: int) -> Tensor:
    """Return the codes of softmax, computed from float32 exponentials that are summed in order: see `specs.SoftmaxFloat`.

    >>> softmax_float(torch.tensor([[10.0, 10.0]]), -1, 0.1, 1 / 256, -128, -128, 127).tolist()
    [[0.0, 0.0]]
    """
    terms = codes.movedim(dim, 0).contiguous()
    e = torch.exp(-torch.tensor(scale_in) * (terms.amax(0) - terms))
    total = torch.zeros_like(e[0])
    for term in e:
        total += term
    probability = e * (1 / (total * torch.tensor(scale)))
    return ((probability.double() + 0.5).floor() + zero_point).clamp(low, high).float().movedim(0, dim)


def softmax_table16(codes: Tensor, dim: int, scale_in: float, scale: float, zero_point: int, low: int, high: int) -> Tensor:
    """Return the codes of softmax, computed with a table of integers of 16 bits: see `specs.SoftmaxTable16`.

    >>> softmax_table16(torch.tensor([[10.0, 10.0]]), -1, 0.1, 1 / 256, -128, -128, 127).tolist()
    [[0.0, 0.0]]
    """
    logits, s = codes.long().movedim(dim, -1), torch.tensor(scale_in, dtype=torch.float32)
    powers = torch.exp((s * torch.arange(-255.0, 1.0)).double()).float()
    table = ((powers * 65535.0).double() + 0.5).floor().clamp(max=65535).long()
    e = table.to(codes.device)[logits - logits.amax(-1, keepdim=True) + 255]
    total = e.sum(-1, keepdim=True).float() * torch.tensor(scale, dtype=torch.float32)
    y = scale_fixed(e, *fixed_multiplier(1 / total), ("srdhm", "half_away"))
    return (y + zero_point).clamp(low, high).float().movedim(-1, dim)


def global_average_codes(
    codes: Tensor,
    zero_in: int,
    scale_in: float,
    scale: float,
    zero_point: int,
    low: int,
    high: int,
    rounding: str,
    keepdim: bool,
) -> Tensor:
    """Return the codes of the mean over the last two axes: requantize(sum(q - z_x), M), M = float32(s_x / float32(s_y * n)).

    Source: ONNX Runtime QLinearGlobalAveragePool.

    >>> global_average_codes(torch.full((1, 1, 2, 2), 5.0), 1, 0.5, 1.0, 0, 0, 255, "half_even", True).item()
    2.0
    """
    total = (codes - zero_in).double().sum((-2, -1), keepdim=keepdim)
    count = torch.tensor(float(codes.shape[-2] * codes.shape[-1]))
    multiplier = torch.tensor(scale_in) / (torch.tensor(scale) * count)
    return requantize(total, multiplier, zero_point, low, high, rounding, "after")
