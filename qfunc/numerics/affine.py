"""Quantize, dequantize and fake-quantize tensors of every format and granularity."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from qfunc.numerics import codebook, logarithmic, minifloat
from qfunc.numerics._grads import masked_straight_through, reinterpreted
from qfunc.numerics.qparams import Affine, block_size, filled, spread
from qfunc.numerics.rounding import round_by
from qfunc.numerics.scales import divisor, stored_scale
from qfunc.specs import Float, Int, Levels, Log, PerBlock, Scheme


def quantize(x: Tensor, qparams: Affine, scheme: Scheme) -> Tensor:
    """Return the codes of x: q = clamp(R(x / s) + z, qmin, qmax) for integers.

    For `Float` the code is the element's value, R(x / s); for `Levels` the index of the nearest level to
    x / s; for `Log` the sign-magnitude code of x.

    Args:
        x: Real units, any shape; bfloat16 and float16 are computed in float32.
        qparams: Scale s in real units per code, zero point z in codes.
        scheme: The format gives qmin and qmax, the rounding gives R; `division=False` computes x * (1/s), and
            `ZeroPoint(added="before")` computes R(x / s + z).
    Returns:
        Codes in floating point, the shape of x; NaN stays NaN, infinities saturate.
    Source: ONNX QuantizeLinear.

    >>> q = quantize(torch.tensor([-9.0, 0.25, 0.75]), Affine(torch.tensor(0.5), torch.tensor(0.0)), Scheme())
    >>> q.tolist()
    [-18.0, 0.0, 2.0]
    """
    view, params = _block_views(widened(x, scheme), qparams, scheme)
    return _reshape_like(_codes(_scaled(view, params, scheme), params, scheme), x, scheme)


def dequantize(codes: Tensor, qparams: Affine, scheme: Scheme) -> Tensor:
    """Return the real values x_hat = (q - z) * s of codes q, plus the minimum of the block, if there is one.

    >>> from qfunc.specs import ZeroPoint
    >>> affine = Scheme(zero_point=ZeroPoint())
    >>> dequantize(torch.tensor([3.0]), Affine(torch.tensor(0.5), torch.tensor(1.0)), affine).tolist()
    [1.0]
    """
    view, params = _block_views(codes, qparams, scheme)
    values = _reshape_like(_values(view, params, scheme), codes, scheme)
    minimum = full_minimum(qparams, scheme)
    return values if minimum is None else values + spread(minimum, codes, scheme)


def fake_quantize(x: Tensor, qparams: Affine, scheme: Scheme) -> Tensor:
    """Return dequantize(quantize(x)) in the dtype of x, with a straight-through gradient inside the range.

    d x_hat / d x = 1 where qmin <= R(x/s) + z <= qmax, else 0; for other formats, 1 where x is between the
    smallest and the largest value.  It is also 1 where |x| <= s d for the divisors d of `Scale.divisor` beyond qmax: such
    a scale is made for a range whose largest value rounds to qmax + 1.  Qparams get no gradient.

    Computed in float32, or in float64 for float64 x and for codes of more than 24 bits; rounded to the dtype
    of x at the end.  NaN stays NaN, infinities saturate to the ends of an integer range; both get gradient 0.
    Denormals are not flushed.  An empty x gives an empty x_hat.

    Source: Bengio et al., arXiv:1308.3432 (straight-through estimator).

    >>> fake_quantize(torch.tensor([0.3]), Affine(torch.tensor(0.25), torch.tensor(0.0)), Scheme()).tolist()
    [0.25]
    """
    if not torch.is_grad_enabled():  # not x.requires_grad, which is False inside vmap under grad
        return _fake_quantize(scheme, x, *qparams[:3])[0]
    scale, zero_point, outer = (p if p is None else p.detach() for p in qparams[:3])
    fake, mask = partial(_fake_quantize, scheme), partial(_gradient_mask, scheme)
    return masked_straight_through(x, fake, mask, scale, zero_point, outer)  # type: ignore[arg-type]


def fake_quantized_value(x: Tensor, qparams: Affine, scheme: Scheme) -> Tensor:
    """Return dequantize(quantize(x)) in the dtype of x: the value of `fake_quantize`, without its gradient.

    >>> fake_quantized_value(torch.tensor([0.3]), Affine(torch.tensor(0.25), torch.tensor(0.0)), Scheme()).tolist()
    [0.25]
    """
    return _fake_quantize(scheme, x, *qparams[:3])[0]


def in_range(x: Tensor, qparams: Affine, scheme: Scheme) -> Tensor:
    """Return a boolean tensor of the shape of x: True where x is not clipped.

    >>> in_range(torch.tensor([63.6, 63.8]), Affine(torch.tensor(0.5), torch.tensor(0.0)), Scheme()).tolist()
    [True, False]
    """
    view, params = _block_views(widened(x, scheme), qparams, scheme)
    unclamped = _unclamped(_scaled(view, params, scheme), view, params, scheme)
    return _reshape_like(_gradient_mask(scheme, unclamped), x, scheme).bool()


def step(qparams: Affine, x: Tensor, scheme: Scheme) -> Tensor:
    """Return the scale of every element, s, or s * outer for two-level schemes; it broadcasts against x."""
    return spread(full_scale(qparams), x, scheme)


def _fake_quantize(scheme: Scheme, x: Tensor, scale: Tensor, zero_point: Tensor, outer: Tensor | None) -> tuple[Tensor, Tensor]:
    # (x_hat, the value from which `_gradient_mask` computes the gradient's mask).
    qparams = Affine(scale.detach(), zero_point.detach(), outer if outer is None else outer.detach())
    view, params = _block_views(widened(x, scheme), qparams, scheme)
    real = _scaled(view, params, scheme)
    codes, unclamped = _codes(real, params, scheme), _unclamped(real, view, params, scheme)
    if isinstance(scheme.format, Int):
        # A new tensor, which vmap batches wherever a qparam is batched: it may be overwritten in place.
        value = (codes if scheme.zero_point is None else codes.sub_(params.zero_point)).mul_(_value_scale(params, scheme))
    else:
        value = _values(codes, params, scheme)
    return _reshape_like(value, x, scheme).to(x.dtype), _reshape_like(unclamped, x, scheme)


def _gradient_mask(scheme: Scheme, unclamped: Tensor) -> Tensor:
    # 1 where x is not clipped, else 0: int8 has the bytes of bool, and multiplying by it is twice as fast.
    limited = unclamped.clamp(*_ends(scheme))
    if torch.compiler.is_compiling():  # compiled code stores floats as int8 much faster than it stores bools
        return (limited == unclamped).to(unclamped.dtype).to(torch.int8)
    return reinterpreted(limited.sub_(unclamped).logical_not(), torch.int8)


def _ends(scheme: Scheme) -> tuple[float, float]:
    fmt = scheme.format  # no `match`: a compiler traces it as many Python calls
    if isinstance(fmt, Int):
        return fmt.qmin, fmt.qmax
    if isinstance(fmt, Float):
        return -minifloat.largest(fmt), minifloat.largest(fmt)
    return (fmt.values[0], fmt.values[-1]) if isinstance(fmt, Levels) else (-math.inf, 0.0)


def _unclamped(real: Tensor, x: Tensor, params: Affine, scheme: Scheme) -> Tensor:
    # The value that lies within `_ends` if x is not clipped.
    fmt = scheme.format
    if isinstance(fmt, Int) and scheme.scale.divisor in ("half_range", "-qmin") and fmt.qmin < 0 < fmt.qmax:
        # s and s d are rounded, and those of a weight before a BatchNorm again: far less than 2^-20.
        largest = full_scale(params).abs() * (divisor(scheme) * (1 + 2**-20))
        return torch.where(x.abs() <= largest, real.clamp(*_ends(scheme)), real)
    if not isinstance(fmt, Log):
        return real
    codes, steps = 1 << fmt.magnitude_bits, fmt.steps_per_octave
    return real.abs() - full_scale(params) * torch.full(
        (), 2.0 ** ((codes - 1) / steps), dtype=torch.float64, device=real.device
    )


def _scaled(x: Tensor, params: Affine, scheme: Scheme) -> Tensor:
    # The value before clamping: R(x / s) + z for Int, x / s for Float and Levels, x itself for Log.
    scale, fmt = full_scale(params), scheme.format
    if isinstance(fmt, Log):
        return x
    real = x / scale if scheme.division else x * (1 / scale)
    if not isinstance(fmt, Int):
        return real
    zero, low = params.zero_point, fmt.qmin
    if scheme.zero_point is None:
        return _round(real, scheme, low)
    if scheme.zero_point.added == "before":
        return _round(real + zero, scheme, low)
    return _round(real, scheme, low - zero) + zero


def _round(real: Tensor, scheme: Scheme, low: int | Tensor) -> Tensor:
    # The caller owns `real`, so the most frequent mode overwrites it.
    return real.round_() if scheme.rounding == "half_even" else round_by(real, scheme.rounding, low)


def _codes(real: Tensor, params: Affine, scheme: Scheme) -> Tensor:
    fmt = scheme.format
    if isinstance(fmt, Int):
        return real.clamp(fmt.qmin, fmt.qmax)
    if isinstance(fmt, Float):
        return minifloat.nearest(real, fmt, scheme.rounding)
    return codebook.index(real, fmt) if isinstance(fmt, Levels) else logarithmic.encode(real, full_scale(params), fmt)


def _values(codes: Tensor, params: Affine, scheme: Scheme) -> Tensor:
    scale = _value_scale(params, scheme)
    match scheme.format:
        case Int():
            return codes * scale if scheme.zero_point is None else (codes - params.zero_point) * scale
        case Float():
            return codes * scale
        case Levels() as fmt:
            return codebook.values(codes, fmt) * scale
        case Log() as fmt:
            return logarithmic.decode(codes, scale, fmt)


def _value_scale(qparams: Affine, scheme: Scheme) -> Tensor:
    return stored_scale(full_scale(qparams), scheme)


def full_minimum(qparams: Affine, scheme: Scheme) -> Tensor | None:
    """Return the minimum of each block as the hardware stores it, or None.

    >>> qparams = Affine(torch.ones(1), torch.zeros(1), None, torch.tensor([-3.0]), torch.tensor([0.5]))
    >>> full_minimum(qparams, Scheme())
    tensor([-1.5000])
    """
    if qparams.minimum is None:
        return None
    return stored_scale(qparams.minimum if qparams.outer_minimum is None else qparams.minimum * qparams.outer_minimum, scheme)


def full_scale(qparams: Affine) -> Tensor:
    """Return the scale of each block: s, or s * outer."""
    return qparams.scale if qparams.outer is None else qparams.scale * qparams.outer


def _reshape_like(x: Tensor, like: Tensor, scheme: Scheme) -> Tensor:
    if x.ndim == like.ndim:
        return x
    shared = scheme.scale.shared
    assert isinstance(shared, PerBlock)  # nothing else splits an axis
    axis = shared.axis % like.ndim
    return x.flatten(axis, axis + 1).narrow(axis, 0, like.shape[axis]) if shared.partial else x.reshape(like.shape)


def _block_views(x: Tensor, qparams: Affine, scheme: Scheme) -> tuple[Tensor, Affine]:
    # Views of both that broadcast: a blocked axis is split into (number of blocks, block size).
    shared = scheme.scale.shared
    if not isinstance(shared, PerBlock) or qparams.scale.ndim == 0:
        return x, qparams
    block_size(scheme, tuple(x.shape))  # raises if the blocks do not divide the axis
    axis, x = shared.axis % x.ndim, filled(x, scheme)
    view = x.reshape(*x.shape[:axis], x.shape[axis] // shared.size, shared.size, *x.shape[axis + 1 :])
    scale, zero_point, outer = (p if p is None or p.ndim == 0 else p.unsqueeze(axis + 1) for p in qparams[:3])
    return view, Affine(scale, zero_point, outer)  # type: ignore[arg-type]


def widened(x: Tensor, scheme: Scheme) -> Tensor:
    """Return x in the dtype of the computation: float32, or float64 for float64 x and codes of more than 24 bits."""
    wide = x.dtype == torch.float64 or (isinstance(scheme.format, Int) and scheme.format.bits > 24)
    return x.double() if wide else x.float()


def implies_clamp(low: float | None, high: float | None, scale: Tensor, zero_point: Tensor, ends: tuple[int, int]) -> bool:
    """Return True if saturating codes do the work of clamp(x, low, high): R(low / s) + z <= qmin and R(high / s) + z >= qmax.

    R rounds half to even.

    Args:
        low: A bound in real units, None for no bound; `high` too.
        scale: Scales s in float32, in real units a code; all of them have to imply the clamp.
        zero_point: Zero points z in codes.
        ends: qmin and qmax.

    >>> s, z = torch.tensor(0.1), torch.tensor(-128)
    >>> [implies_clamp(0.0, high, s, z, (-128, 127)) for high in (None, 25.5, 6.0)]
    [True, True, False]
    """

    def code(bound: float) -> Tensor:
        return round_by(scale.new_tensor(bound) / scale, "half_even") + zero_point

    below = low is None or bool((code(low) <= ends[0]).all())
    return below and (high is None or bool((code(high) >= ends[1]).all()))


def codes_of(scheme: Scheme) -> tuple[int, int]:
    """Return (qmin, qmax) of an Int scheme."""
    fmt = scheme.format
    if not isinstance(fmt, Int):
        raise TypeError(f"affine quantization needs an Int format, got {fmt}")
    return fmt.qmin, fmt.qmax


__all__ = [
    "codes_of",
    "dequantize",
    "fake_quantize",
    "fake_quantized_value",
    "full_minimum",
    "full_scale",
    "implies_clamp",
    "in_range",
    "quantize",
    "spread",
    "step",
    "widened",
]
