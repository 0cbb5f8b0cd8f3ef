"""The second moments of the inputs of a layer, summed over batches."""

from __future__ import annotations

import torch
from attrs import define
from torch import Tensor


@define(eq=False)
class Moments:
    """H = sum x' x'^T and C = sum (x - x') x'^T over all vectors x' of a layer's quantized input, and x of its float input.

    Both are [in, in] in float64; each batch is summed in the dtype of its values.

    >>> moments = Moments.of(2, torch.device("cpu"))
    >>> moments.add(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 3.0]]))
    >>> moments.hessian.tolist(), moments.cross.tolist()
    ([[1.0, 2.0], [2.0, 4.0]], [[0.0, 0.0], [1.0, 2.0]])
    """

    hessian: Tensor
    cross: Tensor

    @classmethod
    def of(cls, inputs: int, device: torch.device) -> Moments:
        """Return the sums over no batches."""
        zeros = torch.zeros(inputs, inputs, dtype=torch.float64, device=device)
        return cls(zeros, zeros.clone())

    def add(self, quantized: Tensor, real: Tensor) -> None:
        """Add the vectors along the last axis of one batch."""
        x, y = (v.reshape(-1, v.shape[-1]).float() for v in (quantized, real))
        self.hessian += x.T @ x
        self.cross += (y - x).T @ x

    def damped(self, damping: float) -> Tensor:
        """Return H plus `damping` times the mean of its diagonal on the diagonal; 1 if all inputs are 0."""
        mean = float(self.hessian.diagonal().mean())
        return self.hessian + (damping * mean or 1.0) * torch.eye(len(self.hessian)).to(self.hessian)

    def best(self, weight: Tensor, damped: Tensor) -> Tensor:
        """Return the real weight V* with the least  sum |W x - V x'|^2 + damping |W - V|^2:  W + W C H^-1, H damped."""
        wide = weight.double()
        return wide + torch.cholesky_solve((wide @ self.cross).T, torch.linalg.cholesky(damped)).T


__all__ = ["Moments"]
