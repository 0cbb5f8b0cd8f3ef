"""Attention written as two products, a scale, masks and a softmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from qfunc.ops.attention import masked, scaled

Emit = Callable[..., Any]
"""emit(function, *arguments) -> the value of a new call."""


def attend(
    emit: Emit,
    query: Any,
    key: Any,
    value: Any,
    masks: tuple[Any, ...] = (),
    causal: bool = False,
    factor: float | None = None,
    dropped: Callable[[Any], Any] | None = None,
) -> tuple[Any, Any]:
    """Return softmax(factor * query key^T + masks) value, and the softmax.

    Args:
        emit: Writes a call.
        query: [..., L, E]; key and value are [..., S, E].
        masks: Tensors to add to the scores, or booleans: True keeps a score.
        causal: Position i attends only to positions up to i.
        factor: None for 1 / sqrt(E).
        dropped: The function that applies dropout to the softmax.

    >>> q = torch.ones(1, 2, 3)
    >>> attend(lambda f, *a: f(*a), q, q, q)[0].shape
    torch.Size([1, 2, 3])
    """
    scores = emit(torch.matmul, query, emit(torch.transpose, key, -2, -1))
    if factor != 1:  # T5 and Whisper have scale=1.0: runtimes remove the product
        scores = emit(scaled, scores, query, factor)
    for mask, triangle in ((None, True),) * causal + tuple((m, False) for m in masks if m is not None):
        scores = emit(masked, scores, mask, triangle)
    weights = emit(torch.softmax, scores, -1)
    return emit(torch.matmul, weights if dropped is None else dropped(weights), value), weights
