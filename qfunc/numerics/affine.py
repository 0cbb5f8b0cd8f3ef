"""Quantization: one quantize and one dequantize for every format and granularity."""

from __future__ import annotations

import torch
from torch import Tensor

from qfunc.numerics import codebook, logarithmic, minifloat
from qfunc.numerics._grads import straight_through
from qfunc.numerics.qparams import Affine, spread
from qfunc.numerics.rounding import round_by
from qfunc.specs import Float, Int, Levels, Log, Scheme


def quantize(x: Tensor, qparams: Affine, scheme: Scheme, noise: Tensor | None = None) -> Tensor:
    """The codes of x: q = clamp(R(x / s) + z, qmin, qmax) for integers.

    For `Float` the code is the element's value, R(x / s); for `Levels` the index of the nearest level to
    x / s; for `Log` the sign-magnitude code of x.

    Args:
        x: Real units, any shape; bfloat16 and float16 are computed in float32.
        qparams: Scale s in real units a code, zero point z in codes.
        scheme: Its format gives qmin and qmax, its rounding R; `division=False` computes x * (1/s), and
            `ZeroPoint(added="before")` computes R(x / s + z).
        noise: The shape of x, uniform in [0, 1), for stochastic rounding.
    Returns:
        Codes in floating point, the shape of x; NaN stays NaN, infinities saturate.
    Source: ONNX QuantizeLinear.

    >>> q = quantize(torch.tensor([-9.0, 0.25, 0.75]), Affine(torch.tensor(0.5), torch.tensor(0.0)), Scheme())
    >>> q.tolist()
    [-18.0, 0.0, 2.0]
    """
    fmt, wide = scheme.format, widened(x, scheme)
    match fmt:
        case Int():
            return _unclamped(wide, qparams, scheme, noise).clamp(fmt.qmin, fmt.qmax)
        case Float():
            return minifloat.nearest(_ratio(wide, qparams, scheme), fmt, scheme.rounding, noise)
        case Levels():
            return codebook.index(_ratio(wide, qparams, scheme), fmt)
        case Log():
            return logarithmic.encode(wide, step(qparams, wide, scheme), fmt)


def dequantize(codes: Tensor, qparams: Affine, scheme: Scheme) -> Tensor:
    """The real values of codes: x_hat = (q - z) * s.

    >>> from qfunc.specs import ZeroPoint
    >>> affine = Scheme(zero_point=ZeroPoint())
    >>> dequantize(torch.tensor([3.0]), Affine(torch.tensor(0.5), torch.tensor(1.0)), affine).tolist()
    [1.0]
    """
    scale, fmt = step(qparams, codes, scheme), scheme.format
    match fmt:
        case Int():
            return codes * scale if scheme.zero_point is None else (codes - spread(qparams.zero_point, codes, scheme)) * scale
        case Float():
            return codes * scale
        case Levels():
            return codebook.values(codes, fmt) * scale
        case Log():
            return logarithmic.decode(codes, scale, fmt)


def fake_quantize(x: Tensor, qparams: Affine, scheme: Scheme) -> Tensor:
    """dequantize(quantize(x)) in the dtype of x; its gradient passes straight through inside the range.

    d x_hat / d x = 1 where qmin <= R(x/s) + z <= qmax, else 0; for other formats where x lies between the
    smallest and the largest value.  Qparams get no gradient.

    Source: Bengio et al., arXiv:1308.3432 (straight-through estimator).

    >>> fake_quantize(torch.tensor([0.3]), Affine(torch.tensor(0.25), torch.tensor(0.0)), Scheme()).tolist()
    [0.25]
    """
    if not torch.is_grad_enabled():  # not x.requires_grad, which is False inside vmap under grad
        return dequantize(quantize(x, qparams, scheme), qparams, scheme).to(x.dtype)
    qparams = Affine(*(p if p is None else p.detach() for p in qparams))
    value = dequantize(quantize(x.detach(), qparams, scheme), qparams, scheme).to(x.dtype)
    return straight_through(x, value, inside(x.detach(), qparams, scheme))


def inside(x: Tensor, qparams: Affine, scheme: Scheme) -> Tensor:
    """Where x is not clipped: a boolean tensor of its shape.

    >>> inside(torch.tensor([63.6, 63.8]), Affine(torch.tensor(0.5), torch.tensor(0.0)), Scheme()).tolist()
    [True, False]
    """
    fmt, wide = scheme.format, widened(x, scheme)
    match fmt:
        case Int():
            codes = _unclamped(wide, qparams, scheme)
            return (codes >= fmt.qmin) & (codes <= fmt.qmax)
        case Float():
            return _ratio(wide, qparams, scheme).abs() <= minifloat.largest(fmt)
        case Levels():
            real = _ratio(wide, qparams, scheme)
            return (real >= fmt.values[0]) & (real <= fmt.values[-1])
        case Log():
            top = torch.exp2(torch.tensor(((1 << fmt.magnitude_bits) - 1) / fmt.steps_per_octave, dtype=torch.float64))
            return wide.abs() <= step(qparams, wide, scheme) * top.to(x.device)


def step(qparams: Affine, x: Tensor, scheme: Scheme) -> Tensor:
    """The scale of every element: s, or s * outer where the scheme has two levels; broadcasts against x."""
    scale = qparams.scale if qparams.outer is None else qparams.scale * qparams.outer
    return spread(scale, x, scheme)


def _ratio(x: Tensor, qparams: Affine, scheme: Scheme) -> Tensor:
    scale = step(qparams, x, scheme)
    return x / scale if scheme.division else x * (1 / scale)


def _unclamped(x: Tensor, qparams: Affine, scheme: Scheme, noise: Tensor | None = None) -> Tensor:
    # R(x / s) + z; only rounding of the level index needs to know where the codes begin.
    real, low = _ratio(x, qparams, scheme), codes_of(scheme)[0]
    if scheme.zero_point is None:
        return round_by(real, scheme.rounding, low, noise)
    zero = spread(qparams.zero_point, x, scheme)
    if scheme.zero_point.added == "before":
        return round_by(real + zero, scheme.rounding, low, noise)
    first = low - zero if scheme.rounding == "half_even_on_index" else low
    return round_by(real, scheme.rounding, first, noise) + zero


def widened(x: Tensor, scheme: Scheme) -> Tensor:
    """x in the dtype of the computation: float32, or float64 where codes of more than 24 bits need it."""
    wide = x.dtype == torch.float64 or (isinstance(scheme.format, Int) and scheme.format.bits > 24)
    return x.double() if wide else x.float()


def codes_of(scheme: Scheme) -> tuple[int, int]:
    """(qmin, qmax) of an Int scheme."""
    fmt = scheme.format
    if not isinstance(fmt, Int):
        raise TypeError(f"affine quantization needs an Int format, got {fmt}")
    return fmt.qmin, fmt.qmax


__all__ = ["codes_of", "dequantize", "fake_quantize", "inside", "quantize", "spread", "step", "widened"]
