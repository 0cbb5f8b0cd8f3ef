"""What a unit's output should come near to: the float network's, each element counting the same or by what it matters."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from attrs import frozen
from torch import Tensor


@frozen
class SquaredError:
    """sum over channels of (z_hat - z)^2, mean over images and positions; z the float unit's output, z_hat the quantized one's.

    Source: Nagel et al., arXiv:2004.10568, equation 21, scaled as in the implementation of Li et al., arXiv:2102.05426.

    >>> SquaredError().of(torch.ones(2, 3), torch.zeros(2, 3), 3, None).item()
    3.0
    """

    weighted: ClassVar[bool] = False

    def of(self, found: Tensor, wanted: Tensor, channels: int, importance: Tensor | None) -> Tensor:
        """The loss of some images, a scalar."""
        return F.mse_loss(found, wanted, reduction="sum") * (channels / max(found.numel(), 1))


@frozen
class Fisher:
    """As SquaredError, each square times g^2 / mean g^2, with g the gradient of the task's loss to that element of z.

    The task is to keep what the network says: its loss is the divergence KL(p || p_hat) of the classes' probabilities, p of
    the float network and p_hat of the one rounded to nearest; classes lie along axis 1 of images, else along the last.
    One pass over the images, before the first unit, gives all gradients.  Dividing by the mean keeps the scale of
    the regulariser's weight.

    Source: Li et al., arXiv:2102.05426, equation 10 (the diagonal of the Fisher information).

    >>> Fisher().of(torch.ones(2, 2), torch.zeros(2, 2), 2, torch.tensor([[2.0, 0.0], [1.0, 1.0]])).item()
    2.0
    """

    weighted: ClassVar[bool] = True

    def of(self, found: Tensor, wanted: Tensor, channels: int, importance: Tensor | None) -> Tensor:
        """The loss of some images, a scalar."""
        assert importance is not None
        squares = F.mse_loss(found, wanted, reduction="none")
        return torch.dot(squares.flatten(), importance.flatten()) * (channels / max(found.numel(), 1))
