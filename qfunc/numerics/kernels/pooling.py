"""Average pooling of codes, with the arithmetic of each kind of kernel."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import torch
import torch.nn.functional as F
from attrs import frozen
from torch import Tensor

from qfunc.numerics.kernels import activations as fixed_curves
from qfunc.numerics.kernels import integer
from qfunc.numerics.kernels.integer import average_pool_real
from qfunc.numerics.rounding import round_by
from qfunc.specs._values import readable


def mean_scaled(
    codes: Tensor, zero_in: int, scale_in: float, dims: list[int], keep: bool, scale: float, zero_point: int, low: int,
    high: int, rounding: str, place: str, fused: bool = False,
) -> Tensor:  # fmt: skip
    """Return the codes of a mean: requantize(sum(q - z_x), M) with M = float32(s_x / float32(s_y * n)).

    With place "before", R(float32(sum(q) * M) + c), where c = float32(z - float32(n * z_x * M)) has both zero points and
    M = float32(float32(s_x / s_y) * float32(1 / n)).  For outputs much finer than inputs, c has no room for z.  `fused`: each
    sum is one with its product.
    """
    total, given, made = codes.double().sum(dims, keepdim=keep), torch.tensor(scale_in), torch.tensor(scale)
    count = torch.tensor(float(codes.numel() // max(total.numel(), 1)))
    if place == "after":
        centred, multiplier = total - zero_in * count, given / (made * count)
        return integer.requantize(centred, multiplier, zero_point, low, high, rounding, place)
    multiplier = given / made * (1 / count)
    offset = torch.tensor(float(zero_point))
    if fused:
        real = integer.fma(total.float(), multiplier, integer.fma(-zero_in * count, multiplier, offset))
    else:
        real = total.float() * multiplier + (offset - zero_in * count * multiplier)
    return round_by(real, rounding, low).clamp(low, high)


def adaptive_runs(length: int, count: int) -> list[tuple[int, int, int, int]]:
    """Return the windows of an adaptive pool along an axis, as runs: (first entry, window, stride, number of windows).

    Window i has the entries from floor(i n / m) up to ceil((i + 1) n / m), for n entries and m windows.

    >>> adaptive_runs(8, 4), adaptive_runs(7, 3)
    ([(0, 2, 2, 4)], [(0, 3, 2, 3)])
    """
    runs: list[tuple[int, int, int, int]] = []
    for i in range(count):
        first, window = i * length // count, -(-(i + 1) * length // count) - i * length // count
        start, same, stride, n = runs[-1] if runs else (0, 0, 0, 0)
        step = stride if n > 1 else first - start
        if window == same and step > 0 and first == start + n * step:
            runs[-1] = (start, same, step, n + 1)
        else:
            runs.append((first, window, window, 1))
    return runs


Pool = Callable[[Tensor, list[int], list[int]], Tensor]
Average = Callable[[Tensor, tuple[int, ...], tuple[int, ...], tuple[int, ...], bool, bool], Tensor]


def adaptive(codes: Tensor, size: list[int | None], pool: Pool) -> Tensor:
    """Return an adaptive pool to a size; None keeps an axis.  Runs of windows are pooled by pool(part, kernel, stride).

    >>> x = torch.arange(7.0).reshape(1, 1, 7)
    >>> adaptive(x, [3], lambda part, kernel, stride: F.avg_pool1d(part, kernel, stride)).tolist()
    [[[1.0, 3.0, 5.0]]]
    """
    rank = len(size)

    def joined(part: Tensor, kernel: list[int], stride: list[int]) -> Tensor:
        axis = len(kernel)
        if axis == rank:
            return pool(part, kernel, stride)
        length, wanted = codes.shape[axis - rank], size[axis]
        runs = adaptive_runs(length, length if wanted is None else wanted)
        parts = [
            joined(part.narrow(axis - rank, first, (n - 1) * step + window), [*kernel, window], [*stride, step])
            for first, window, step, n in runs
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, axis - rank)

    return joined(codes, [], [])


def average_to(codes: Tensor, size: list[int | None], fill: int, rounding: str, low: int, high: int, centred: bool) -> Tensor:
    """Average codes over the windows of an adaptive pool to a size; None keeps an axis.

    Raises:
        EmulationError: the codes are no batch of images.
    """
    return adaptive(codes, size, lambda part, kernel, stride: fixed_curves.average_inside(
        part, kernel, stride, [0] * len(size), False, True, fill, rounding, low, high, centred))  # fmt: skip


def quantize_interior(
    real: Tensor, scale: float, zero_point: int, low: int, high: int, rounding: str, division: bool, place: str,
    fused: bool = False,
) -> Tensor:  # fmt: skip
    """Return clamp(R(v/s) + z), or clamp(R(v/s + z)) with place "before": see `specs.FloatKernel`."""
    if place == "after":
        return integer.quantize_codes(real, scale, zero_point, low, high, rounding, division)
    s = torch.tensor(scale, dtype=torch.float32)
    if fused:
        return round_by(integer.fma(real.float(), 1 / s, torch.tensor(float(zero_point))), rounding, low).clamp(low, high)
    return round_by((real / s if division else real * (1 / s)) + zero_point, rounding, low).clamp(low, high)


def average_pool_codes(
    codes: Tensor, scale_in: float, zero_in: int, kernel: list[int], stride: list[int], padding: list[int], ceil_mode: bool,
    include_pad: bool, scale: float, zero_point: int, low: int, high: int, rounding: str, division: bool, place: str,
    *, average: Average = average_pool_real,
) -> Tensor:  # fmt: skip
    """Return the codes of average pooling in float; summed in window order, one over the image is `global_average_codes`.

    Raises:
        EmulationError: the codes are no batch of images.
    """
    fixed_curves.require_images(codes, kernel)
    if list(codes.shape[2:]) == kernel and not any(padding) and codes.ndim == 4 and average is average_pool_real:
        return integer.global_average_codes(codes, zero_in, scale_in, scale, zero_point, low, high, rounding, True)
    real = integer.dequantize_codes(codes, scale_in, zero_in)
    mean = average(real, tuple(kernel), tuple(stride), tuple(padding), ceil_mode, include_pad)
    return quantize_interior(mean, scale, zero_point, low, high, rounding, division, place)


def adaptive_pool_codes(
    codes: Tensor, scale_in: float, zero_in: int, size: list[int | None], scale: float, zero_point: int, low: int, high: int,
    rounding: str, division: bool, place: str, *, average: Average = average_pool_real,
) -> Tensor:  # fmt: skip
    """Return the codes of adaptive average pooling to a size in float.

    Raises:
        EmulationError: the codes are no batch of images.
    """
    return adaptive(codes, size, lambda part, kernel, stride: average_pool_codes(
        part, scale_in, zero_in, kernel, stride, [0] * len(size), False, True, scale, zero_point, low, high, rounding, division,
        place, average=average))  # fmt: skip


@readable
@frozen
class WindowSum:
    """Average pools that are summed in window order.

    >>> WindowSum().form_of_codes("avg_pool").__name__
    'average_pool_codes'
    """

    def form(self, kind: str) -> None:
        """Return None: it has pools of codes only."""

    def form_of_codes(self, kind: str) -> Callable[..., Tensor] | None:
        """Return the function of a pool, or None."""
        forms: dict[str, Callable[..., Tensor]] = {"avg_pool": average_pool_codes, "adaptive_avg_pool": adaptive_pool_codes}
        return forms.get(kind)


def average_codes(
    codes: Tensor, zero_in: int, rank: int, pool: Any, keep: bool, ratio: float, table: list[Any], bits: int | None,
    rounding: str, zero_point: int, low: int, high: int,
) -> Tensor:  # fmt: skip
    """Return the codes of an integer average, clamp(R(sum / count * ratio) + z): see `specs.AveragePool`.

    Where the hardware multiplies by a reciprocal, sum * k / 2^n replaces sum / count.

    `pool`: kernel, stride and padding (its entries are the zero point).  None: the whole image; `keep` keeps its axes.
    """
    image = (codes - zero_in).double()
    window = list(codes.shape[-rank:]) if pool is None else pool[0]
    if pool is None:
        total = image.sum(tuple(range(-rank, 0)), keepdim=keep)
    elif rank == 1:
        kernel, stride, padding = [1, *pool[0]], [1, *(pool[1] or pool[0])], [0, *pool[2]]
        total = F.avg_pool2d(image.unsqueeze(-2), kernel, stride, padding, divisor_override=1).squeeze(-2)
    else:
        pool_sum = F.avg_pool3d if rank == 3 else F.avg_pool2d
        total = pool_sum(image, pool[0], pool[1] or pool[0], pool[2], divisor_override=1)
    k, n = reciprocal(window, table, bits)
    mean = total * ratio / math.prod(window) if n is None else total * k * 2.0**-n * ratio
    return (round_by(mean, rounding, low - zero_point) + zero_point).clamp(low, high).float()


def reciprocal(window: list[int], table: list[Any], bits: int | None) -> tuple[int, int | None]:
    """Return (k, n) with k / 2^n in place of 1 / count; n is None if the hardware divides.

    >>> reciprocal([3, 3], [[[3, 3], 7, 6]], 7), reciprocal([2, 4], [], 7), reciprocal([2, 3], [], 7)
    ((7, 6), (1, 3), (85, 9))
    """
    entry = next(((k, n) for kernel, k, n in table if list(kernel) == list(window)), None)
    if entry is not None or bits is None:
        return entry or (1, None)
    count = math.prod(window)
    candidates = [(round(Fraction(2**n, count)), n) for n in range(bits + (count - 1).bit_length())]
    return min(candidates, key=lambda pair: abs(Fraction(pair[0], 2 ** pair[1]) - Fraction(1, count)))
