"""The part of a product that the minimums of its weight have, and products of groups of tokens: see `specs.MinimumSums`."""

from __future__ import annotations

import torch
from torch import Tensor

from qfunc.numerics.kernels.integer import fma
from qfunc.numerics.sums.dynamic import block_sums
from qfunc.numerics.sums.tiles import tokens


def rounded_sums(codes: Tensor, s_x: Tensor, minimum: Tensor, dtype: str) -> Tensor:
    """Return w of each token and output: w + m rounded(s_x sum(q_x)), fused, for one block after the other.

    Args:
        codes: q_x [..., K].
        s_x: Their scales in float32 [..., K / block].
        minimum: m [O, K / block].
        dtype: The type of the rounded sums.

    >>> rounded_sums(torch.tensor([[2.0, 3.0]]), torch.tensor([[0.5]]), torch.tensor([[-4.0]]), "float16").tolist()
    [[-10.0]]
    """
    sums = (s_x * codes.reshape(*s_x.shape, -1).sum(-1)).to(getattr(torch, dtype)).float()
    total = torch.zeros((*codes.shape[:-1], len(minimum)), device=codes.device)
    for block in range(minimum.shape[1]):
        total = fma(sums[..., block, None].expand_as(total), minimum[:, block].expand_as(total), total)
    return total


def grouped_sums(
    size: int, part: int, sequences: str, codes: Tensor, s_x: Tensor, weight: Tensor, s_w: Tensor, count: int, run: int,
    order: str, more: tuple[Tensor, int] | None = None, rest: str = "lanes",
) -> Tensor:  # fmt: skip
    """Return fused `block_sums`, in parts of `part` entries for whole groups of `size` tokens; see `specs.TokenGroups`.

    >>> x, w = torch.tensor([[2.0, 3.0]] * 3), torch.tensor([[4.0, 5.0]])
    >>> grouped_sums(2, 1, "together", x, torch.ones(3, 1), w, torch.ones(1, 1), 1, 1, "halves").tolist()
    [[23.0], [23.0], [23.0]]
    """
    length = tokens(codes, sequences)
    rows, scales = (t.reshape(-1, length, t.shape[-1]) for t in (codes, s_x))
    whole = length - length % size

    def sums(chosen: slice, entries: int | None) -> Tensor:
        given = (rows[:, chosen], None, scales[:, chosen], weight, s_w, count, run)
        return block_sums(*given, fused=True, flushes=False, order=order, part=entries, more=more, rest=rest)

    return torch.cat([sums(slice(whole), part), sums(slice(whole, None), None)], 1).reshape(*codes.shape[:-1], -1)
