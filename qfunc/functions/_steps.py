"""Helpers of functions with a learned step: the scale that the hardware supports, and the gradient of the step."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from qfunc.errors import SpecError
from qfunc.numerics import affine, codebook, minifloat
from qfunc.numerics._learned_grads import summed
from qfunc.numerics.affine import quantize, step, widened
from qfunc.numerics.qparams import Affine, spread
from qfunc.numerics.scales import nearest_scale
from qfunc.specs import Float, Int, Levels, Scheme

FORMATS_WITH_STEP = (Int, Float, Levels)


def refuse_unless(kinds: tuple[type, ...], scheme: Scheme, function: str) -> None:
    """Raise SpecError for a format that the function's equation does not cover."""
    if not isinstance(scheme.format, kinds):
        wanted = " or ".join(kind.__name__ for kind in kinds)
        do = "Use Fixed(), or another format."
        raise SpecError(where=f"{function}, scheme.format", found=repr(scheme.format), wanted=wanted, do=do)


def refuse_signed(scheme: Scheme, function: str) -> None:
    """Raise SpecError for a signed scale, because the function learns a magnitude."""
    if scheme.scale.signed:
        wanted, do = "a scale without a sign", "Use Fixed() or Lsq()."
        raise SpecError(where=f"{function}, scheme.scale", found="signed=True", wanted=wanted, do=do)


def is_free(scheme: Scheme) -> bool:
    """Return True if the scheme has a zero point to choose."""
    return scheme.zero_point is not None and scheme.zero_point.value is None


def total_scale(qparams: Affine) -> Tensor:
    """Return the scale of qparams, the product of both levels: this is the trained number."""
    return qparams.scale if qparams.outer is None else qparams.scale * qparams.outer


def quantized_step(scale: Tensor, zero_point: Tensor, scheme: Scheme) -> Affine:
    """Return the qparams that the hardware uses for a trained scale: allowed(max(|s|, 2^-126)).

    >>> from qfunc.specs import Scale
    >>> quantized_step(torch.tensor(-0.3), torch.tensor(0.0), Scheme(scale=Scale(power_of_two=True))).scale.item()
    0.5
    """
    magnitude = scale.abs().clamp(min=torch.finfo(torch.float32).tiny)  # not a global number: see `scales._hardware_scale`
    inner, outer = nearest_scale(torch.copysign(magnitude, scale) if scheme.scale.signed else magnitude, scheme)
    return Affine(inner, zero_point, outer)


def through_magnitude(gradient: Tensor, scale: Tensor, scheme: Scheme) -> Tensor:
    """Return the trained scale's gradient from the hardware scale's: straight through `nearest_scale`, then of |s|."""
    return gradient if scheme.scale.signed else torch.where(scale < 0, -gradient, gradient)


def value_of(x: Tensor, qparams: Affine, scheme: Scheme) -> Tensor:
    """Return the value that the hardware represents for x, in the dtype of x."""
    if order := _memory_order(x, qparams):
        return value_of(x.permute(order[0]), qparams, scheme).permute(order[1])
    parts = [affine.fake_quantized_value(part, part_qparams, scheme) for _, part, part_qparams in _parts(x, x, qparams, _LARGE)]
    return parts[0] if len(parts) == 1 else torch.cat(parts).reshape(x.shape)


def in_codes(x: Tensor, qparams: Affine, scheme: Scheme) -> Tensor:
    """Return t = x / s + z, x in units of codes before rounding: a new tensor in the dtype of the computation."""
    wide = widened(x, scheme)
    scale, zero = (p.to(wide.dtype) for p in (step(qparams, x, scheme), spread(qparams.zero_point, x, scheme)))
    if scheme.zero_point is None:
        return wide / scale if scheme.division else wide * (1 / scale)
    return torch.addcdiv(zero, wide, scale) if scheme.division else torch.addcmul(zero, wide, 1 / scale)


def ends(scheme: Scheme) -> tuple[float, float]:
    """Return (n, p): the smallest and the largest code, or its value for formats without integers."""
    fmt = scheme.format  # no `match`: a compiler traces it as many Python calls
    if isinstance(fmt, Int):
        return fmt.qmin, fmt.qmax
    if isinstance(fmt, Levels):
        return fmt.values[0], fmt.values[-1]
    if isinstance(fmt, Float):
        return -minifloat.largest(fmt) if fmt.signed else 0.0, minifloat.largest(fmt)
    raise TypeError(fmt)


def through_inside(grad: Tensor, t: Tensor, scheme: Scheme) -> Tensor:
    """Return grad where n < t < p, else 0: LSQ's gradient of x."""
    # One kernel in one pass; masks and torch.where would allocate copies as large as x.
    gate: Tensor = torch.ops.aten.hardtanh_backward(grad, t, *ends(scheme))
    return gate


class Gradients(NamedTuple):
    """Gradient of x; of the step, summed over the elements that share it; and the sum of the part clipped from x, or None."""

    x: Tensor
    step: Tensor
    outside: Tensor | None


Gate = Callable[[Tensor, Tensor, Tensor, Affine], Tensor]


def gradients(
    grad: Tensor, x: Tensor, qparams: Affine, scheme: Scheme, gate: Gate | None = None, outside: bool = False
) -> Gradients:
    """Return the gradients of x_hat = (q - z) s: {R(x/s) - x/s where it passes through to x;  n - z or p - z elsewhere}.

    gate(grad, x, t, qparams) is the gradient of x.  The default is `through_inside`, and grad itself where x = 0: it has a
    code and is not clipped, and a tensor of zeros would otherwise stay 0 where that code is an end.  Large tensors are
    processed in parts that fit into the cache, because allocating takes longer than the arithmetic.
    """
    if order := _memory_order(x, qparams):
        result = gradients(grad.permute(order[0]), x.permute(order[0]), qparams, scheme, gate, outside)
        return result._replace(x=result.x.permute(order[1]))
    parts = [_of_part(*part, scheme, gate, outside) for part in _parts(grad, x, qparams)]
    if len(parts) == 1:
        return parts[0]
    dx, steps, rest = zip(*parts, strict=True)
    join = torch.cat if qparams.scale.ndim else lambda totals: torch.stack(totals).sum()
    return Gradients(torch.cat(dx).reshape(x.shape), join(steps), join(rest) if outside else None)


_PART, _LARGE = 1 << 16, 1 << 20
"""Number of elements of a part, and the smallest number for which a few operations are faster in parts."""


def _memory_order(x: Tensor, qparams: Affine) -> tuple[list[int], list[int]] | None:
    # The axes of x in memory order and their inverse, if x has one scale and is dense but not contiguous.
    if torch.compiler.is_compiling() or qparams.scale.ndim or x.numel() < 2 * _PART or x.is_contiguous():
        return None
    order = sorted(range(x.ndim), key=x.stride, reverse=True)
    return (order, sorted(range(x.ndim), key=order.__getitem__)) if x.permute(order).is_contiguous() else None


def _parts(grad: Tensor, x: Tensor, qparams: Affine, least: int = 2 * _PART) -> list[tuple[Tensor, Tensor, Affine]]:
    whole, shared_scale = [(grad, x, qparams)], qparams.scale
    if torch.compiler.is_compiling() or x.numel() < least:
        return whole
    if shared_scale.ndim == 0 and x.is_contiguous() and grad.is_contiguous():
        pairs = zip(torch.split(grad.reshape(-1), _PART), torch.split(x.reshape(-1), _PART), strict=True)
        return [(g, part, qparams) for g, part in pairs]
    if shared_scale.ndim == 0 or shared_scale.shape[0] != x.shape[0] or (qparams.outer is not None and qparams.outer.ndim):
        return whole
    rows = max(_PART * x.shape[0] // x.numel(), 1)
    split = (torch.split(t, rows) for t in (grad, x, shared_scale, qparams.zero_point))
    return [(g, part, Affine(s, z, qparams.outer)) for g, part, s, z in zip(*split, strict=True)]


def _of_part(grad: Tensor, x: Tensor, qparams: Affine, scheme: Scheme, gate: Gate | None, outside: bool) -> Gradients:
    t = in_codes(x, qparams, scheme)
    wide, like = grad.to(t.dtype), qparams.scale
    through = through_inside(wide, t, scheme) if gate is None else gate(wide, x, t, qparams)
    rest = summed(wide - through, like, scheme) if outside else None
    level, fmt, largest = quantize(x, qparams, scheme), scheme.format, torch.finfo(t.dtype).max
    if isinstance(fmt, Levels):
        level = codebook.values(level, fmt)
    if scheme.zero_point is not None:
        zero = spread(qparams.zero_point, x, scheme)
        level, t = level.sub_(zero), t.sub_(zero)
    terms = wide * level - through * t.clamp(-largest, largest)  # 0 * infinity would be NaN
    if gate is None and _zero_may_be_an_end(scheme):
        through = torch.where(x == 0, wide, through)
    return Gradients(through.to(grad.dtype), summed(terms, like, scheme), rest)


def _zero_may_be_an_end(scheme: Scheme) -> bool:
    low, high = ends(scheme)
    return scheme.zero_point is not None or low >= 0 or high <= 0


def largest_level(scheme: Scheme) -> float:
    """Return Q_p: the largest level in steps, at least 1."""
    return max(ends(scheme)[1], 1.0)


def elements_per_scale(x: Tensor, scale: Tensor, batch_axis: int | None) -> int:
    """Return N, the number of elements of x that share one scale, at least 1; with `batch_axis`, of one example.

    >>> x = torch.ones(6, 5, 4)
    >>> [elements_per_scale(x, torch.ones(shape), 0) for shape in ((), (1, 5, 1), (6, 1, 1))]
    [20, 4, 20]
    """
    examples = 1
    if batch_axis is not None and -x.ndim <= batch_axis < x.ndim and (scale.ndim == 0 or scale.shape[batch_axis] == 1):
        examples = max(x.shape[batch_axis], 1)
    return max(x.numel() // max(scale.numel(), 1) // examples, 1)
