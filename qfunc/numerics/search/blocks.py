"""The qparams and codes of a tensor whose blocks have minimums, or integers as scales: those of llama.cpp."""

from __future__ import annotations

import torch
from torch import Tensor

from qfunc.numerics.affine import full_minimum, full_scale
from qfunc.numerics.qparams import Affine
from qfunc.numerics.search import minimums, scales
from qfunc.numerics.search.steps import half, nearest, quotient
from qfunc.specs import Int, PerBlock, Scheme


def qparams_of(x: Tensor, scheme: Scheme) -> Affine:
    """Return the qparams of x [..., K] in a scheme with minimums or integers of scales, in blocks of its last axis.

    >>> from qfunc.specs.formats import GGUF_Q4_1
    >>> qparams_of(torch.arange(32.0)[None] - 1, GGUF_Q4_1).minimum
    tensor([[-1.]])
    """
    groups = _groups(x, scheme)
    bits, integers = _format(scheme).bits, scheme.scale.integers
    if integers is None:
        scale, minimum = minimums.of_ends(groups, bits)
        return Affine(scale, torch.zeros_like(scale), None, minimum)
    if not scheme.minimum:
        found, _ = scales.search(groups, bits)
        integer, outer = _signed(found, integers, scheme)
        return Affine(integer, torch.zeros_like(integer), outer)
    scale, below, _ = minimums.search(groups, bits)
    integer, outer = _unsigned(scale, integers, scheme)
    lower, outer_minimum = _unsigned(below, integers, scheme)
    return Affine(integer, torch.zeros_like(integer), outer, -lower, outer_minimum)


def codes_of(x: Tensor, qparams: Affine, scheme: Scheme) -> Tensor:
    """Return the codes of x [..., K] as llama.cpp stores them: where the scale of a block is 0, those of the search.

    >>> from qfunc.specs.formats import GGUF_Q4_1
    >>> x = torch.arange(32.0)[None] * 3
    >>> codes_of(x, qparams_of(x, GGUF_Q4_1), GGUF_Q4_1)[0, :5]
    tensor([0., 0., 1., 1., 2.])
    """
    codes, nothing = nearest_codes(x, qparams, scheme), full_scale(qparams) == 0
    if scheme.scale.integers is None or not bool(nothing.any()):
        return codes
    groups, fmt = _groups(x, scheme), _format(scheme)
    found = minimums.search(groups, fmt.bits)[2] if scheme.minimum else scales.search(groups, fmt.bits)[1]
    if not scheme.minimum and fmt.bits != 3:
        found = torch.where(_of_zeros(qparams.scale, scheme)[..., None], float(fmt.qmin), found)
    return _with_nan(torch.where(nothing[..., None], found, codes.reshape(groups.shape)), x)


def nearest_codes(x: Tensor, qparams: Affine, scheme: Scheme) -> Tensor:
    """Return the codes of x [..., K] with the nearest values; where the scale of a block is 0, any.

    >>> from qfunc.specs.formats import GGUF_Q4_1
    >>> x = torch.arange(32.0)[None] * 3
    >>> nearest_codes(x, qparams_of(x, GGUF_Q4_1), GGUF_Q4_1)[0, :5]
    tensor([0., 0., 1., 1., 2.])
    """
    groups, fmt = _groups(x, scheme), _format(scheme)
    if scheme.scale.integers is None:
        assert qparams.minimum is not None  # schemes have one or the other
        return _with_nan(minimums.codes_of_ends(groups, qparams.scale, qparams.minimum, fmt.bits), x)
    scale, minimum = full_scale(qparams), full_minimum(qparams, scheme)
    offsets = groups if minimum is None else groups - minimum[..., None]
    return _with_nan(nearest(offsets / scale[..., None]).clamp(fmt.qmin, fmt.qmax), x)


def _with_nan(codes: Tensor, x: Tensor) -> Tensor:
    # Codes in groups, in the shape of x; that of NaN is NaN.
    return torch.where(x.isnan(), torch.nan, codes.reshape(x.shape))


def _signed(scale: Tensor, integers: Int, scheme: Scheme) -> tuple[Tensor, Tensor]:
    # c and d of scales: the first of the largest magnitude has the lowest c.
    outer = _super(scale, scheme)
    largest = outer.gather(-1, outer.abs().argmax(-1, keepdim=True))
    # Bytes of zeros are 0 of c in Q6_K, and the lowest c in Q3_K.
    three = _format(scheme).bits == 3
    zero = largest == 0 if three else largest.abs() < torch.tensor(scales.NOTHING)
    steps = quotient(float(integers.qmin), largest)
    integer = torch.where(zero, float(integers.qmin * three), nearest(steps * outer).clamp(integers.qmin, integers.qmax))
    number = torch.where(zero, 0.0, half(quotient(1.0, steps)))
    return integer.reshape(scale.shape), number.expand_as(outer).reshape(scale.shape)


def _unsigned(scale: Tensor, integers: Int, scheme: Scheme) -> tuple[Tensor, Tensor]:
    # c and d of scales that are not negative, or of negative minimums: the largest has the highest c.
    outer = _super(scale, scheme)
    largest = outer.amax(-1, keepdim=True).clamp(min=0) + 0.0  # 0 of any sign is +0
    steps = torch.where(largest > 0, quotient(float(integers.qmax), largest), 0.0)
    integer = nearest(steps * outer).clamp(max=integers.qmax)
    number = half(largest / torch.full_like(largest, integers.qmax))
    return integer.reshape(scale.shape), number.expand_as(outer).reshape(scale.shape)


def _of_zeros(integer: Tensor, scheme: Scheme) -> Tensor:
    # True for the blocks of a super-block whose integers are all 0.
    outer = _super(integer, scheme) == 0
    return outer.all(-1, keepdim=True).expand_as(outer).reshape(integer.shape)


def _super(scale: Tensor, scheme: Scheme) -> Tensor:
    # [..., blocks] -> [..., super-blocks, blocks of one].
    shared, within = scheme.scale.shared, scheme.scale.within
    around = None if within is None else within.shared
    assert isinstance(shared, PerBlock)  # Scale requires both
    assert isinstance(around, PerBlock)
    return scale.reshape(*scale.shape[:-1], -1, around.size // shared.size)


def _groups(x: Tensor, scheme: Scheme) -> Tensor:
    shared = scheme.scale.shared
    assert isinstance(shared, PerBlock)  # Scheme requires it
    return x.detach().float().reshape(*x.shape[:-1], -1, shared.size)


def _format(scheme: Scheme) -> Int:
    assert isinstance(scheme.format, Int)  # Scheme requires it
    return scheme.format
