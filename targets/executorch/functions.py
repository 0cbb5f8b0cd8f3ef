"""XNNPACK's float32 ops, with its order of summation and its approximations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from attrs import frozen
from torch import Tensor

from qfunc.numerics.kernels.activations import hard_swish_by_sixths
from qfunc.numerics.kernels.pooling import adaptive_pool_codes, average_pool_codes
from qfunc.specs._values import readable


def average_by_nines(
    x: Tensor, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], ceil_mode: bool, include_pad: bool
) -> Tensor:
    """Average-pool real values: sum a window's entries column by column, nine at a time, and multiply by 1 / count.

    The sum of nine entries v_0 ... v_8 is (((v_0 + v_1) + v_8) + (v_6 + v_7)) + ((v_2 + v_3) + (v_4 + v_5)).  Larger
    windows add the sums of nine in turn; padding is 0.  x is [N, C, ...] in float32.  The count is the number of entries
    of the window inside x; with `include_pad`, inside x and its padding.

    Source: XNNPACK, f32-avgpool-9p, f32-pavgpool-9p, and indirection.c (the order); measured on executorch 1.5.1.

    >>> average_by_nines(torch.arange(4.0).reshape(1, 1, 4), (2,), (2,), (0,), False, True).tolist()
    [[[0.5, 2.5]]]
    """
    rank, size = x.ndim - 2, x.shape[2:]
    out_sizes = [_output_size(size[d], kernel[d], stride[d], padding[d], ceil_mode) for d in range(rank)]
    end_pads = [max(0, (out_sizes[d] - 1) * stride[d] + kernel[d] - size[d] - padding[d]) for d in range(rank)]
    pads = [p for d in reversed(range(rank)) for p in (padding[d], end_pads[d])]
    image, inside = F.pad(x, pads), F.pad(torch.ones(size, device=x.device), pads)
    if include_pad:  # the padding that `ceil_mode` adds is never counted
        area = [n + p + min(p, e) for n, p, e in zip(size, padding, end_pads, strict=True)]
        rest = [v for p, e in zip(reversed(padding), reversed(end_pads), strict=True) for v in (0, max(e - p, 0))]
        inside = F.pad(torch.ones(area, device=x.device), rest)
    columns = torch.cartesian_prod(*(torch.arange(k) for k in reversed(kernel))).reshape(-1, rank).flip(-1).tolist()
    windows = [
        [slice(o, o + (n - 1) * s + 1, s) for o, n, s in zip(place, out_sizes, stride, strict=True)] for place in columns
    ]
    entries = [image[(slice(None), slice(None), *window)] for window in windows]
    total = _sum_of_nine(entries[:9])
    for start in range(9, len(entries), 9):
        total = total + _sum_of_nine(entries[start : start + 9])
    count = sum(inside[tuple(window)] for window in windows)
    return total * (1 / torch.as_tensor(count, device=x.device))


def _sum_of_nine(v: Sequence[Tensor]) -> Tensor:
    zero = torch.zeros_like(v[0])
    v = [*v, *[zero] * (9 - len(v))]
    return (((v[0] + v[1]) + v[8]) + (v[6] + v[7])) + ((v[2] + v[3]) + (v[4] + v[5]))


def _output_size(size: int, kernel: int, stride: int, pad: int, ceil_mode: bool) -> int:
    span = size + 2 * pad - kernel
    out = (-(-span // stride) if ceil_mode else span // stride) + 1
    return out - 1 if ceil_mode and (out - 1) * stride >= size + pad else out


def logistic_in_double(x: Tensor) -> Tensor:
    """Return 1 / (1 + exp(-x)) in float64, rounded once to float32.

    Source: XNNPACK, reference/unary-elementwise.cc.

    >>> logistic_in_double(torch.tensor([0.0])).item()
    0.5
    """
    return x.double().sigmoid().float()


def gelu_in_double(x: Tensor, approximate: str = "none") -> Tensor:
    """Return x/2 * (1 + erf(x / sqrt(2))) in float64, rounded once to float32.

    Source: XNNPACK, reference/unary-elementwise.cc.

    >>> gelu_in_double(torch.tensor([0.0, 10.0])).tolist()
    [0.0, 10.0]
    """
    return F.gelu(x.double(), approximate=approximate).float()


def average_pool_by_nines(*arguments: Any) -> Tensor:
    """Return `pooling.average_pool_codes`, with windows that are summed by nines."""
    return average_pool_codes(*arguments, average=average_by_nines)


def adaptive_pool_by_nines(*arguments: Any) -> Tensor:
    """Return `pooling.adaptive_pool_codes`, with windows that are summed by nines."""
    return adaptive_pool_codes(*arguments, average=average_by_nines)


@readable
@frozen
class Xnnpack:
    """Average pools summed by columns, nine at a time; hardswish as x * clamp(x/6 + 1/2, 0, 1); GELU and sigmoid in float64.

    >>> Xnnpack().form("gelu").__name__, Xnnpack().form_of_codes("avg_pool").__name__
    ('gelu_in_double', 'average_pool_by_nines')
    """

    def form(self, kind: str) -> Callable[..., Tensor] | None:
        """Return the function of a kind of op, or None."""
        return _FUNCTIONS.get(kind)

    def form_of_codes(self, kind: str) -> Callable[..., Tensor] | None:
        """Return the function of a pool, or None."""
        return {"avg_pool": average_pool_by_nines, "adaptive_avg_pool": adaptive_pool_by_nines}.get(kind)


_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "gelu": gelu_in_double, "hardswish": hard_swish_by_sixths, "sigmoid": logistic_in_double,
}  # fmt: skip

__all__ = [
    "Xnnpack", "adaptive_pool_by_nines", "average_by_nines", "average_pool_by_nines", "gelu_in_double", "hard_swish_by_sixths",
    "logistic_in_double",
]  # fmt: skip
