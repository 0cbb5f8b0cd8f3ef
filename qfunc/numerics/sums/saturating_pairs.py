"""Sums of products whose pairs saturate to 16 bits: see `specs.SaturatesPairs`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from qfunc.numerics.sums.overflow import conv_terms, padded

LOW, HIGH = -(2.0**15), 2.0**15 - 1


def outputs_at_risk(weight: Tensor, low: int, high: int) -> Tensor:
    """Return, for each output, whether a pair of its products may saturate, for input codes in [low, high].

    Args:
        weight: Codes [O, K], in the order of the sum.

    >>> outputs_at_risk(torch.tensor([[64.0, 64.0], [65.0, 64.0], [-65.0, -64.0], [127.0, -127.0]]), 0, 255).tolist()
    [False, True, True, False]
    """
    pairs = torch.nn.functional.pad(weight.double(), (0, weight.shape[1] % 2)).reshape(weight.shape[0], -1, 2)
    least, most = torch.minimum(pairs * low, pairs * high).sum(2), torch.maximum(pairs * low, pairs * high).sum(2)
    return ((least < LOW) | (most > HIGH)).any(1)


def saturate_pairs(acc: Tensor, terms: Iterable[Tensor], channels: Tensor, axis: int) -> Tensor:
    """Return exact sums whose `channels` along an axis lose what their pairs of successive terms lose by saturation.

    >>> terms = [torch.tensor([[30000.0]]), torch.tensor([[3000.0]]), torch.tensor([[-1.0]])]
    >>> saturate_pairs(torch.tensor([[32999.0]]), terms, torch.tensor([0]), 1).item()
    32766.0
    """
    lost: Any = 0.0
    first: Tensor | None = None
    for term in terms:
        if first is None:
            first = term
        else:
            pair, first = first + term, None
            lost = lost + (pair.clamp(LOW, HIGH) - pair).double()
    return acc.double().index_add(axis, channels, lost) if isinstance(lost, Tensor) else acc


def saturate_pairs_conv(
    acc: Tensor, x: Tensor, zero_point: int, weight: Tensor, stride: Any, padding: Any, dilation: Any, channels: Tensor
) -> Tensor:
    """Return an accumulator of a convolution whose `channels` have pairs that saturate; padding has the code `zero_point`.

    >>> w = torch.tensor([[[127.0, 127.0]]])
    >>> saturate_pairs_conv(torch.tensor([[[64770.0]]]), torch.full((1, 1, 2), 255.0), 0, w, 1, 0, 1, torch.tensor([0])).item()
    32767.0
    """
    if acc.ndim == weight.ndim - 1:
        return saturate_pairs_conv(acc[None], x[None], zero_point, weight, stride, padding, dilation, channels)[0]
    whole = padded(x - zero_point, padding, weight.shape[2:], dilation) + zero_point
    terms = conv_terms(whole, weight, channels, acc.shape[2:], stride, dilation, ("position", "channel"))
    return saturate_pairs(acc, terms, channels, 1)


def saturate_pairs_linear(acc: Tensor, x: Tensor, weight: Tensor, channels: Tensor) -> Tensor:
    """Return an accumulator of a linear layer whose `channels` have pairs that saturate; weight [O, I].

    >>> w = torch.tensor([[-127.0, -127.0]])
    >>> saturate_pairs_linear(torch.tensor([[-64770.0]]), torch.full((1, 2), 255.0), w, torch.tensor([0])).item()
    -32768.0
    """
    chosen = weight[channels]
    return saturate_pairs(acc, (x[..., i, None] * chosen[:, i] for i in range(weight.shape[1])), channels, -1)
