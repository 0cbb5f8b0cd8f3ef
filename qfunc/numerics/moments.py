"""The second moments of the inputs of a layer, summed over batches, and the weight that makes up for errors of the inputs."""

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
        product = _gram(x if x.dtype == torch.float64 else x.float())
        total = product if total is None else total.add_(product)
    assert total is not None
    return total


def _gram(x: Tensor) -> Tensor:
    # x^T x in float64, from the blocks on and above its diagonal: 9/16 of the products.
    width = -(-x.shape[1] // 8)
    found = torch.empty(x.shape[1], x.shape[1], dtype=torch.float64, device=x.device)
    for start in range(0, x.shape[1], width):
        rows = x[:, start : start + width].T @ x[:, start:]
        found[start : start + width, start:] = rows
        found[start:, start : start + width] = rows.T
    return found


def mixed_moments(batches: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """Return C = sum (y - x) x^T over all pairs of vectors along the last axis, [in, in] in float64, summed as second moments.

    >>> mixed_moments([(torch.tensor([[3.0, 2.0]]), torch.tensor([[1.0, 2.0]]))]).tolist()
    [[2.0, 4.0], [0.0, 0.0]]
    """
    total: Tensor | None = None
    for wanted, found in batches:
        y, x = (v.reshape(-1, v.shape[-1]) for v in (wanted, found))
        y, x = (v if v.dtype == torch.float64 else v.float() for v in (y, x))
        product = ((y - x).T @ x).double()
        total = product if total is None else total.add_(product)
    assert total is not None
    return total


def matching_weight(weight: Tensor, hessian: Tensor, mixed: Tensor) -> Tensor:
    """Return  W + W C H^-1,  the real weight that computes W y from x with the least squared error.

    Args:
        weight: W, [out, in].
        hessian: H = sum x x^T + d 1 for some d > 0, which holds the result near W, [in, in] in float64.
        mixed: C = sum (y - x) x^T, [in, in] in float64.

    >>> hessian, mixed = torch.tensor([[2.0, 0.0], [0.0, 4.0]]), torch.tensor([[2.0, 4.0], [0.0, 0.0]])
    >>> matching_weight(torch.tensor([[1.0, 0.0]]), hessian, mixed)
    tensor([[2., 1.]])
    """
    wide = weight.to(hessian)
    moved = wide + torch.cholesky_solve((wide @ mixed.to(hessian)).T, torch.linalg.cholesky(hessian)).T
    return moved.to(weight)


def damped(hessian: Tensor, damping: float) -> Tensor:
    """Return H with `damping` times the mean of its diagonal added to the diagonal; with 1, if all inputs are 0.

    >>> damped(torch.tensor([[1.0, 0.0], [0.0, 3.0]]), 0.5).tolist()
    [[2.0, 0.0], [0.0, 4.0]]
    """
    mean = float(hessian.diagonal().mean())
    return hessian + (damping * mean or 1.0) * torch.eye(len(hessian)).to(hessian)
