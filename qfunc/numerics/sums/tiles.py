"""Products of many tokens, which are added in tiles: see `specs.TokenTiles`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from qfunc.numerics.kernels.integer import fma
from qfunc.numerics.sums.dynamic import block_sums


def tokens(codes: Tensor, sequences: str) -> int:
    """Return the tokens of a product for codes [..., T, K]: those of all sequences "together", or T for sequences "apart".

    >>> [tokens(torch.zeros(2, 5, 32), s) for s in ("together", "apart")]
    [10, 5]
    """
    if sequences == "together":
        return codes[..., 0].numel()
    return codes.shape[-2] if codes.dim() > 1 else 1


def tiled_sums(codes: Tensor, s_x: Tensor, weight: Tensor, s_w: Tensor, k: Tensor | None, minimum: Tensor | None) -> Tensor:
    """Return v of each token and output: v + s_x (d acc_b - e a_b) for one block after the other.

    Args:
        codes: q_x [..., K].
        s_x: Their scales [..., G].
        weight: c q_w [O, K].
        s_w: d [O, blocks].
        k: Integers of minimums [O, K], or None.
        minimum: -e [O, blocks], or None.

    >>> x, w = torch.tensor([[2.0, 3.0]]), torch.tensor([[4.0, 5.0]])
    >>> tiled_sums(x, torch.ones(1, 1), w, torch.ones(1, 1), torch.ones(1, 2), -torch.ones(1, 1)).tolist()
    [[18.0]]
    """
    blocks, groups = max(s_x.shape[-1], s_w.shape[1]), s_x.shape[-1]
    width = weight.shape[1] // blocks
    total = torch.zeros((*codes.shape[:-1], len(weight)), device=weight.device)
    for b in range(blocks):
        span, at = slice(b * width, (b + 1) * width), b * s_w.shape[1] // blocks
        x = codes[..., span].double()
        inner = (x @ weight[:, span].double().T).float() * s_w[:, at]
        if k is not None and minimum is not None:
            sums = (x @ k[:, span].double().T).float()
            inner = fma(sums, minimum[:, at].expand_as(sums), inner)
        total = fma(inner, s_x[..., b * groups // blocks, None].expand_as(inner), total)
    return total


def sums_by_tokens(
    least: int, sequences: str, codes: Tensor, s_x: Tensor, tiled: tuple[Any, ...], plain: tuple[tuple[Any, ...], ...]
) -> Tensor:
    """Return `tiled_sums` for products of at least `least` tokens, else the sum of some `block_sums`.

    Args:
        least, sequences: See `specs.TokenTiles` and `specs.DynamicProduct`.
        codes: q_x [..., K].
        s_x: Their scales [..., G].
        tiled: The arguments of `tiled_sums` from the weight on.
        plain: For each sum the arguments of `block_sums` from the weight on.

    >>> x, w = torch.tensor([[2.0, 3.0]]), torch.tensor([[4.0, 5.0]])
    >>> plain = ((w, torch.full((1, 1), 0.5), 1, 1, True, False),)
    >>> sums_by_tokens(2, "together", x, torch.ones(1, 1), (w, torch.ones(1, 1), None, None), plain).tolist()
    [[11.5]]
    """
    if tokens(codes, sequences) >= least:
        return tiled_sums(codes, s_x, *tiled)
    first, *others = (block_sums(codes, None, s_x, *arguments) for arguments in plain)
    return sum(others, first)
