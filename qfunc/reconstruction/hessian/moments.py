"""The second moments of the inputs of a layer, summed over batches."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def second_moments(batches: Iterable[Tensor]) -> Tensor:
    """Return H = sum x x^T over all vectors x along the last axis, [in, in] in float64.

    Each batch is summed in float32, or in float64 if its values are.

    >>> second_moments([torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 1.0]])]).tolist()
    [[1.0, 2.0], [2.0, 5.0]]
    """
    total: Tensor | None = None
    for batch in batches:
        x = batch.reshape(-1, batch.shape[-1])
        x = x if x.dtype == torch.float64 else x.float()
        product = (x.T @ x).double()
        total = product if total is None else total.add_(product)
    assert total is not None
    return total


def damped(hessian: Tensor, damping: float) -> Tensor:
    """Return H with `damping` times the mean of its diagonal added to the diagonal; with 1, if all inputs are 0.

    >>> damped(torch.tensor([[1.0, 0.0], [0.0, 3.0]]), 0.5).tolist()
    [[2.0, 0.0], [0.0, 4.0]]
    """
    mean = float(hessian.diagonal().mean())
    return hessian + (damping * mean or 1.0) * torch.eye(len(hessian)).to(hessian)


__all__ = ["damped", "second_moments"]
