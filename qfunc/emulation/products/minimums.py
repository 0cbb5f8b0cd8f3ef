"""Weights of products whose input is quantized at run time, and their sums if they have minimums or integers of scales."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, fx

from qfunc.emulation.context import UnitContext
from qfunc.graph.constants import read_attr
from qfunc.numerics.sums.dynamic import block_sums
from qfunc.numerics.sums.minimums import grouped_sums, rounded_sums
from qfunc.ops.node import channel_axis
from qfunc.specs import BFLOAT16, FLOAT16, FLOAT32, DynamicProduct, Lanes

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
    lanes, path = arithmetic.lanes, job.unit.path
    assert isinstance(lanes, Lanes)  # DynamicProduct requires it
    codes, more = weight.codes, None
    if arithmetic.offset is not None:
        moved = arithmetic.offset.offset * (torch.ones_like(codes) if weight.integers is None else weight.integers)
        codes, more = codes + moved, (job.emitter.constant(-moved, f"{path}.offsets"), arithmetic.offset.run)
    constants = [job.emitter.constant(codes, f"{path}.weight"), job.emitter.constant(weight.scale, f"{path}.weight_scale")]
    q, s_x, single = input
    v = _sums(job, arithmetic, q, s_x, constants, lanes, more, f"{job.name}_sums")
    if arithmetic.minimums is None:
        return v
    assert weight.minimum is not None  # the kernel requires it
    minimum = job.emitter.constant(weight.minimum, f"{path}.minimum")
    name = f"{job.name}_minimum_sums"
    if arithmetic.minimums.rounded is not None:
        w = job.emitter.call(rounded_sums, q, single, minimum, DTYPES[arithmetic.minimums.rounded], name=name)
    else:
        integers = torch.ones_like(weight.codes) if weight.minimum_integers is None else weight.minimum_integers
        constants = [job.emitter.constant(integers, f"{path}.minimum_integers"), minimum]
        w = _sums(job, arithmetic, q, s_x, constants, arithmetic.minimums.lanes, None, name)
    return job.emitter.call(torch.add, v, w, name=f"{job.name}_with_minimums")


def _sums(
    job: UnitContext,
    arithmetic: DynamicProduct,
    q: fx.Node,
    s_x: fx.Node,
    constants: list[fx.Node],
    lanes: Lanes,
    more: tuple[fx.Node, int] | None,
    name: str,
) -> fx.Node:
    order = (lanes.count, lanes.run, lanes.order)
    if arithmetic.groups is not None:
        groups = (arithmetic.groups.tokens, arithmetic.groups.part)
        return job.emitter.call(grouped_sums, *groups, q, s_x, *constants, *order, more, name=name)
    sums = (*order[:2], True, False, None, order[2], None, more)
    return job.emitter.call(block_sums, q, None, s_x, *constants, *sums, name=name)


__all__ = ["DTYPES", "Stored", "sums_with_minimums", "weight_of"]
