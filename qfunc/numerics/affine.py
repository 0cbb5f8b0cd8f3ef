"""Affine quantization: one quantize and one dequantize for every granularity."""

from __future__ import annotations

import torch
from torch import Tensor

from qfunc.numerics._grads import straight_through
from qfunc.numerics.qparams import Affine
from qfunc.numerics.rounding import round_by
from qfunc.specs import Int, PerBlock, Scheme


def quantize(x: Tensor, qparams: Affine, scheme: Scheme, noise: Tensor | None = None) -> Tensor:
    """The codes of x: q = clamp(R(x / s) + z, qmin, qmax).

    Args:
        x: Real units, any shape; bfloat16 and float16 are computed in float32.
        qparams: Scale s in real units a code, zero point z in codes.
        scheme: Its format gives qmin and qmax, its rounding R; `division=False` computes x * (1/s).
        noise: For stochastic rounding.
    Returns:
        Integer values in floating point, the shape of x; NaN stays NaN, infinities saturate.
    Source: ONNX QuantizeLinear.

    >>> q = quantize(torch.tensor([-9.0, 0.25, 0.75]), Affine(torch.tensor(0.5), torch.tensor(0.0)), Scheme())
    >>> q.tolist()
    [-18.0, 0.0, 2.0]
    """
    low, high = codes_of(scheme)
    return _unclamped(x, qparams, scheme, low, noise).clamp(low, high)


def _unclamped(x: Tensor, qparams: Affine, scheme: Scheme, low: int, noise: Tensor | None = None) -> Tensor:
    # R(x / s) + z; only rounding of the level index needs to know where the codes begin.
    wide = widened(x, scheme)
    scale, zero = spread(qparams.scale, x, scheme), spread(qparams.zero_point, x, scheme)
    real = wide / scale if scheme.division else wide * (1 / scale)
    first = low - zero if scheme.rounding == "half_even_on_index" else low
    return round_by(real, scheme.rounding, first, noise) + zero


def dequantize(codes: Tensor, qparams: Affine, scheme: Scheme) -> Tensor:
    """The real values of codes: x_hat = (q - z) * s.

    >>> dequantize(torch.tensor([3.0]), Affine(torch.tensor(0.5), torch.tensor(1.0)), Scheme()).tolist()
    [1.0]
    """
    scale, zero = spread(qparams.scale, codes, scheme), spread(qparams.zero_point, codes, scheme)
    return (codes - zero) * scale


def fake_quantize(x: Tensor, qparams: Affine, scheme: Scheme) -> Tensor:
    """dequantize(quantize(x)) in the dtype of x; its gradient passes straight through inside the range.

    d x_hat / d x = 1 where qmin <= R(x/s) + z <= qmax, else 0.  Qparams get no gradient.
    Source: Bengio et al., arXiv:1308.3432 (straight-through estimator).

    >>> fake_quantize(torch.tensor([0.3]), Affine(torch.tensor(0.25), torch.tensor(0.0)), Scheme()).tolist()
    [0.25]
    """
    if not torch.is_grad_enabled():  # not x.requires_grad, which is False inside vmap under grad
        return dequantize(quantize(x, qparams, scheme), qparams, scheme).to(x.dtype)
    low, high = codes_of(scheme)
    codes = _unclamped(x.detach(), qparams, scheme, low)
    value = dequantize(codes.clamp(low, high), qparams, scheme).to(x.dtype)
    return straight_through(x, value, (codes >= low) & (codes <= high))


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


def spread(parameter: Tensor, x: Tensor, scheme: Scheme) -> Tensor:
    """A qparam at a shape that broadcasts against x; only blocks need more than broadcasting."""
    shared = scheme.scale.shared
    if not isinstance(shared, PerBlock) or parameter.ndim == 0:
        return parameter
    return parameter.repeat_interleave(shared.size, shared.axis)


__all__ = ["codes_of", "dequantize", "fake_quantize", "quantize", "spread", "widened"]
