"""A BatchNorm that trains beside a quantized weight: the arithmetic that stands in the graph in its place.

Behind an op with weight w and bias b, with f = gamma / sqrt(var + eps) and s = beta - mean * f of the running
statistics, the chip computes  op(x; Q(w f)) + Q(b f + s).  That is what evaluation and training with frozen
statistics compute.  With the batch's statistics, training computes

    norm(op(x; Q(w f) / f) + b) + Q(b f + s) - (b f + s),

where norm is the BatchNorm itself, which also updates its running statistics.  If Q changes nothing, both are the
float model.  The division is one of weights, so it costs no pass over activations.  Where the scales of Q can follow f
(`qfunc.quantizers.scale_following`), there is nothing to divide.

Source: Jacob et al., arXiv:1712.05877, section 3.2; Krishnamoorthi, arXiv:1806.08342, section 3.2.2.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

LEAST = 1e-3
"""The least |f| at which training with batch statistics quantizes a channel: where gamma = 0, a usual start."""


def uses_batch(norm: Any) -> bool:
    """Return True if a BatchNorm normalises by the batch: in training, unless it is frozen.

    >>> uses_batch(torch.nn.BatchNorm2d(3)), uses_batch(torch.nn.BatchNorm2d(3).eval())
    (True, False)
    """
    return bool(norm.training) and not getattr(norm, "frozen", False)


def is_tiny(norm: Any) -> bool:
    """Return True if some |f| is below the least.

    >>> norm = torch.nn.BatchNorm2d(3)
    >>> before, _ = is_tiny(norm), torch.nn.init.zeros_(norm.weight)
    >>> before, is_tiny(norm)
    (False, True)
    """
    return bool((factor_of(norm).detach().abs() < LEAST).any())


def folded_weight(weight: Tensor, norm: Any, groups: int) -> Tensor:
    """w f, one f for each output channel.

    Args:
        groups: 0 if the output channels are the first axis; of a transposed conv, whose weight is
            [in, out / groups, ...], its groups.

    >>> folded_weight(torch.ones(2, 1), torch.nn.BatchNorm1d(2, eps=0.0).eval(), 0).flatten()
    tensor([1., 1.], grad_fn=<ViewBackward0>)
    """
    return multiply(weight, weight_factor(norm)[0], groups)


def unfolded_weight(quantized: Tensor, weight: Tensor, norm: Any, groups: int) -> Tensor:
    """Q(w f) / f where the norm uses the batch, and w itself where |f| is below the least; else Q(w f)."""
    return divide(quantized, weight, *weight_factor(norm), groups) if uses_batch(norm) else quantized


def divide(quantized: Tensor, weight: Tensor, factor: Tensor, least: Tensor, groups: int) -> Tensor:
    """quantized / factor, and the weight itself in the channels of which `least` is True."""
    # No chip's least scale may keep a channel from training that is all but switched off.
    off = multiply(torch.ones_like(weight), least, groups).bool()
    return torch.where(off, weight, multiply(quantized, factor.reciprocal(), groups))


def sign(norm: Any) -> Tensor:
    """Return the sign of f, which is that of gamma."""
    gamma: Tensor = torch.ones_like(norm.running_var) if norm.weight is None else norm.weight.detach()
    return torch.where(gamma < 0, -1.0, 1.0).to(gamma.dtype)


def folded_bias(bias: Tensor | None, norm: Any) -> Tensor:
    """b f + s, of the running statistics."""
    factor, mean = factor_of(norm), materialize(norm.running_mean)
    held = mean if bias is None else mean - bias
    shift = -held * factor
    return shift if norm.bias is None else norm.bias + shift


def unfolded_bias(quantized: Tensor, bias: Tensor | None, norm: Any) -> Tensor | None:
    """b where the norm uses the batch, else Q(b f + s)."""
    return bias if uses_batch(norm) else quantized


def normalized(value: Tensor, norm: Any, folded: Tensor, quantized: Tensor) -> Tensor:
    """Return norm(y) + Q(b f + s) - (b f + s) where the norm uses the batch, else y."""
    if not uses_batch(norm):
        return value
    if quantized is folded:
        return norm(value)  # type: ignore[no-any-return]
    error = materialize(quantized - folded)  # else a compiler quantizes the bias once for each pixel
    if norm.bias is None:
        return norm(value) + error.reshape(-1, *[1] * (value.ndim - 2))  # type: ignore[no-any-return]
    return functional_call(norm, {"bias": norm.bias + error}, (value,))  # type: ignore[no-any-return]


@torch.library.custom_op("qfunc::snapshot", mutates_args=())
def snapshot(x: Tensor) -> Tensor:
    """Return a copy that no compiler computes again.

    >>> snapshot(torch.ones(1))
    tensor([1.])
    """
    return x.clone()


@snapshot.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


snapshot.register_autograd(lambda ctx, grad: grad)


def materialize(x: Tensor) -> Tensor:
    """Return x itself, which a compiler computes here and once: a buffer before this forward updates it, a value of each channel.

    >>> materialize(torch.ones(1))
    tensor([1.])
    """
    return snapshot(x) if torch.compiler.is_compiling() else x


def factor_of(norm: Any) -> Tensor:
    """f, of the running statistics."""
    factor = torch.rsqrt(materialize(norm.running_var) + norm.eps)
    return factor if norm.weight is None else norm.weight * factor


def weight_factor(norm: Any) -> tuple[Tensor, Tensor]:
    """f as a weight is multiplied by it, and where a norm that uses the batch has |f| below the least."""
    factor = factor_of(norm)
    least = factor.detach().abs() < LEAST
    if uses_batch(norm):
        # Below the least, f counts as constant: its gradient would be of a number that is not used.
        factor = torch.where(least, torch.where(factor < 0, -LEAST, LEAST), factor)
    return factor, least


def multiply(weight: Tensor, factor: Tensor, groups: int) -> Tensor:
    """Return the weight times one factor for each output channel; groups as in `folded_weight`."""
    if not groups:
        return weight * factor.reshape(-1, *[1] * (weight.ndim - 1))
    split = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
    return (split * factor.reshape(groups, 1, -1, *[1] * (weight.ndim - 2))).reshape(weight.shape)


__all__ = ["folded_bias", "folded_weight", "normalized", "unfolded_bias", "unfolded_weight", "uses_batch"]
