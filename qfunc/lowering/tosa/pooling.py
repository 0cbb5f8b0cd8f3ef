"""Pools, means and sums of TFLite as TOSA's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from qfunc.errors import DeployError
from qfunc.lowering.nhwc.tensor import NhwcTensor
from qfunc.lowering.tosa.builder import TosaBuilder
from qfunc.lowering.tosa.images import fit_windows, reshaped
from qfunc.lowering.tosa.linear import max_magnitude, with_rank, zeros
from qfunc.lowering.tosa.rescale import clamp_fused, multiplier, qparams_of, to_codes, widened
from qfunc.lowering.tosa.schema import INT32, PROPAGATE

Fields = dict[str, Any]
SHIFT = 20
"""The fractional bits of a sum's terms."""


def max_pool(graph: TosaBuilder, given: list[NhwcTensor], out: NhwcTensor, fields: Fields) -> None:
    """MAX_POOL2D.

    Raises:
        DeployError: a dilated window.
    """
    if {fields.get("dilationH", 1), fields.get("dilationW", 1)} != {1}:
        found = "a maximum over a dilated window"
        raise DeployError(where=f"tensor {out.name!r}", found=found, wanted="no dilation", do="Use dilation=1.")
    kernel = [fields["filterHeight"], fields["filterWidth"]]
    x, pad = fit_windows(graph, given[0], kernel, fields, out.name)
    made = clamp_fused(graph, out, fields)
    graph.node("MAX_POOL2D", [x], made, kernel=kernel, stride=[fields["strideH"], fields["strideW"]], pad=pad,
               nan_mode=PROPAGATE)  # fmt: skip
    clamp_fused(graph, out, fields, made)


def average_pool(graph: TosaBuilder, given: list[NhwcTensor], out: NhwcTensor, fields: Fields) -> None:
    """AVG_POOL2D, which divides by the number of entries inside the image."""
    kernel = [fields["filterHeight"], fields["filterWidth"]]
    x, pad = fit_windows(graph, given[0], kernel, fields, out.name)
    made, zero = clamp_fused(graph, out, fields), qparams_of(x)[1]
    graph.node(
        "AVG_POOL2D", [x, *zeros(graph, zero, zero)], made, kernel=kernel, stride=[fields["strideH"], fields["strideW"]],
        pad=pad, acc_type=INT32,
    )  # fmt: skip
    clamp_fused(graph, out, fields, made)


def mean(graph: TosaBuilder, given: list[NhwcTensor], out: NhwcTensor, fields: Fields) -> None:
    """REDUCE_SUM along each axis, and a RESCALE by the ratio of scales over the count: see `fixed_curves.mean_fixed`."""
    x, axes = given[0], [int(a) for a in np.ravel(np.asarray(given[1].value))]
    acc, shape = widened(graph, x, f"{out.name}.wide"), list(x.shape)
    for axis in axes:
        shape[axis] = 1
        total = graph.wide(f"{out.name}.sum{axis}", shape)
        graph.node("REDUCE_SUM", [acc], total, axis=axis)
        acc = total
    count = math.prod(x.shape[a] for a in axes)
    (m,), (e,) = multiplier(np.asarray(qparams_of(x)[0] / qparams_of(out)[0]))
    k = max(0, min(count.bit_length() - 1, 32, 62 - int(e)))
    pair = np.array([(int(m) << k) // count]), np.array([int(e) + k])
    made = graph.inner(out, "kept", shape)
    to_codes(graph, acc, made, pair, count * max_magnitude(x), fields)
    reshaped(graph, made, out.shape, out)


def summed(op: str) -> Any:
    """ADD or SUB of two tensors at twice the larger scale, with 20 fractional bits, then a RESCALE."""

    def write(graph: TosaBuilder, given: list[NhwcTensor], out: NhwcTensor, fields: Fields) -> None:
        parts = [with_rank(graph, h, len(out.shape), f"{out.name}.{n}") for h, n in zip(given, ("a", "b"), strict=True)]
        scales, scale = [qparams_of(h)[0] for h in parts], qparams_of(out)[0]
        twice = 2 * max(scales)
        sides = [widened(graph, h, f"{out.name}.{n}.wide", s / twice, SHIFT)
                 for h, n, s in zip(parts, ("a", "b"), scales, strict=True)]  # fmt: skip
        acc = graph.wide(f"{out.name}.sum", out.shape)
        graph.node(op, sides, acc)
        largest = sum(math.ceil(max_magnitude(h) * s / twice * 2.0**SHIFT) for h, s in zip(parts, scales, strict=True))
        to_codes(graph, acc, out, multiplier(np.asarray(twice / (2.0**SHIFT * scale))), largest, fields)

    return write


__all__ = ["average_pool", "max_pool", "mean", "summed"]
