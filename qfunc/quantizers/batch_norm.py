"""Arithmetic of a BatchNorm that trains together with a quantized weight.

For an op with weight w and bias b before the BatchNorm, let f = gamma / sqrt(var + eps) and s = beta - mean * f with
the running statistics.  The chip computes  op(x; Q(w f)) + Q(b f + s),  and so do evaluation and training with frozen
statistics.  With the statistics of the batch, training computes

    norm(op(x; Q(w f) / f) + b) + Q(b f + s) - (b f + s),

where norm is the BatchNorm itself, which also updates its running statistics.  If Q is the identity, both equal the
float model.  Only weights are divided, so the division costs no pass over activations.  If the scales of Q can follow f
(`qfunc.quantizers.scale_following`), no division is needed.

Source: Jacob et al., arXiv:1712.05877, section 3.2; Krishnamoorthi, arXiv:1806.08342, section 3.2.2.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

LEAST = 1e-3
"""The smallest |f| at which training with batch statistics quantizes a channel; gamma = 0 is a common initialization."""


def uses_batch(norm: Any) -> bool:
    """Return True if a BatchNorm normalises by the batch: in training, unless it is frozen.

    >>> uses_batch(torch.nn.BatchNorm2d(3)), uses_batch(torch.nn.BatchNorm2d(3).eval())
    (True, False)
    """
    return bool(norm.training) and not getattr(norm, "frozen", False)


def is_tiny(norm: Any) -> bool:
    """Return True if |f| is below LEAST in some channel.

    >>> norm = torch.nn.BatchNorm2d(3)
    >>> before, _ = is_tiny(norm), torch.nn.init.zeros_(norm.weight)
    >>> before, is_tiny(norm)
    (False, True)
    """
    return bool((factor_of(norm).detach().abs() < LEAST).any())


def folded_weight(weight: Tensor, norm: Any, groups: int) -> Tensor:
    """Return w f, with one f per output channel.

    Args:
        groups: 0 if the output channels are the first axis; for a transposed conv, with a weight
            [in, out / groups, ...], its number of groups.

    >>> folded_weight(torch.ones(2, 1), torch.nn.BatchNorm1d(2, eps=0.0).eval(), 0).flatten()
    tensor([1., 1.], grad_fn=<ViewBackward0>)
    """
    return multiply(weight, weight_factor(norm)[0], groups)


def unfolded_weight(quantized: Tensor, weight: Tensor, norm: Any, groups: int) -> Tensor:
    """Return Q(w f) / f if the norm uses the batch, but w itself where |f| is below LEAST; else Q(w f)."""
    return divide(quantized, weight, *weight_factor(norm), groups) if uses_batch(norm) else quantized


def divide(quantized: Tensor, weight: Tensor, factor: Tensor, least: Tensor, groups: int) -> Tensor:
    """Return quantized / factor, but the weight itself in the channels where `least` is True."""
    # In a channel that is nearly off, the chip's smallest scale would otherwise prevent training.
    off = multiply(torch.ones_like(weight), least, groups).bool()
    return torch.where(off, weight, multiply(quantized, factor.reciprocal(), groups))


def sign(norm: Any) -> Tensor:
    """Return the sign of f, which is the sign of gamma."""
    gamma: Tensor = torch.ones_like(norm.running_var) if norm.weight is None else norm.weight.detach()
    return torch.where(gamma < 0, -1.0, 1.0).to(gamma.dtype)


def folded_bias(bias: Tensor | None, norm: Any) -> Tensor:
    """Return b f + s with the running statistics."""
    factor, mean = factor_of(norm), materialize(norm.running_mean)
    centred = mean if bias is None else mean - bias
    shift = -centred * factor
    return shift if norm.bias is None else norm.bias + shift


def unfolded_bias(quantized: Tensor, bias: Tensor | None, norm: Any) -> Tensor | None:
    """Return b if the norm uses the batch, else Q(b f + s)."""
    return bias if uses_batch(norm) else quantized


def normalized(value: Tensor, norm: Any, folded: Tensor, quantized: Tensor) -> Tensor:
    """Return norm(y) + Q(b f + s) - (b f + s) if the norm uses the batch, else y."""
    if not uses_batch(norm):
        return value
    if quantized is folded:
        return norm(value)  # type: ignore[no-any-return]
    error = materialize(quantized - folded)  # otherwise a compiler quantizes the bias once per pixel
    if norm.bias is None:
        return norm(value) + error.reshape(-1, *[1] * (value.ndim - 2))  # type: ignore[no-any-return]
    return functional_call(norm, {"bias": norm.bias + error}, (value,))  # type: ignore[no-any-return]


@torch.library.custom_op("qfunc::snapshot", mutates_args=())
def snapshot(x: Tensor) -> Tensor:
    """Return a copy that compilers do not recompute.

    >>> snapshot(torch.ones(1))
    tensor([1.])
    """
    return x.clone()


@snapshot.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


snapshot.register_autograd(lambda ctx, grad: grad)


def materialize(x: Tensor) -> Tensor:
    """Return x; a compiler computes it here, and only once.

    Use it for a buffer that this forward updates later, and for values per channel.

    >>> materialize(torch.ones(1))
    tensor([1.])
    """
    return snapshot(x) if torch.compiler.is_compiling() else x


def factor_of(norm: Any) -> Tensor:
    """Return f with the running statistics."""
    factor = torch.rsqrt(materialize(norm.running_var) + norm.eps)
    return factor if norm.weight is None else norm.weight * factor


def weight_factor(norm: Any) -> tuple[Tensor, Tensor]:
    """Return (f as the factor of a weight, the channels in which |f| is below LEAST)."""
    factor = factor_of(norm)
    least = factor.detach().abs() < LEAST
    if uses_batch(norm):
        # Below LEAST the factor is a constant, because f itself is not used and must get no gradient.
        factor = torch.where(least, torch.where(factor < 0, -LEAST, LEAST), factor)
    return factor, least


def multiply(weight: Tensor, factor: Tensor, groups: int) -> Tensor:
    """Return the weight times one factor for each output channel; groups as in `folded_weight`."""
    if not groups:
        return weight * factor.reshape(-1, *[1] * (weight.ndim - 1))
    split = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
    return (split * factor.reshape(groups, 1, -1, *[1] * (weight.ndim - 2))).reshape(weight.shape)
