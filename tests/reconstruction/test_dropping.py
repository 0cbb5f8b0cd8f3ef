"""Activations of a unit while it trains, against LSQ's own function and torch's choice of elements."""

from __future__ import annotations

import pytest
import torch

from qfunc.functions.lsq import Learned
from qfunc.reconstruction.layout import BatchAxis, NoBatchAxis, flatten_memory, inner, is_channels_last
from qfunc.reconstruction.random_drop import LEARNED, DropRate, drop_steps, is_plain
from qfunc.specs import Int, Scale, Scheme, ZeroPoint

SCHEMES = {
    "affine": (Scheme(Int(4, signed=False), zero_point=ZeroPoint()), 3.0, 0.37),
    "symmetric": (Scheme(Int(3)), 0.0, 0.8),
    "a scale below zero": (Scheme(Int(4)), 0.0, -0.37),
    "powers of two": (Scheme(Int(4), Scale(power_of_two=True)), 0.0, 0.3),
}


@pytest.mark.parametrize("case", SCHEMES)
@pytest.mark.parametrize("drops", [False, True])
@pytest.mark.parametrize("last", [False, True])
def test_values_and_gradients_are_those_of_lsq_where_the_mask_is_one(case: str, drops: bool, last: bool) -> None:
    (scheme, zero, start), generator = SCHEMES[case], torch.Generator().manual_seed(0)
    x, upstream = (torch.randn(5, 3, 4, 7, generator=generator) * 2 for _ in range(2))
    x = x.contiguous(memory_format=torch.channels_last) if last else x
    mask = DropRate(0.5, generator)(x, BatchAxis()) if drops else None
    found = []
    for plain in (False, True):
        given, scale = x.clone().requires_grad_(), torch.tensor(start, requires_grad=True)
        if plain:
            assert is_plain(x.dtype, scale, scheme)
            value = drop_steps(given, scale, zero, scheme, mask)
        else:
            value = LEARNED.apply(Learned(scale, torch.tensor(zero)), given, scheme)
            value = value if mask is None else torch.where(mask > 0, value, given)
        (value * upstream).sum().backward()
        found.append((value.detach(), given.grad, scale.grad))
    (value, to_x, to_scale), (plain_value, plain_to_x, plain_to_scale) = found
    assert torch.equal(value, plain_value)
    assert to_x is not None
    assert plain_to_x is not None
    assert torch.equal(to_x, plain_to_x)
    # Two sums of 420 products below 60 in float32, one taken from the other, divided by a step of at least 1/4.
    assert to_scale is not None
    assert plain_to_scale is not None
    assert abs(float(to_scale - plain_to_scale)) < 420 * 60 * 4 * 2.0**-24


@pytest.mark.parametrize(("one", "bits"), [(0.5, 1), (0.25, 2), (0.9375, 4), (3 / 256, 8), (0.3, 16)])
def test_chance_has_its_probability_and_the_layout_of_the_tensor(one: float, bits: int) -> None:
    chance = DropRate(one, torch.Generator().manual_seed(1))
    like = torch.empty(20, 25, 20, 10).contiguous(memory_format=torch.channels_last)
    mask = chance(like, BatchAxis(channels_last=True))
    assert chance.bits == bits
    assert mask.shape == like.shape
    assert is_channels_last(mask)
    assert set(mask.unique().tolist()) == {0.0, 1.0}
    # Five standard deviations of the mean of 100,000, and what the digits round.
    assert abs(float(mask.mean()) - one) < 5 * (one * (1 - one) / 1e5) ** 0.5 + 2.0**-17
    # Of two elements both, wherever the digits of a byte went: the product of their chances; neighbouring pairs share one.
    line, deviation = flatten_memory(mask), ((one**2 - one**4 + 2 * one**3 - 2 * one**4) / 1e5) ** 0.5
    for apart in (1, len(line) // 2, len(line) // 4, len(line) // 8):
        both = float((line * line.roll(apart)).mean())
        assert abs(both - one**2) < 5 * deviation + 2.0**-16
    assert not torch.equal(mask, chance(like, BatchAxis(channels_last=True)))
    assert chance(torch.empty(0, 3), BatchAxis()).shape == (0, 3)


PARTS = {
    "rows": (BatchAxis(), (6, 5)),
    "images": (BatchAxis(channels_last=True), (6, 3, 4, 7)),
    "windows": (BatchAxis(0, 2), (12, 3)),
    "a later axis": (BatchAxis(1, 2), (5, 12, 3)),
    "no batch": (NoBatchAxis(), (4, 3)),
}


@pytest.mark.parametrize("case", PARTS)
@pytest.mark.parametrize("one", [0.5, 0.3])
def test_the_mask_of_a_part_is_a_part_of_the_mask(case: str, one: float) -> None:
    """Each part in its own memory order, which a single image hides; also where a part leaves off."""
    layout, shape = PARTS[case]
    whole, rate = (DropRate(one, torch.Generator().manual_seed(3)) for _ in range(2))
    for _ in range(2):  # mini-batches of two masks
        wanted = [whole(torch.empty(shape), layout) for _ in range(2)]
        rate.begin()
        for places in ([4, 0], [1], [5, 2, 3]):
            index = torch.tensor(places)
            rate.of(index, 6)
            for mask in wanted:
                part = layout.join(layout.split(mask)[index]) if isinstance(layout, BatchAxis) else mask
                kept = torch.channels_last if len(places) == 2 and part.ndim == 4 else torch.contiguous_format
                like = torch.empty(part.shape).contiguous(memory_format=kept)
                found = rate(like, layout)
                assert torch.equal(found, part)
                assert found.stride() == like.stride()


def test_inner_products_do_not_depend_on_the_layout() -> None:
    a, b = torch.randn(2, 3, 4, 5, dtype=torch.float64), torch.randn(2, 3, 4, 5, dtype=torch.float64)
    last = [t.contiguous(memory_format=torch.channels_last) for t in (a, b)]
    wanted = float((a * b).sum())
    for left, right in ((a, b), (last[0], last[1]), (a, last[1]), (a[:, ::2], b[:, ::2]), (a.float(), b)):
        exact = wanted if left.shape == a.shape else float((a[:, ::2] * b[:, ::2]).sum())
        assert float(inner(left, right)) == pytest.approx(exact, rel=1e-5)  # float32 in the last pair
