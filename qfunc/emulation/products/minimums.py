"""Weights of products whose input is quantized at run time, and their sums if they have minimums or integers of scales."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from qfunc.emulation.context import UnitContext
from qfunc.graph.constants import read_attr
from qfunc.numerics.sums.dynamic import block_sums
from qfunc.numerics.sums.minimums import grouped_sums, rounded_sums
from qfunc.numerics.sums.tiles import sums_by_tokens
from qfunc.ops.node import channel_axis
from qfunc.specs import BFLOAT16, FLOAT16, FLOAT32, DynamicProduct, Float, Lanes

DTYPES = {FLOAT32: "float32", FLOAT16: "float16", BFLOAT16: "bfloat16"}
"""The torch types of formats of scales."""


class Stored(NamedTuple):
    """A weight as a product reads it: codes [O, K], scales [O, blocks], and for each code the integers of its scale.

    `codes` are multiplied by these integers.  The minimums are m = k e, with k [O, K] and e [O, blocks], or with e alone.
    """

    codes: Tensor
    scale: Tensor
    integers: Tensor | None = None
    minimum_integers: Tensor | None = None
    minimum: Tensor | None = None


def weight_of(job: UnitContext, node: fx.Node) -> Stored:
    """Return the constant weight of a unit."""
    encoding = job.partition.encoding(node, job.root)
    assert encoding is not None  # the kernel requires it
    qparams = encoding.qparams
    weight, scale = encoding.codes(read_attr(job.partition.network, node)).float(), qparams.scale.float()
    if qparams.outer is None:
        scale = scale.reshape(1, 1) if scale.numel() == 1 else scale
        if channel_axis(job.root) % 2:
            weight, scale = weight.T, scale.T
        scale = scale.expand(weight.shape[0], -1).contiguous()
        return Stored(weight.contiguous(), scale, minimum=qparams.minimum)
    scheme = encoding.quantizer.module.site.scheme
    ratio = scheme.scale.within.shared.size // scheme.scale.shared.size  # type: ignore[union-attr]
    size = weight.shape[1] // scale.shape[1]
    integers = scale.repeat_interleave(size, 1)
    stored = Stored(weight * integers, qparams.outer[:, ::ratio].contiguous(), integers)
    if qparams.minimum is None or qparams.outer_minimum is None:
        return stored
    return stored._replace(
        minimum_integers=-qparams.minimum.repeat_interleave(size, 1), minimum=-qparams.outer_minimum[:, ::ratio].contiguous()
    )


def sums_with_minimums(
    job: UnitContext, arithmetic: DynamicProduct, weight: Stored, input: tuple[fx.Node, fx.Node, fx.Node | None]
) -> fx.Node:
    """Return the node of v + w: the sums of `DynamicProduct` for a weight with minimums or integers of scales.

    Args:
        job: The unit.
        arithmetic: The product.
        weight: Its weight.
        input: The codes of the input, their scales, and their scales in float32 where sums are rounded.
    """
    q, s_x, single = input
    minimums, rounded, tiles = arithmetic.minimums, _rounded(arithmetic), arithmetic.tiles
    codes, scale = _constant(job, weight.codes, "weight"), _constant(job, weight.scale, "weight_scale")
    k = lower = None
    if minimums is not None:
        assert weight.minimum is not None  # the kernel requires it
        lower = _constant(job, weight.minimum, "minimum")
        if rounded is None:
            integers = torch.ones_like(weight.codes) if weight.minimum_integers is None else weight.minimum_integers
            k = _constant(job, integers, "minimum_integers")
    moved, more = codes, None
    if arithmetic.offset is not None:
        offsets = arithmetic.offset.offset * (torch.ones_like(weight.codes) if weight.integers is None else weight.integers)
        moved = _constant(job, weight.codes + offsets, "weight_with_offset")
        more = (_constant(job, -offsets, "offsets"), arithmetic.offset.run)
    sums: list[tuple[Any, ...]] = [(moved, scale, arithmetic.lanes, more, None)]
    if minimums is not None and minimums.inside:
        sums = [(moved, scale, arithmetic.lanes, more, (k, lower, minimums.lanes.run))]
    elif minimums is not None and rounded is None:
        sums.append((k, lower, minimums.lanes, None, None))
    if tiles is not None:
        plain = tuple(_arguments(*one) for one in sums)
        tiled = (codes, scale, k, lower)
        name = f"{job.name}_with_minimums"
        return job.emitter.call(sums_by_tokens, tiles.least, arithmetic.sequences, q, s_x, tiled, plain, name=name)
    ends = [_sums(job, arithmetic, q, s_x, one, name) for one, name in zip(sums, ("sums", "minimum_sums"), strict=False)]
    if rounded is not None:
        ends.append(job.emitter.call(rounded_sums, q, single, lower, DTYPES[rounded], name=f"{job.name}_minimum_sums"))
    v, *w = ends
    return job.emitter.call(torch.add, v, *w, name=f"{job.name}_with_minimums") if w else v


def _rounded(arithmetic: DynamicProduct) -> Float | None:
    return None if arithmetic.minimums is None else arithmetic.minimums.rounded


def _constant(job: UnitContext, value: Tensor, name: str) -> fx.Node:
    return job.emitter.constant(value, f"{job.unit.path}.{name}")


def _arguments(codes: Any, scale: Any, lanes: Any, more: Any, first: Any) -> tuple[Any, ...]:
    # Those of block_sums from the weight on.
    assert isinstance(lanes, Lanes)  # DynamicProduct requires it
    return (codes, scale, lanes.count, lanes.run, True, False, None, lanes.order, None, more, first, lanes.rest)


def _sums(job: UnitContext, arithmetic: DynamicProduct, q: fx.Node, s_x: fx.Node, of: tuple[Any, ...], name: str) -> fx.Node:
    node, groups = f"{job.name}_{name}", arithmetic.groups
    if groups is None:
        return job.emitter.call(block_sums, q, None, s_x, *_arguments(*of), name=node)
    codes, scale, lanes, more, _ = of
    counted, order = (groups.tokens, groups.part, arithmetic.sequences), (lanes.count, lanes.run, lanes.order)
    return job.emitter.call(grouped_sums, *counted, q, s_x, codes, scale, *order, more, lanes.rest, name=node)


__all__ = ["DTYPES", "Stored", "sums_with_minimums", "weight_of"]
