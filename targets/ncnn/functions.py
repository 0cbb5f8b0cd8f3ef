"""ncnn's float32 ops, as its kernels for x86-64 compute them with FMA and without the packed layout."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from qfunc.numerics.kernels.integer import average_pool_real, fma
from qfunc.specs._values import readable


def mean_of_image(input: Tensor, keepdim: bool, dim: Any = (-2, -1)) -> Tensor:
    """Return the mean over height and width: four interleaved sums, then the remaining entries, times float32(1/n).

    Entry i belongs to sum i mod 4; the sums are added as (s0 + s2) + (s1 + s3).
    Source: ncnn, src/layer/x86/pooling_x86.cpp, global pooling; the order is measured on 1.0.20261020.

    >>> mean_of_image(torch.arange(6.0).reshape(1, 1, 2, 3), False).tolist()
    [[2.5]]
    """
    flat = input.flatten(-2).float()
    count = flat.shape[-1]
    sums = torch.zeros(*flat.shape[:-1], 4, dtype=torch.float32, device=flat.device)
    for at in range(0, count // 4 * 4, 4):
        sums = sums + flat[..., at : at + 4]
    total = (sums[..., 0] + sums[..., 2]) + (sums[..., 1] + sums[..., 3])
    for at in range(count // 4 * 4, count):
        total = total + flat[..., at]
    mean = total * (1 / torch.tensor(float(count)))
    return mean[..., None, None] if keepdim else mean


def average(
    input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: Any = None,
) -> Tensor:  # fmt: skip
    """Average-pool in window order: divide by the number of entries inside, or multiply by float32(1/n) if padding counts.

    Source: ncnn, src/layer/pooling.cpp; measured on 1.0.20261020.

    >>> average(torch.arange(4.0).reshape(1, 1, 1, 4), (1, 2)).tolist()
    [[[[0.5, 2.5]]]]
    """
    rank = input.ndim - 2
    kernel, strides, pads = (_per_axis(v, rank) for v in (kernel_size, stride or kernel_size, padding))
    counts_padding = count_include_pad and any(pads)
    if not counts_padding:
        return average_pool_real(input.float(), kernel, strides, pads, ceil_mode, False)
    if ceil_mode and not _fills(input.shape[2:], kernel, strides, pads):
        # What ceil_mode adds does not count: the padded image is averaged, over the entries inside of it.
        padded = torch.nn.functional.pad(input.float(), [p for q in reversed(pads) for p in (q, q)])
        means = average_pool_real(padded, kernel, strides, (0,) * rank, True, False)
        for axis, count in enumerate(_sizes_with_ceil_mode(input.shape[2:], kernel, strides, pads), input.ndim - rank):
            means = means.narrow(axis, 0, count)
        return means
    return _window_sum(input.float(), kernel, strides, pads) * (1 / torch.tensor(float(math.prod(kernel))))


def _sizes_with_ceil_mode(sizes: Any, kernel: tuple[int, ...], strides: tuple[int, ...], pads: tuple[int, ...]) -> list[int]:
    # The last window begins inside of the image or of the padding before it.
    found = []
    for n, k, s, p in zip(sizes, kernel, strides, pads, strict=True):
        count = -(-(n + 2 * p - k) // s) + 1
        found.append(count - ((count - 1) * s >= n + p))
    return found


def _fills(sizes: Any, kernel: tuple[int, ...], strides: tuple[int, ...], pads: tuple[int, ...]) -> bool:
    # True if ceil_mode adds no window.
    floors = [(n + 2 * p - k) // s + 1 for n, k, s, p in zip(sizes, kernel, strides, pads, strict=True)]
    return floors == _sizes_with_ceil_mode(sizes, kernel, strides, pads)


def _window_sum(x: Tensor, kernel: tuple[int, ...], stride: tuple[int, ...], padding: tuple[int, ...]) -> Tensor:
    # In window order, row by row.
    x = torch.nn.functional.pad(x, [p for q in reversed(padding) for p in (q, q)])
    if len(kernel) == 1:
        return _window_sum(x.unsqueeze(-2), (1, *kernel), (1, *stride), (0, 0)).squeeze(-2)
    height, width = ((n - k) // s + 1 for n, k, s in zip(x.shape[-2:], kernel, stride, strict=True))
    total = torch.zeros(*x.shape[:-2], height, width, dtype=torch.float32, device=x.device)
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            rows, columns = slice(i, i + (height - 1) * stride[0] + 1, stride[0]), slice(j, None, stride[1])
            total = total + x[..., rows, columns][..., :width]
    return total


def average_to(input: Tensor, output_size: Any) -> Tensor:
    """Average-pool to a size: `mean_of_image` for size 1, else `average` over windows that do not overlap.

    >>> average_to(torch.arange(4.0).reshape(1, 1, 2, 2), 1).tolist()
    [[[[1.5]]]]
    """
    spatial = input.shape[2:]
    sizes = _per_axis(output_size, len(spatial))
    out_size = [n if s is None else s for s, n in zip(sizes, spatial, strict=True)]
    if all(s == 1 for s in out_size):
        mean = mean_of_image(input if len(out_size) == 2 else input.unsqueeze(-2), True)
        return mean if len(out_size) == 2 else mean.squeeze(-2)
    if any(n % s for n, s in zip(spatial, out_size, strict=True)):  # windows overlap; no file has such a pool
        pool: Any = torch.nn.functional.adaptive_avg_pool2d if len(spatial) == 2 else torch.nn.functional.adaptive_avg_pool1d
        means: Tensor = pool(input.float(), out_size)
        return means
    kernel = tuple(n // s for n, s in zip(spatial, out_size, strict=True))
    return average(input, kernel)


def hard_swish(input: Tensor) -> Tensor:
    """Return x * clamp(fma(x, 1/6, 1/2), 0, 1).

    >>> hard_swish(torch.tensor([-4.0, 3.0])).tolist()
    [-0.0, 3.0]
    """
    return input * hard_sigmoid(input)


def hard_sigmoid(input: Tensor) -> Tensor:
    """Return clamp(fma(x, 1/6, 1/2), 0, 1).

    >>> hard_sigmoid(torch.tensor([-4.0, 0.0])).tolist()
    [0.0, 0.5]
    """
    return fma(input.float(), torch.tensor(1 / 6), torch.tensor(0.5)).clamp(0.0, 1.0)


def exp(x: Tensor) -> Tensor:
    """Return exp(x) by the polynomial of Cephes, evaluated with FMA; x is clamped to +-88.3762626647949.

    Source: ncnn, src/layer/x86/avx_mathfun.h, exp256_ps.

    >>> exp(torch.tensor([0.0])).tolist()
    [1.0]
    """
    x = x.float().clamp(-88.3762626647949, 88.3762626647949)
    power = torch.floor(fma(x, torch.tensor(1.44269504088896341), torch.tensor(0.5)))
    x = fma(-power, torch.tensor(0.693359375), x)
    x = fma(-power, torch.tensor(-2.12194440e-4), x)
    value = torch.full_like(x, 1.9875691500e-4)
    for c in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        value = fma(value, x, torch.tensor(c))
    return torch.ldexp(fma(value, x * x, x) + 1, power.int())


def elu(input: Tensor, alpha: float = 1.0) -> Tensor:
    """Return x, or alpha * (exp(x) - 1) where x is not positive.

    >>> elu(torch.tensor([2.0])).tolist()
    [2.0]
    """
    return torch.where(input > 0, input, (exp(input) - 1) * alpha)


def _per_axis(value: Any, rank: int) -> tuple[Any, ...]:
    if isinstance(value, list | tuple):
        return tuple(value) if len(value) == rank else (value[0],) * rank
    return (value,) * rank


FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "global_avg_pool": mean_of_image, "avg_pool": average, "adaptive_avg_pool": average_to, "hardswish": hard_swish,
    "hardsigmoid": hard_sigmoid, "elu": elu, "exp": exp,
}  # fmt: skip
"""The function of each kind of op."""


@readable
@frozen
class Ncnn:
    """Pools, exponentials and hard curves.

    >>> Ncnn().form("elu").__name__
    'elu'
    """

    def form(self, kind: str) -> Callable[..., Tensor] | None:
        """Return the function of a kind of op, or None."""
        return FUNCTIONS.get(kind)
