"""Running moments: count, mean, squared deviations and range, for the estimators that use mean and std."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from qfunc.estimators.minmax import nothing_seen
from qfunc.numerics.qparams import blocks, observed
from qfunc.specs import Scheme


class Moments(NamedTuple):
    """The number of values of a block (int64 []), mean and sum of (x - mean)^2 in float64, low and high in float32."""

    number: Tensor
    mean: Tensor
    squares: Tensor
    low: Tensor
    high: Tensor


def no_moments(scheme: Scheme, like: Tensor) -> Moments:
    """Return the moments of no values: the identity of `merged`; the values of `like` are not read."""
    low, high = nothing_seen(scheme, like)
    zero = torch.zeros_like(low, dtype=torch.float64)
    return Moments(torch.zeros((), dtype=torch.int64, device=like.device), zero, zero, low, high)


def moments(x: Tensor, scheme: Scheme) -> Moments:
    """Return the moments of a non-empty tensor, in two passes: the mean, then the squared deviations from it.

    >>> moments(torch.tensor([1.0, 2.0, 6.0]), Scheme()).squares.item()
    14.0
    """
    low, high = observed(x, scheme)
    ratio, unit, axes = in_units(x, low, high, scheme)
    mean = ratio.mean(axes, keepdim=True)
    squares = ratio.sub_(mean).square_().sum(axes)
    number = torch.full((), ratio.numel() // max(unit.numel(), 1), dtype=torch.int64, device=x.device)  # with filled zeros
    # Rounding may leave the mean of equal values one ulp off.
    inside = (mean.reshape(low.shape).double() * unit).clamp(low.double(), high.double())
    return Moments(number, inside, squares.double() * unit * unit, low, high)


def merged(a: Moments, b: Moments) -> Moments:
    """Return the moments of the values of both.

    With n = n_a + n_b and d = mean_b - mean_a: mean = mean_a + d n_b/n, squares = squares_a + squares_b +
    d^2 n_a n_b/n.

    Source: Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979.

    >>> merged(moments(torch.tensor([1.0]), Scheme()), moments(torch.tensor([2.0, 6.0]), Scheme())).squares.item()
    14.0
    """
    number = a.number + b.number
    share, difference = b.number.double() / number.clamp(min=1), b.mean - a.mean
    squares = a.squares + b.squares + difference * difference * (a.number * share)
    mean = a.mean + difference * share
    return Moments(number, mean, squares, torch.minimum(a.low, b.low), torch.maximum(a.high, b.high))


def mean_and_std(state: Moments) -> tuple[Tensor, Tensor]:
    """Return (mean, sample std) in float64; the std of a single value is 0, and both are 0 before any data.

    >>> [t.item() for t in mean_and_std(moments(torch.tensor([1.0, 2.0, 6.0]), Scheme()))]
    [3.0, 2.6457513110645907]
    """
    return state.mean, (state.squares / (state.number - 1).clamp(min=1)).sqrt()


def in_units(x: Tensor, low: Tensor, high: Tensor, scheme: Scheme) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    """Return (x / unit split into blocks, unit, the axes inside a block): a new tensor of magnitudes up to 2.

    unit is the power of two below max(|low|, |high|), so that the division is exact and sums and squares
    neither overflow nor underflow in float32.  unit is float64, in the shape of low.

    >>> in_units(torch.tensor([1.5, -6.0]), torch.tensor(-6.0), torch.tensor(1.5), Scheme())[0].tolist()
    [0.375, -1.5]
    """
    exponent = torch.frexp(torch.maximum(-low, high))[1].clamp(min=-125)
    unit = torch.ldexp(torch.ones_like(low), exponent - 1)
    split, axes = blocks(x.detach(), scheme)
    wide = split if split.dtype == torch.float64 else split.float()
    whole = unit if unit.ndim == 0 else unit.reshape([n for length in unit.shape for n in (length, 1)])
    return wide / whole, unit.double(), axes
