"""What a unit's output should come near to: the float network's, each element counting the same or by what it matters."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from attrs import field, frozen
from torch import Tensor

from qfunc.reconstruction.dense import inner
from qfunc.specs._check import number, refuse


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
        return ctx.saved_tensors[0].mul_(2 * ctx.factor * grad_outputs[0]), None, None, None


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


def _damping(instance: Any, attribute: Any, value: Any) -> None:
    number()(instance, attribute, value)
    if value < 0:
        raise refuse(instance, attribute.name, value, "a number of at least 0", "Give 0.0 for the bare gradients.")


@frozen
class Fisher:
    """As SquaredError, each square times w / mean w, w = (|g| / rms g + damping)^2, g the gradient of the task's loss to z.

    The task is to keep what the network says: its loss is the divergence KL(p || p_hat) of the classes' probabilities, p of
    the float network and p_hat of the one rounded to nearest; classes lie along axis 1 of images, else along the last.
    One pass over the images, before the first unit, gives all gradients.  Dividing by the mean keeps the scale of
    the regulariser's weight.

    Without damping it is the paper's: the few images of which the rounded network thinks otherwise then decide alone, which
    at 2 bits costs points.  The authors' code adds 1 to |g|, far more than those of most networks.

    Args:
        damping: 0 or more, in root mean squares of g; the more, the nearer to SquaredError.
    Raises:
        SpecError: damping is not such a number.
    Source: Li et al., arXiv:2102.05426, equation 10 (the diagonal of the Fisher information), and quant/data_utils.py of
        its implementation.

    >>> Fisher().of(torch.ones(2, 2), torch.zeros(2, 2), 2, torch.tensor([[2.0, 0.0], [1.0, 1.0]])).item()
    2.0
    """

    weighted: ClassVar[bool] = True

    damping: float = field(default=1.0, validator=_damping)

    def of(self, found: Tensor, wanted: Tensor, channels: int, importance: Tensor | None) -> Tensor:
        """The loss of some images, a scalar."""
        assert importance is not None
        return _squares(found, wanted, importance, channels)
