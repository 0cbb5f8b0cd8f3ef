"""Accumulators that are too narrow for a sum: the range of sums, and what a sum beyond the accumulator becomes.

Sums are integers stored in floating point; see `specs.Accumulator`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from qfunc.numerics.kernels.accumulators import EXACT_FLOAT32

EXACT_FLOAT64 = 2**53


def range_of_sums(weight: Tensor, low: float, high: float, bias: Tensor | None, partial: bool) -> tuple[Tensor, Tensor]:
    """Return the least and the largest value of sum w * x + b for each output, over all x in [low, high], in float64.

    Every x is attained, so that no smaller range holds.  0 is in [low, high], so that these are also bounds of the sum of
    some of the products.

    Args:
        weight: Codes minus their zero point, outputs along axis 0.
        low, high: The least and the largest code of the input, minus its zero point.
        bias: One code for each output, or None.
        partial: Include the sum of the products without the bias.

    >>> range_of_sums(torch.tensor([[2.0, -1.0]]), -1, 3, torch.tensor([10.0]), False)
    (tensor([5.], dtype=torch.float64), tensor([17.], dtype=torch.float64))
    """
    w = weight.double().flatten(1)
    least, most = torch.minimum(w * low, w * high).sum(1), torch.maximum(w * low, w * high).sum(1)
    if bias is None:
        return least, most
    b = bias.double().flatten()
    return (least + b.clamp(max=0), most + b.clamp(min=0)) if partial else (least + b, most + b)


def fits(low: Tensor, high: Tensor, bits: int) -> Tensor:
    """Return, for each output, whether its sums need at most `bits` bits: -2^(bits-1) <= low and high < 2^(bits-1)."""
    return (low >= -(2.0 ** (bits - 1))) & (high < 2.0 ** (bits - 1))


def wrap(acc: Tensor, bits: int) -> Tensor:
    """Return the sum modulo 2^bits, in [-2^(bits-1), 2^(bits-1) - 1].

    >>> wrap(torch.tensor([127.0, 128.0, -129.0]), 8).tolist()
    [127.0, -128.0, 127.0]
    """
    half = 2.0 ** (bits - 1)
    return torch.remainder(acc.double() + half, 2 * half) - half


def saturate(acc: Tensor, bits: int) -> Tensor:
    """Return the sum clamped to [-2^(bits-1), 2^(bits-1) - 1].

    >>> saturate(torch.tensor([127.0, 128.0, -129.0]), 8).tolist()
    [127.0, 127.0, -128.0]
    """
    return acc.double().clamp(-(2.0 ** (bits - 1)), 2.0 ** (bits - 1) - 1)


def wrap_products(acc: Tensor, a: Tensor, largest: float, bits: int) -> Tensor:
    """Return `wrap` of a product of tensors a @ b; `largest` bounds a product of two codes, so that short sums fit.

    >>> wrap_products(torch.tensor([[200.0]]), torch.ones(1, 2), 100.0, 8).tolist()
    [[-56.0]]
    """
    return acc if a.shape[-1] * largest < 2.0 ** (bits - 1) else wrap(acc, bits)


def saturate_products(acc: Tensor, a: Tensor, largest: float, bits: int) -> Tensor:
    """Return `saturate` of a product of tensors a @ b; `largest` bounds a product of two codes, so that short sums fit.

    >>> saturate_products(torch.tensor([[200.0]]), torch.ones(1, 2), 100.0, 8).tolist()
    [[127.0]]
    """
    return acc if a.shape[-1] * largest < 2.0 ** (bits - 1) else saturate(acc, bits)


def saturate_conv(
    acc: Tensor, x: Tensor, zero_point: int, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any,
    channels: Tensor, bits: int, order: Sequence[str], bias_last: bool, products: int,
) -> Tensor:  # fmt: skip
    """Return an accumulator of a convolution whose `channels` are summed again, with each addition clamped.

    Args:
        acc: The exact accumulator; x, weight, stride, padding and dilation: those of its convolution.
        bias: int32 codes of all outputs, or None.
        channels: Indices of the outputs that may overflow.
        order, bias_last, products: See `specs.SaturatesEachStep`.

    >>> ones, w = torch.ones(1, 1, 3), torch.tensor([[[100.0, 100.0, -100.0]]])
    >>> saturate_conv(torch.full((1, 1, 1), 100.0), ones, 0, w, None, 1, 0, 1, torch.tensor([0]), 8, ("channel", "position"),
    ...               False, 1).item()
    27.0
    """
    rank = weight.ndim - 2
    if acc.ndim == rank + 1:
        arguments = (zero_point, weight, bias, stride, padding, dilation, channels, bits, order, bias_last, products)
        return saturate_conv(acc[None], x[None], *arguments)[0]
    x = _offsets(x, zero_point, weight[channels], bits, products)
    x = padded(x, padding, weight.shape[2:], dilation)
    terms = conv_terms(x, weight, channels, acc.shape[2:], stride, dilation, order)
    start = None if bias is None else bias.flatten()[channels].double().reshape(-1, *[1] * rank)
    zero = torch.zeros((x.shape[0], len(channels), *acc.shape[2:]), dtype=x.dtype, device=x.device)
    return acc.double().index_copy(1, channels, _saturating_sum(terms, zero, start, bits, bias_last, products).double())


def conv_terms(
    x: Tensor, weight: Tensor, channels: Tensor, size: Sequence[int], stride: Any, dilation: Any, order: Sequence[str]
) -> Iterator[Tensor]:
    """Yield the products of a convolution of a padded x, of all outputs of these channels, in an order of its two axes."""
    rank = weight.ndim - 2
    chosen, steps, gaps = weight[channels].to(x.dtype), _each(stride, rank), _each(dilation, rank)
    first = channels // (weight.shape[0] // (x.shape[1] // weight.shape[1])) * weight.shape[1]
    positions = list(product(*(range(k) for k in weight.shape[2:])))
    for channel, position in _ordered(weight.shape[1], positions, order):
        window = [
            slice(p * d, p * d + (n - 1) * s + 1, s) for p, d, n, s in zip(position, gaps, size, steps, strict=True)
        ]  # fmt: skip
        at: tuple[Any, ...] = (slice(None), channel, *position)
        yield x[:, first + channel][(slice(None), slice(None), *window)] * chosen[at].reshape(-1, *[1] * rank)


def saturate_conv_transpose(
    acc: Tensor, x: Tensor, zero_point: int, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any,
    output_padding: Any, groups: int, dilation: Any, channels: Tensor, bits: int, order: Sequence[str], bias_last: bool,
    products: int,
) -> Tensor:  # fmt: skip
    """Return `saturate_conv` of a transposed convolution; weight: codes [C, O/groups, ...], whose positions give the order.

    >>> ones, w = torch.ones(1, 1, 2), torch.tensor([[[100.0, 100.0]]])
    >>> acc = torch.tensor([[[100.0, 200.0, 100.0]]])
    >>> saturate_conv_transpose(acc, ones, 0, w, None, 1, 0, 0, 1, 1, torch.tensor([0]), 8, ("channel", "position"), False,
    ...                         1).tolist()
    [[[100.0, 127.0, 100.0]]]
    """
    # It is a convolution of x with stride - 1 zeros between its entries; position p of its kernel is the mirrored one.
    rank = weight.ndim - 2
    if acc.ndim == rank + 1:
        rest = (stride, padding, output_padding, groups, dilation, channels, bits, order, bias_last, products)
        return saturate_conv_transpose(acc[None], x[None], zero_point, weight, bias, *rest)[0]
    steps, pads, gaps = _each(stride, rank), _each(padding, rank), _each(dilation, rank)
    x = x.double() - zero_point
    spread = x.new_zeros(*x.shape[:2], *((n - 1) * s + 1 for n, s in zip(x.shape[2:], steps, strict=True)))
    spread[(slice(None), slice(None), *(slice(None, None, s) for s in steps))] = x
    spans = [d * (k - 1) for d, k in zip(gaps, weight.shape[2:], strict=True)]
    extra = [n - (m + span - 2 * p) for n, m, span, p in zip(acc.shape[2:], spread.shape[2:], spans, pads, strict=True)]
    ends = [(span - p, span - p + e) for span, p, e in zip(spans, pads, extra, strict=True)]
    spread = F.pad(spread, [e for pair in reversed(ends) for e in pair])
    mirrored = outputs_first(weight, groups).flip(*range(2, weight.ndim))
    upwards = ("mirrored" if axis == "position" else axis for axis in order)
    return saturate_conv(
        acc, spread, 0, mirrored, bias, 1, 0, gaps, channels, bits, tuple(upwards), bias_last, products
    )  # fmt: skip


def outputs_first(weight: Tensor, groups: int) -> Tensor:
    """Return the weight of a transposed convolution, [C, O/groups, ...], as that of a convolution: [O, C/groups, ...].

    >>> outputs_first(torch.zeros(6, 4, 3), 2).shape
    torch.Size([8, 3, 3])
    """
    inside = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:]).transpose(1, 2)
    return inside.reshape(-1, weight.shape[0] // groups, *weight.shape[2:])


def saturate_linear(
    acc: Tensor, x: Tensor, zero_point: int, weight: Tensor, bias: Tensor | None, channels: Tensor, bits: int,
    order: Sequence[str], bias_last: bool, products: int,
) -> Tensor:  # fmt: skip
    """Return an accumulator of a linear layer whose `channels` are summed again, with each addition clamped.

    >>> w = torch.tensor([[100.0, 100.0, -100.0]])
    >>> saturate_linear(torch.tensor([[100.0]]), torch.ones(1, 3), 0, w, None, torch.tensor([0]), 8, (), False, 1).item()
    27.0
    """
    x = _offsets(x, zero_point, weight[channels], bits, products)
    chosen = weight[channels].to(x.dtype)
    terms = (x[..., i, None] * chosen[:, i] for i in range(weight.shape[1]))
    start = None if bias is None else bias.flatten()[channels].double()
    zero = torch.zeros((*acc.shape[:-1], len(channels)), dtype=x.dtype, device=x.device)
    return acc.double().index_copy(-1, channels, _saturating_sum(terms, zero, start, bits, bias_last, products).double())


def saturate_matmul(
    acc: Tensor, a: Tensor, zero_a: int, b: Tensor, zero_b: int, largest: float, bits: int, products: int
) -> Tensor:
    """Return an accumulator of a product of two code tensors, with each addition clamped, in the order of the inner axis.

    `largest` bounds |(q_a - z_a) * (q_b - z_b)|: short sums cannot overflow.

    >>> a, b = torch.tensor([[1.0, 1.0, 1.0]]), torch.tensor([[100.0], [100.0], [-100.0]])
    >>> saturate_matmul(a @ b, a, 0, b, 0, 100.0, 8, 1).item()
    27.0
    """
    if a.shape[-1] * largest < 2.0 ** (bits - 1):
        return acc
    left, right = a.double() - zero_a, b.double() - zero_b
    left, right = left[None] if a.ndim == 1 else left, right[:, None] if b.ndim == 1 else right
    terms = (left[..., :, i, None] * right[..., i, None, :] for i in range(a.shape[-1]))
    shape: Any = torch.broadcast_shapes(left.shape[:-2], right.shape[:-2])  # type: ignore[no-untyped-call]
    zero = left.new_zeros(*shape, left.shape[-2], right.shape[-1])
    return _saturating_sum(terms, zero, None, bits, False, products).reshape(acc.shape)


def _saturating_sum(
    terms: Iterable[Tensor], zero: Tensor, bias: Tensor | None, bits: int, bias_last: bool, products: int
) -> Tensor:
    low, high = -(2.0 ** (bits - 1)), 2.0 ** (bits - 1) - 1
    total = zero if bias is None or bias_last else zero + bias.clamp(low, high).to(zero.dtype)
    group, count = torch.zeros_like(zero), 0
    for term in terms:
        group, count = group + term, count + 1
        if count == products:
            total, group, count = (total + group).clamp_(low, high), torch.zeros_like(zero), 0
    total = (total + group).clamp_(low, high)
    return (total.double() + bias).clamp(low, high) if bias is not None and bias_last else total


def _ordered(channels: int, positions: list[tuple[int, ...]], order: Sequence[str]) -> Iterator[tuple[int, tuple[int, ...]]]:
    at = positions[::-1] if "mirrored" in order else positions
    if order[0] == "channel":
        return ((c, p) for c in range(channels) for p in at)
    return ((c, p) for p in at for c in range(channels))


def _offsets(x: Tensor, zero_point: int, weight: Tensor, bits: int, products: int) -> Tensor:
    # x - z in float32 if the clamped sum and the terms added to it stay below 2^24, else in float64.
    x = x - zero_point
    largest = float(x.abs().max()) * float(weight.abs().max()) if x.numel() and weight.numel() else 0.0
    return x.float() if 2.0 ** (bits - 1) + products * largest < EXACT_FLOAT32 else x.double()


def padded(x: Tensor, padding: Any, kernel: Sequence[int], dilation: Any) -> Tensor:
    """Return x with the zeros of a convolution around it."""
    gaps = _each(dilation, len(kernel))
    spans = [d * (k - 1) for d, k in zip(gaps, kernel, strict=True)]
    if isinstance(padding, str):
        pairs = [(span // 2, span - span // 2) if padding == "same" else (0, 0) for span in spans]
    else:
        pairs = [(p, p) for p in _each(padding, len(spans))]
    return F.pad(x, [e for pair in reversed(pairs) for e in pair])


def _each(value: Any, rank: int) -> list[int]:
    entries = [value] if isinstance(value, int) else list(value)
    return entries * rank if len(entries) == 1 else entries
