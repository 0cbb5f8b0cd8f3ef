"""What a unit's output should come near to: the float network's, each element counting the same or by what it matters."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from attrs import frozen
from torch import Tensor

from qfunc.reconstruction.dense import inner


class _Squares(torch.autograd.Function):
    """factor * sum (found - wanted)^2 importance, in few passes; the gradient has the layout that `found` has."""

    @staticmethod
    def forward(ctx: Any, found: Tensor, wanted: Tensor, importance: Tensor | None, factor: float) -> Tensor:
        difference = found - wanted
        weighted = difference if importance is None else difference * importance
        ctx.factor = factor
        ctx.save_for_backward(weighted)
        return inner(difference, weighted) * factor

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.saved_tensors[0] * (2 * ctx.factor * grad_outputs[0]), None, None, None


def _squares(found: Tensor, wanted: Tensor, importance: Tensor | None, channels: int) -> Tensor:
    factor = channels / max(found.numel(), 1)
    result: Tensor = _Squares.apply(found, wanted, importance, factor)  # type: ignore[no-untyped-call]
    return result


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
        return _squares(found, wanted, None, channels)


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
        return _squares(found, wanted, importance, channels)
