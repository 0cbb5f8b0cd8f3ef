"""Mixtures of experts with weights in blocks, in the order of sums of ONNX Runtime's QMoE."""

from __future__ import annotations

import torch
from torch import Tensor

from qfunc.numerics.libm import expf
from qfunc.numerics.sums.blocks import block_product
from qfunc.targets.onnxruntime.introsort import introsort

_LEAST = 1e-8

Weight = tuple[Tensor, Tensor, Tensor, Tensor | None]
"""Codes [E, N, K], scales and zero points [E, N, B], and a bias [E, N] or None."""


def expert_sums(x: Tensor, shares: Tensor, up: Weight, down: Weight, form: tuple[int, int], threads: int) -> Tensor:
    """Return the sums over experts of their shares [T, E] times their results, for tokens x [T, K].

    Of the outputs of `up`, an even one is a gate and the next one its factor.  See `specs.ExpertSums`.

    Args:
        x, shares: As above.
        up, down: The weights of the experts.
        form: The block, and the bits, 4 or 8.
        threads: The threads of the session.

    >>> codes, ones = torch.full((1, 32, 16), 9.0), torch.ones(1, 32, 1)
    >>> up, down = (codes, ones, ones * 8, None), (codes[:, :16], ones[:, :16], ones[:, :16] * 8, None)
    >>> expert_sums(torch.full((1, 16), 0.5), torch.ones(1, 1), up, down, (16, 4), 2)[0, 0].item()
    1023.6572265625
    """
    routed = shares > _LEAST
    counts = routed.sum(0).tolist()
    each = [e for e, count in enumerate(counts) if count]
    lanes = 1 if len(each) < threads else min(len(each), threads)
    ordered = introsort(each, lambda a, b: counts[a] < counts[b] if lanes == 1 else counts[a] > counts[b])
    sums = [torch.zeros_like(x, dtype=torch.float32) for _ in range(max(1, lanes))]
    for place, e in enumerate(ordered):
        rows, total = routed[:, e].nonzero()[:, 0], sums[place % lanes]
        y = _product(_gated(_product(x[rows].float(), up, e, form)), down, e, form)
        total[rows] += shares[rows, e, None] * y
    y = torch.zeros_like(sums[0])
    for total in sums:
        y = y + total
    return y


def _product(x: Tensor, weight: Weight, e: int, form: tuple[int, int]) -> Tensor:
    codes, scale, zero_point, bias = weight
    return block_product(x, codes[e], scale[e], zero_point[e], None if bias is None else bias[e], *form)


def _gated(y: Tensor) -> Tensor:
    gate, factor = y[:, 0::2], y[:, 1::2]
    power = expf(-gate.abs())
    return gate * torch.where(gate >= 0, 1 / (1 + power), power / (1 + power)) * factor


__all__ = ["expert_sums"]
