"""Attention, and the steps that it consists of: scaling and masking scores, repeating heads."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from qfunc.ops.definition import Op, Trait, op


def sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> Tensor:
    """Call `F.scaled_dot_product_attention` with every argument by position.

    >>> x = torch.ones(1, 2, 3)
    >>> sdpa(x, x, x, None, 0.0, False, None, False).shape
    torch.Size([1, 2, 3])
    """
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )


def scaled(input: Tensor, like: Tensor, factor: float | None) -> Tensor:
    """Return scaled attention scores: input * factor, or input / sqrt(width of `like`) without a factor.

    >>> scaled(torch.ones(1), torch.ones(2, 4), None)
    tensor([0.5000])
    """
    return input * (like.shape[-1] ** -0.5 if factor is None else factor)


def masked(input: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    """Return masked scores [..., L, S]: -infinity where a boolean mask is False or the causal mask applies; else score + mask.

    >>> masked(torch.zeros(1, 2), torch.tensor([True, False]), False)
    tensor([[0., -inf]])
    >>> masked(torch.zeros(2, 2), None, True)
    tensor([[0., -inf],
            [0., 0.]])
    """
    if causal:
        return input.masked_fill(_later(input), float("-inf"))
    if mask is None:
        return input
    return input.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else input + mask


def masked_softmax(input: Tensor, drop: Tensor | None) -> Tensor:
    """Return softmax along the last axis of the scores where `drop` is False, else 0; None drops those after the diagonal.

    >>> masked_softmax(torch.zeros(2, 2), None)
    tensor([[1.0000, 0.0000],
            [0.5000, 0.5000]])
    """
    dropped = _later(input) if drop is None else drop
    return torch.softmax(torch.where(dropped, float("-inf"), input), -1)


def _later(scores: Tensor) -> Tensor:
    # True at the keys behind each query, [L, S] for scores [..., L, S].
    return torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)


def left_out(mask: Tensor) -> Tensor:
    """Return a mask of nn.MultiheadAttention as a mask of scaled_dot_product_attention: booleans inverted.

    >>> left_out(torch.tensor([True, False]))
    tensor([False,  True])
    """
    return ~mask if mask.dtype == torch.bool else mask


def repeat_heads(input: Tensor, like: Tensor) -> Tensor:
    """Return keys or values [..., h, S, E] with each head repeated for each of its queries in `like` [..., H, L, E].

    >>> repeat_heads(torch.tensor([[[1.0]], [[2.0]]]), torch.zeros(4, 1, 1)).flatten()
    tensor([1., 1., 2., 2.])
    """
    return input.repeat_interleave(like.shape[-3] // input.shape[-3], -3)


def cached_attention(query: Tensor, key: Tensor, value: Tensor, positions: Tensor, factor: float) -> Tensor:
    """Return softmax(factor q k^T) v over the keys up to the position of each query.

    q [N, H, T, D] are queries at the positions [N, T]; keys and values [N, h, L, D] are those of a whole cache, of which each
    head serves H / h heads of queries.

    >>> x = torch.eye(2)[None, None]
    >>> cached_attention(x, x, x, torch.tensor([[0, 0]]), 1.0)
    tensor([[[[1., 0.],
              [1., 0.]]]])
    """
    keys, values = (repeat_heads(t, query) for t in (key, value))
    seen = torch.arange(key.shape[2], device=query.device) <= positions[:, None, :, None]
    return torch.softmax(masked(query @ keys.mT * factor, seen, False), -1) @ values


_COPIES = Trait.MOVES_VALUES | Trait.KEEPS_SIGN | Trait.HOMOGENEOUS | Trait.INTEGER_IF_INPUTS

ROWS: tuple[Op, ...] = (
    op("sdpa", sdpa, "query key value attn_mask=None dropout_p=0.0 is_causal=False scale=None enable_gqa=False",
       "scaled_dot_product_attention", "sdpa", traits=Trait.NEVER_BOOLEAN | Trait.KEEPS_SIGN,
       example=lambda x: sdpa(x, x, x, None, 0.0, False, None, False)),
    op("scale", scaled, "input like factor", traits=Trait.ELEMENTWISE | Trait.HOMOGENEOUS | Trait.NEVER_BOOLEAN,
       example=lambda x: scaled(x, x, -0.5)),
    op("mask", masked, "input mask causal", traits=Trait.POSITION_IF_INPUTS | Trait.NEVER_BOOLEAN | Trait.KEEPS_LOW,
       example=lambda x: masked(x, torch.linspace(-2, 0, 30).reshape(5, 6), False)),
    op("masked_softmax", masked_softmax, "input drop=None",
       traits=Trait.NEVER_BOOLEAN | Trait.NON_NEGATIVE | Trait.KEEPS_SIGN,
       example=lambda x: masked_softmax(x, None)),
    op("left_out", left_out, "mask", traits=Trait.ELEMENTWISE | Trait.KEEPS_SIGN | Trait.INTEGER_IF_INPUTS),
    op("cached_attention", cached_attention, "query key value positions factor",
       traits=Trait.NEVER_BOOLEAN | Trait.KEEPS_SIGN,
       example=lambda x: cached_attention(x, x, x, torch.arange(5).expand(2, 5), 0.5)),
    op("repeat_heads", repeat_heads, "input like", traits=_COPIES, example=lambda x: repeat_heads(x, x.new_zeros(6, 1, 1))),
)  # fmt: skip
