"""Granularities are loops of per-tensor quantization."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from qfunc.errors import SpecError
from qfunc.numerics import Affine, fake_quantize, quantize
from qfunc.numerics.qparams import block_size, blocks, qparams_shape
from qfunc.specs import Int, PerBlock, PerChannel, PerTensor, PerToken, Scale, Scheme, ZeroPoint
from qfunc.testing import strategies

SHAPE = (2, 3, 10)
PER_TENSOR = Scheme(Int(4), zero_point=ZeroPoint())


def scheme_of(shared: object) -> Scheme:
    return Scheme(Int(4), Scale(shared), zero_point=ZeroPoint())  # type: ignore[arg-type]


def random(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def qparams_for(scheme: Scheme, shape: tuple[int, ...]) -> Affine:
    wanted = qparams_shape(scheme, shape)
    return Affine(random(wanted, 1).abs() / 4 + 0.01, (random(wanted, 2) * 3).round().clamp(-8, 7))


@given(strategies.granularities(shape=SHAPE), st.integers(0, 99))
def test_shared_scales_are_a_loop_over_the_blocks(shared: object, seed: int) -> None:
    """Cutting x by hand and quantizing every piece per tensor gives the same codes."""
    scheme, x = scheme_of(shared), random(SHAPE, seed)
    sizes, qparams = block_size(scheme, SHAPE), qparams_for(scheme, SHAPE)

    found, expected = quantize(x, qparams, scheme), torch.empty(SHAPE)

    for index in itertools.product(*(range(-(-n // b)) for n, b in zip(SHAPE, sizes, strict=True))):
        piece = tuple(slice(i * b, (i + 1) * b) for i, b in zip(index, sizes, strict=True))
        at = () if qparams.scale.ndim == 0 else index
        expected[piece] = quantize(x[piece], Affine(qparams.scale[at], qparams.zero_point[at]), PER_TENSOR)
    assert torch.equal(found, expected)


@given(strategies.granularities(shape=SHAPE))
def test_blocks_reduce_to_the_shape_of_the_qparams(shared: object) -> None:
    """Reducing the returned axes of the view gives one value a scale, in the scales' places."""
    scheme, x = scheme_of(shared), random(SHAPE, 5)
    view, axes = blocks(x, scheme)

    assert view.data_ptr() == x.data_ptr() or (view.numel() > x.numel() and scheme.scale.shared.partial)
    assert view.amax(axes).shape == qparams_shape(scheme, SHAPE)
    assert view.count_nonzero() == x.count_nonzero()


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_permuting_channels_commutes(axis: int) -> None:
    """quantize(x[p]) with scale[p] is quantize(x)[p]."""
    scheme, x = scheme_of(PerChannel(axis)), random(SHAPE, 3)
    qparams = qparams_for(scheme, SHAPE)
    order = torch.randperm(SHAPE[axis], generator=torch.Generator().manual_seed(4))

    moved = Affine(*(t.index_select(axis, order) for t in qparams[:2]))

    assert torch.equal(
        quantize(x.index_select(axis, order), moved, scheme), quantize(x, qparams, scheme).index_select(axis, order)
    )


def test_shapes_of_every_granularity() -> None:
    """[6, 64]: [], [6, 1], [1, 64], [6, 2] and [6, 1]."""
    kinds = (PerTensor(), PerChannel(0), PerChannel(1), PerBlock(1, 32), PerToken())

    assert [qparams_shape(scheme_of(k), (6, 64)) for k in kinds] == [(), (6, 1), (1, 64), (6, 2), (6, 1)]


@pytest.mark.parametrize("shared", [PerChannel(3), PerChannel("channel"), PerBlock(2, 3), PerBlock(5, 1)])
def test_impossible_granularities_are_refused(shared: object) -> None:
    """An axis that is not there, an unresolved channel axis, a block that does not divide."""
    with pytest.raises(SpecError, match=r"^Scale\.shared: found .* on shape \(2, 3, 10\), wanted an axis of the tensor"):
        block_size(scheme_of(shared), SHAPE)


def test_scales_of_another_number_of_channels_are_an_error() -> None:
    """Five scales for ten channels must not be stretched over them silently."""
    scheme = scheme_of(PerChannel(2))

    with pytest.raises(RuntimeError, match="must match"):
        fake_quantize(random(SHAPE, 0), Affine(torch.ones(1, 1, 5), torch.zeros(1, 1, 5)), scheme)
