"""Activations of a unit while it trains: some elements quantized and some not, by chance; scales that learn."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from qfunc.functions import Lsq
from qfunc.functions._steps import held, through_magnitude
from qfunc.numerics.qparams import Affine
from qfunc.specs import Int, Scheme

LEARNED = Lsq(gradient_scale=False)  # Adam divides by the gradient's size anyway


class Chance:
    """Tensors of ones with a probability, to 2^-16 exact, and zeros.

    Args:
        one: The probability.
        generator: On the device of the tensors; what it drew before decides.

    >>> Chance(0.25, torch.Generator().manual_seed(0))(torch.empty(1000)).sum()
    tensor(240.)
    """

    def __init__(self, one: float, generator: torch.Generator) -> None:
        self.generator = generator
        # A byte of random bits for each element is enough for many probabilities, among them 1/2.
        self.digit = torch.uint8 if (one * 256).is_integer() else torch.uint16
        self.below = round(one * 2 ** (8 * self.digit.itemsize))

    def __call__(self, like: Tensor) -> Tensor:
        """In the shape and dtype of a tensor; numbers, for choosing by a mask of booleans is far slower than `lerp`."""
        words = torch.empty(-(-like.numel() * self.digit.itemsize // 8), dtype=torch.int64, device=like.device)
        words.random_(torch.iinfo(torch.int64).min, None, generator=self.generator)
        return words.view(self.digit)[: like.numel()].to(like.dtype).lt_(self.below).view(like.shape)


class _Stepped(torch.autograd.Function):
    """LSQ with one scale and zero point, of the elements where `mask` (None: all) is 1; the others stay."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, step: Tensor, low: Tensor, high: Tensor, mask: Tensor | None) -> Tensor:
        value = torch.div(x, step).round_().clamp_(low, high).mul_(step)
        if mask is not None:
            torch.lerp(x, value, mask, out=value)
        ctx.save_for_backward(x, value, step, low, high, mask)
        return value

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (grad,), (x, value, step, low, high, mask) = grad_outputs, ctx.saved_tensors
        through = torch.ops.aten.hardtanh_backward(grad, x, float(low * step), float(high * step))
        if mask is not None:
            torch.lerp(grad, through, mask, out=through)
        # Where x passes d/ds is (x_hat - x) / s, which is 0 of what is not quantized, and elsewhere x_hat / s.
        total = torch.dot(grad.reshape(-1), value.reshape(-1)) - torch.dot(through.reshape(-1), x.reshape(-1))
        return through, total / step, None, None, None


def is_plain(x: Tensor, scale: Tensor, scheme: Scheme) -> bool:
    """Whether `stepped` computes what LSQ does: one scale of integers, rounded to the nearest even before the zero point."""
    zero = scheme.zero_point
    return (
        scale.ndim == 0
        and x.dtype == torch.float32
        and isinstance(scheme.format, Int)
        and scheme.format.bits <= 16
        and scheme.rounding == "half_even"
        and scheme.division
        and (zero is None or zero.added == "after")
    )


def stepped(x: Tensor, scale: Tensor, zero_point: Tensor, scheme: Scheme, mask: Tensor | None) -> Tensor:
    """x by LSQ where the mask is 1, in few passes: the same values, and where LSQ's gradient is that of its equation the same.

    >>> x, scale = torch.tensor([0.3, 0.8, 9.0]), torch.tensor(0.5, requires_grad=True)
    >>> scheme = Scheme(Int(4))
    >>> stepped(x, scale, torch.tensor(0.0), scheme, torch.tensor([1.0, 0.0, 1.0]))
    tensor([0.5000, 0.8000, 3.5000], grad_fn=<_SteppedBackward>)
    """
    fmt = scheme.format
    assert isinstance(fmt, Int)
    qparams = held(scale.detach(), zero_point.detach(), scheme)
    step = qparams.scale if qparams.outer is None else qparams.scale * qparams.outer
    # The gradient to the held step is that to the scale, but for a sign.
    through = through_magnitude(scale, scale.detach(), scheme)
    result: Tensor = _Stepped.apply(x, step + (through - through.detach()), fmt.qmin - zero_point, fmt.qmax - zero_point, mask)  # type: ignore[no-untyped-call]
    return result


def mixed(x: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """The value where the mask is 1, else x."""
    return value if mask is None else torch.lerp(x, value, mask)


def learned_qparams(params: Any, scheme: Scheme) -> Affine:
    """The qparams of LSQ's parameters."""
    given = type(params)(*(p.detach() for p in params))
    return LEARNED.export(given, given.scale, scheme)[1]


__all__ = ["LEARNED", "Chance", "is_plain", "learned_qparams", "mixed", "stepped"]
