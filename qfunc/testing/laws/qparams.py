"""Assert that qparams suit a scheme, and that two qparams agree."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from attrs import evolve
from torch import Tensor

from qfunc.numerics import minifloat
from qfunc.numerics.qparams import Affine, from_range, observed, qparams_shape
from qfunc.specs import FLOAT32, Int, Log, PerBlock, PerChannel, PerTensor, PerToken, Scale, Scheme

TOLERANCE = 2.0**-18
"""Relative tolerance of scales: reordered sums of some tens of float32 numbers, 2^-24 for each addition."""


def feasible(found: Affine, scheme: Scheme, shape: tuple[int, ...], when: str) -> None:
    """Assert that qparams are float32, of the right shape, and allowed by the scheme."""
    scale, zero, outer = found.scale, found.zero_point, found.outer
    rule, wanted, magnitude = scheme.scale, qparams_shape(scheme, shape), found.scale.abs()
    assert scale.dtype == zero.dtype == torch.float32, f"{when}: qparams are {scale.dtype} and {zero.dtype}, not float32"
    assert tuple(scale.shape) == tuple(zero.shape) == wanted, f"{when}: shapes {tuple(scale.shape)}, not {wanted}"
    if rule.integers is not None:
        within = (scale >= rule.integers.qmin) & (scale <= rule.integers.qmax) & (scale == scale.round())
        assert bool(within.all()), f"{when}: {scale[~within][0].item()!r} is no integer of {rule.integers!r}"
        assert outer is not None, f"{when}: no outer scale"
        assert bool(outer.isfinite().all()), f"{when}: the outer scale is not finite"
        return
    constant = (scale == 0) & scheme.minimum  # blocks of one value
    good = scale.isfinite() & (constant | (scale != 0 if rule.signed else scale > 0))
    assert bool(good.all()), (
        f"{when}: scale {scale[~good][0].item()!r} is not finite and {'not 0' if rule.signed else 'above 0'}"
    )
    first, last, fmt = 0, 0, scheme.format
    if scheme.zero_point is not None and isinstance(fmt, Int):
        value = scheme.zero_point.value
        first, last = (fmt.qmin, fmt.qmax) if value is None else (value, value)
    codes = (zero >= first) & (zero <= last) & (zero == zero.round())
    assert bool(codes.all()), f"{when}: zero point {zero[~codes][0].item()!r} is not a code in [{first}, {last}]"
    assert (outer is None) == (rule.within is None), f"{when}: two levels of scales are not those of the scheme"
    assert outer is None or bool((outer.isfinite() & (outer > 0)).all()), f"{when}: the outer scale is not finite and above 0"
    if isinstance(fmt, Log):
        return
    bounds = [b for b in (rule.low, rule.high) if b is not None]
    assert not bounds or bool((magnitude == magnitude.clamp(rule.low, rule.high)).all()), f"{when}: a scale out of bounds"
    powers = not rule.power_of_two or bool((torch.frexp(magnitude)[0] == 0.5).all())
    assert powers, f"{when}: a scale that is not a power of two"
    any_scale = rule.format == FLOAT32 or rule.power_of_two or rule.rounded == "after"
    representable = any_scale or same(magnitude, minifloat.nearest(magnitude, rule.format))
    assert representable, f"{when}: a scale that {rule.format} does not represent"


def plain(scheme: Scheme, shared: PerTensor | PerChannel | PerBlock | PerToken) -> Scheme:
    """Return the scheme without rules that bound qparams or make them discontinuous, so that results can be close."""
    scale = Scale(shared, divisor=scheme.scale.divisor, signed=False)
    zero = scheme.zero_point if scheme.zero_point is None else evolve(scheme.zero_point, nudge="low")
    return evolve(scheme, scale=scale, zero_point=zero)


def cancellation_error(batches: Iterable[Tensor], scheme: Scheme) -> Tensor:
    """Return the cancellation error allowed to averages of ranges: 2^-20 of the scale of the largest magnitude."""
    tops = [torch.maximum(-low, high) for low, high in (observed(x, scheme) for x in batches)]
    top = torch.stack(tops).amax(0)
    return from_range(-top, top, scheme).scale * 2.0**-20


def far_from_replaced(batches: Iterable[Tensor], scheme: Scheme, nothing: Tensor) -> Tensor:
    """Return where no range down to 1/512 of that of a batch has a scale so small that `nothing` replaces it.

    A search over narrower ranges, down to 1/20 in `Mse`, of values times 1/8 does not meet a replaced scale there.
    """
    far = torch.ones_like(nothing, dtype=torch.bool)
    for x in batches:
        top = torch.maximum(*(end.abs() for end in observed(x, scheme)))
        far &= (top == 0) | (from_range(-top / 512, top / 512, scheme).scale != nothing)
    return far


def close(found: Affine, wanted: Affine, scheme: Scheme, what: str, lost: Tensor | float = 0.0) -> None:
    """Assert that scales agree within TOLERANCE (for Log formats, within one step), zero points within one code of a tie.

    `lost` is an additional absolute error allowed to the scales.
    """
    fmt = scheme.format
    far = 2.0 ** (1 / fmt.steps_per_octave) - 1 if isinstance(fmt, Log) else 0.0
    bound = (TOLERANCE + far) * torch.maximum(found.scale.abs(), wanted.scale.abs()) + lost
    codes = 1 + (lost / wanted.scale * (fmt.qmax - fmt.qmin) if isinstance(fmt, Int) else 0)
    wrong = ~((found.scale - wanted.scale).abs() <= bound) | ~((found.zero_point - wanted.zero_point).abs() <= codes)
    if bool(wrong.any()):
        at = tuple(int(i) for i in wrong.nonzero()[0])
        values = [p[at].item() for p in (found.scale, found.zero_point, wanted.scale, wanted.zero_point)]
        raise AssertionError("{}: scale {!r}, zero point {:g}, wanted {!r}, {:g}".format(what, *values))


def leaves(state: Any) -> list[Any]:
    """Return the tensors of nested tuples."""
    return [leaf for part in state for leaf in leaves(part)] if isinstance(state, tuple | list) else [state]


def same(a: Any, b: Any) -> bool:
    """Return True if the tensors of nested tuples are equal in values (NaN equals NaN), shapes and dtypes."""
    pairs = list(zip(leaves(a), leaves(b), strict=True))
    return all(
        x is y or (x.dtype == y.dtype and x.shape == y.shape and bool(((x == y) | (x.isnan() & y.isnan())).all()))
        for x, y in pairs
    )
