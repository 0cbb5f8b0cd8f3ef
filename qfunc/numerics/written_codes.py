"""Codes that a model writes into a cache."""

from __future__ import annotations

import torch
from torch import Tensor


def append_codes(codes: Tensor, dim: int, index: Tensor, new: Tensor, unwritten: int = 0) -> Tensor:
    """Return the codes of a cache [N, h, L, D] with new ones at their positions, as the operator returns them.

    Positions after the last one of a row hold `unwritten`, whatever they held before.

    Source: ONNX Runtime, contrib_ops/cpu/bert/gqa_attention_base.h: the result is cleared, then past and new rows are copied.

    >>> codes, index = torch.full((1, 1, 3, 1), 7.0), torch.tensor([[[[1]]]])
    >>> append_codes(codes, 2, index, torch.full((1, 1, 1, 1), 5.0)).flatten().tolist()
    [7.0, 5.0, 0.0]
    """
    written = codes.scatter(dim, index, new.to(codes.dtype))
    shape = [1] * codes.ndim
    shape[dim] = -1
    place = torch.arange(codes.shape[dim], device=codes.device).reshape(shape)
    return torch.where(place > index.amax(dim, keepdim=True), torch.full_like(written, unwritten), written)
