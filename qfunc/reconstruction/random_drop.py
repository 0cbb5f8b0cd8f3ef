"""Activations of a unit in training: LSQ with a random mask of quantized elements."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from qfunc.functions import Lsq
from qfunc.functions._steps import quantized_step, through_magnitude
from qfunc.numerics.qparams import Affine
from qfunc.reconstruction.layout import BatchAxis, Layout, inner, is_channels_last
from qfunc.specs import Int, Scheme

LEARNED = Lsq(gradient_scale=False)  # Adam normalizes the gradient anyway


class DropRate:
    """Random tensors of ones and zeros, with the probability of one accurate to 2^-16.

    A mini-batch has the same mask whether it is computed at once or in parts.

    Args:
        one: The probability of one.
        generator: A generator on the device of the tensors; each call advances its state.

    >>> DropRate(0.25, torch.Generator().manual_seed(0))(torch.empty(1000), BatchAxis()).sum()
    tensor(237.)
    """

    def __init__(self, one: float, generator: torch.Generator) -> None:
        self.generator, self.start = generator, generator.get_state()
        self.places: Tensor | None = None
        self.images = 0
        # The fewest random bits per element that represent the probability: one bit for 1/2.
        self.bits = next((n for n in (1, 2, 4, 8) if (one * 2**n).is_integer()), 16)
        self.below = round(one * 2**self.bits)

    def begin(self) -> None:
        """Begin a mini-batch."""
        self.start = self.generator.get_state()

    def of(self, places: Tensor, images: int) -> None:
        """Let the next masks be those of some images of the mini-batch, at some of its places, from the first mask on."""
        self.generator.set_state(self.start)
        self.places, self.images = places, images

    def __call__(self, like: Tensor, layout: Layout) -> Tensor:
        """Return a mask in the shape and the dtype of a tensor; `lerp` with numbers is far faster than `where`.

        Args:
            like: The tensor, of the images of the part.
            layout: Its layout.
        """
        if self.places is None or not isinstance(layout, BatchAxis):
            mask = _arranged(self._ones(like.numel(), like), like.shape, layout)
        else:
            shape, places = list(like.shape), self.places.to(like.device)
            shape[layout.axis] = self.images * layout.each
            ones = self._ones(prod(shape), like)
            if layout.axis == 0:  # the first in memory, too
                mask = _arranged(ones.view(self.images, -1).index_select(0, places).view(-1), like.shape, layout)
            else:
                mask = layout.join(layout.split(_arranged(ones, shape, layout)).index_select(0, places))
        return mask.contiguous(memory_format=torch.channels_last) if is_channels_last(like) else mask.contiguous()

    def _ones(self, count: int, like: Tensor) -> Tensor:
        words = torch.empty(-(-count * self.bits // 64), dtype=torch.int64, device=like.device)
        words.random_(torch.iinfo(torch.int64).min, None, generator=self.generator)
        if self.bits == 16:
            ones = torch.lt(
                words.view(torch.int16), self.below - (1 << 15), out=words.new_empty(4 * len(words), dtype=like.dtype)
            )
        else:
            digits, mask = words.view(torch.uint8), (1 << self.bits) - 1
            ones = words.new_empty(8 // self.bits, len(digits), dtype=like.dtype)
            for i, row in enumerate(ones):
                torch.lt(digits.bitwise_right_shift(i * self.bits).bitwise_and_(mask), self.below, out=row)
        return ones.view(-1)[:count]


def _arranged(ones: Tensor, shape: Sequence[int], layout: Layout) -> Tensor:
    if not isinstance(layout, BatchAxis) or not layout.channels_last or layout.axis:
        return ones.view(shape)
    n, c, h, w = shape
    return ones.view(n, h, w, c).permute(0, 3, 1, 2)


class _MaskedLsq(torch.autograd.Function):
    """LSQ with one scale and zero point, applied where `mask` is 1 (None: everywhere)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, zero: float, scheme: Scheme, mask: Tensor | None) -> Tensor:
        qparams, fmt = quantized_step(scale, torch.zeros_like(scale), scheme), scheme.format
        assert isinstance(fmt, Int)
        step = qparams.scale if qparams.outer is None else qparams.scale * qparams.outer
        ctx.ends, ctx.scheme = (fmt.qmin - zero, fmt.qmax - zero), scheme
        value = torch.div(x, step).round_().clamp_(*ctx.ends).mul_(step)
        if mask is not None:
            torch.lerp(x, value, mask, out=value)
        ctx.save_for_backward(x, value, scale, step, mask)
        return value

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (grad,), (x, value, scale, step, mask) = grad_outputs, ctx.saved_tensors
        low, high = (end * float(step) for end in ctx.ends)
        through = torch.ops.aten.hardtanh_backward(grad, x, low, high)
        if mask is not None:
            torch.lerp(grad, through, mask, out=through)
        # d/ds is (x_hat - x) / s where the gradient passes to x (0 where x is not quantized), elsewhere x_hat / s.
        total = (inner(grad, value) - inner(through, x)) / step
        return through, through_magnitude(total, scale, ctx.scheme), None, None, None


def is_plain(dtype: torch.dtype, scale: Tensor, scheme: Scheme) -> bool:
    """Return True if `drop_steps` equals LSQ: integers with one scale, rounded half-even before adding the zero point."""
    zero = scheme.zero_point
    return (
        scale.ndim == 0
        and dtype == torch.float32
        and isinstance(scheme.format, Int)
        and scheme.format.bits <= 16
        and scheme.rounding == "half_even"
        and scheme.division
        and (zero is None or zero.added == "after")
    )


def drop_steps(x: Tensor, scale: Tensor, zero: float, scheme: Scheme, mask: Tensor | None) -> Tensor:
    """Return x by LSQ where the mask is 1, else x: the values and gradients of `Lsq` in few passes over memory.

    Values that quantization does not change pass their gradient, also at the edge of the range.

    >>> x, scale = torch.tensor([0.3, 0.8, 9.0]), torch.tensor(0.5, requires_grad=True)
    >>> drop_steps(x, scale, 0.0, Scheme(Int(4)), torch.tensor([1.0, 0.0, 1.0])).tolist()
    [0.5, 0.800000011920929, 3.5]
    """
    result: Tensor = _MaskedLsq.apply(x, scale, zero, scheme, mask)  # type: ignore[no-untyped-call]
    return result


def mix(x: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Return the value where the mask is 1, else x."""
    return value if mask is None else torch.lerp(x, value, mask)


def learned_qparams(params: Any, scheme: Scheme) -> Affine:
    """Return the qparams of LSQ's parameters."""
    detached = type(params)(*(p.detach() for p in params))
    return LEARNED.export(detached, detached.scale, scheme)[1]
