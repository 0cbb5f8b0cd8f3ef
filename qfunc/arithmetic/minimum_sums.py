"""Sums of products with a weight that has minimums or integers of scales, and other sums for groups of tokens."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from qfunc.arithmetic.block_weights import Stored
from qfunc.arithmetic.computation import Computation, Constant
from qfunc.numerics.sums.dynamic import block_sums
from qfunc.numerics.sums.minimums import grouped_sums, rounded_sums
from qfunc.numerics.sums.tiles import sums_by_tokens
from qfunc.specs import BFLOAT16, FLOAT16, FLOAT32, LaneOffset, Lanes, MinimumSums, TokenGroups, TokenTiles

DTYPES = {FLOAT32: "float32", FLOAT16: "float16", BFLOAT16: "bfloat16"}
"""The torch types of formats of scales."""


class More(NamedTuple):
    """The fields of a `DynamicProduct` with their names there."""

    lanes: Lanes
    minimums: MinimumSums | None
    offset: LaneOffset | None
    groups: TokenGroups | None
    tiles: TokenTiles | None
    sequences: str


def sums_with_minimums(more: More, weight: Stored, q: Computation, s_x: Computation, single: Computation) -> Computation:
    """Return v + w: the sums of `DynamicProduct` for a weight with minimums or integers of scales.

    Args:
        more: How the product is summed.
        weight: Its weight.
        q: The codes of the input.
        s_x: Their scales.
        single: Their scales in float32, for sums that are rounded.
    """
    minimums, tiles = more.minimums, more.tiles
    rounded = None if minimums is None else minimums.rounded
    codes, scale = Constant(weight.codes, "weight"), Constant(weight.scale, "weight_scale")
    k = lower = None
    if minimums is not None:
        assert weight.minimum is not None  # the product refuses a weight without
        lower = Constant(weight.minimum, "minimum")
        if rounded is None:
            integers = torch.ones_like(weight.codes) if weight.minimum_integers is None else weight.minimum_integers
            k = Constant(integers, "minimum_integers")
    moved, offsets = codes, None
    if more.offset is not None:
        shifts = more.offset.offset * (torch.ones_like(weight.codes) if weight.integers is None else weight.integers)
        moved = Constant(weight.codes + shifts, "weight_with_offset")
        offsets = (Constant(-shifts, "offsets"), more.offset.run)
    sums: list[tuple[Any, ...]] = [(moved, scale, more.lanes, offsets, None)]
    if minimums is not None and minimums.inside:
        sums = [(moved, scale, more.lanes, offsets, (k, lower, minimums.lanes.run))]
    elif minimums is not None and rounded is None:
        sums.append((k, lower, minimums.lanes, None, None))
    if tiles is not None:
        plain = tuple(_arguments(*one) for one in sums)
        tiled = (codes, scale, k, lower)
        return Computation(sums_by_tokens, (tiles.least, more.sequences, q, s_x, tiled, plain), "with_minimums")
    ends = [_sums(more, q, s_x, one, name) for one, name in zip(sums, ("sums", "minimum_sums"), strict=False)]
    if rounded is not None:
        ends.append(Computation(rounded_sums, (q, single, lower, DTYPES[rounded]), "minimum_sums"))
    v, *w = ends
    return Computation(torch.add, (v, *w), "with_minimums") if w else v


def _arguments(codes: Any, scale: Any, lanes: Lanes, offsets: Any, first: Any) -> tuple[Any, ...]:
    # Those of block_sums from the weight on.
    return (codes, scale, lanes.count, lanes.run, True, False, None, lanes.order, None, offsets, first, lanes.rest)


def _sums(more: More, q: Computation, s_x: Computation, of: tuple[Any, ...], name: str) -> Computation:
    groups = more.groups
    if groups is None:
        return Computation(block_sums, (q, None, s_x, *_arguments(*of)), name)
    codes, scale, lanes, offsets, _ = of
    counted, order = (groups.tokens, groups.part, more.sequences), (lanes.count, lanes.run, lanes.order)
    return Computation(grouped_sums, (*counted, q, s_x, codes, scale, *order, offsets, lanes.rest), name)
