"""Compute exact accumulators of products of codes: integers stored in floating point.

float32 where a bound proves every partial sum below 2^24, else float64 (2^53).  NNPACK, which PyTorch takes for convolutions
where oneDNN is missing or off, multiplies transformed tiles in float32 (Winograd) instead: there they are in float64, too.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

EXACT_FLOAT32 = 2**24


def exact_chunks(weight: Tensor, largest_input: float, axis: int = 1) -> list[int]:
    """Return the channel indices at which to split the input so that float32 accumulates each run exactly.

    bound = max over outputs of sum |w| * largest_input < 2^24 for each run.

    Args:
        weight: Integer codes, outputs along axis 0 and inputs along `axis`.
        largest_input: The largest |q - z| of the input.
    Returns:
        Ends of the runs; the last end is the number of channels.  Empty if a single channel exceeds the
        bound, so that float64 is needed.

    >>> exact_chunks(torch.full((1, 4), 127.0), 255 * 300)
    [1, 2, 3, 4]
    """
    size = weight.abs().double().movedim(axis, 1)
    per_channel = size.reshape(size.shape[0], size.shape[1], -1).sum(2) * largest_input
    if per_channel.numel() and float(per_channel.max()) >= EXACT_FLOAT32:
        return []
    ends = []
    running = torch.zeros(per_channel.shape[0], dtype=torch.float64, device=per_channel.device)
    for i in range(per_channel.shape[1]):
        running = running + per_channel[:, i]
        if float(running.max()) >= EXACT_FLOAT32:
            ends.append(i)
            running = per_channel[:, i].clone()
    return [*ends, per_channel.shape[1]]


def _runs(ends: list[int]) -> list[slice]:
    # The last slice is open, so that torch raises for an input of another width instead of dropping channels.
    return [slice(a, b) for a, b in pairwise((0, *ends[:-1], None))]


def conv_codes(
    x: Tensor, zero_point: int, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any, groups: int,
    ends: list[int],
) -> Tensor:  # fmt: skip
    """Return the exact accumulator of a convolution: sum (q_x - z) * q_w + q_b; padding counts as q_x = z.

    Args:
        x: Codes [N, C, ...]; weight: codes [O, C/groups, ...] in float32; bias: int32 codes [O] or None.
        ends: The result of `exact_chunks`; if it is empty, the sum is computed in float64.  Groups cannot be
            split: for more than one run they are computed in float64, too.

    >>> conv_codes(torch.full((1, 1, 3), 5.0), 4, torch.ones(1, 1, 3), None, 1, 0, 1, 1, [1]).item()
    3.0
    """
    conv = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}[weight.ndim]
    x = x - zero_point if zero_point else x
    if not ends or (groups > 1 and len(ends) > 1) or not _adds_products():
        acc = conv(x.double(), weight.double(), None, stride, padding, dilation, groups)
    elif len(ends) == 1:
        acc = conv(x, weight, None, stride, padding, dilation, groups)
    else:
        first, *rest = _runs(ends)
        acc = conv(x[:, first], weight[:, first], None, stride, padding, dilation, groups).double()
        for run in rest:
            acc += conv(x[:, run], weight[:, run], None, stride, padding, dilation, groups)
    return acc if bias is None else acc + bias.reshape(-1, *[1] * (weight.ndim - 2))


def _adds_products() -> bool:
    # True if each value of a float32 convolution is a sum of its products.
    onednn: Any = torch.backends.mkldnn
    nnpack: Any = torch.backends.nnpack
    return bool((onednn.is_available() and onednn.enabled) or not nnpack.is_available())


def conv_transpose_codes(
    x: Tensor, zero_point: int, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, output_padding: Any,
    groups: int, dilation: Any,
) -> Tensor:  # fmt: skip
    """Return the exact accumulator of a transposed convolution, in float64; weight: codes [C, O/groups, ...].

    >>> conv_transpose_codes(torch.full((1, 1, 2), 5.0), 4, torch.ones(1, 1, 2), None, 1, 0, 0, 1, 1).tolist()
    [[[1.0, 2.0, 1.0]]]
    """
    conv = {3: F.conv_transpose1d, 4: F.conv_transpose2d, 5: F.conv_transpose3d}[weight.ndim]
    acc = conv((x - zero_point).double(), weight.double(), None, stride, padding, output_padding, groups, dilation)
    return acc if bias is None else acc + bias.reshape(-1, *[1] * (weight.ndim - 2))


def linear_codes(x: Tensor, zero_point: int, weight: Tensor, bias: Tensor | None, ends: list[int]) -> Tensor:
    """Return the exact accumulator of a linear layer: sum (q_x - z) * q_w + q_b over the last axis; weight [O, I].

    >>> linear_codes(torch.tensor([[5.0, 6.0]]), 4, torch.tensor([[1.0, -1.0]]), None, [2]).tolist()
    [[-1.0]]
    """
    x = x - zero_point if zero_point else x
    if not ends:
        acc = F.linear(x.double(), weight.double())
    else:
        first, *rest = _runs(ends)
        acc = F.linear(x[..., first], weight[:, first])
        acc = acc.double() if rest else acc
        for run in rest:
            acc += F.linear(x[..., run], weight[:, run])
    return acc if bias is None else acc + bias


def product_codes(a: Tensor, zero_a: int, b: Tensor, zero_b: int, largest: float) -> Tensor:
    """Return (q_a - z_a) * (q_b - z_b), entry by entry; `largest` bounds its magnitude.

    >>> product_codes(torch.tensor([32767.0]), 0, torch.tensor([32765.0]), 0, 2.0**30).item()
    1073610755.0
    """
    a, b = a - zero_a, b - zero_b
    return a * b if largest < EXACT_FLOAT32 else a.double() * b.double()


def matmul_codes(a: Tensor, zero_a: int, b: Tensor, zero_b: int, largest: float) -> Tensor:
    """Return the exact accumulator of a product of two code tensors; `largest` bounds |(q_a - z_a) * (q_b - z_b)|.

    >>> matmul_codes(torch.tensor([[2.0]]), 1, torch.tensor([[5.0]]), 2, 255.0 * 255).item()
    3.0
    """
    a, b = a - zero_a, b - zero_b
    return a @ b if a.shape[-1] * largest < EXACT_FLOAT32 else a.double() @ b.double()
