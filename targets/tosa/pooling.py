"""Write the pools, means and sums of TFLite in TOSA."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from qfunc.errors import DeployError
from qfunc.lowering.nhwc.tensor import NhwcTensor
from qfunc.targets.tosa.builder import TosaBuilder
from qfunc.targets.tosa.images import fit_windows, write_reshape
from qfunc.targets.tosa.linear import max_magnitude, with_rank, zeros
from qfunc.targets.tosa.rescale import clamp_fused, multiplier, qparams_of, rescale, to_codes, to_int32, unclamped_output
from qfunc.targets.tosa.schema import INT32, PROPAGATE

Fields = dict[str, Any]
SHIFT = 20
"""The number of fractional bits of each term of a sum."""


def max_pool(graph: TosaBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: Fields) -> None:
    """Write MAX_POOL2D.

    Raises:
        DeployError: a dilated window.
    """
    if {fields.get("dilationH", 1), fields.get("dilationW", 1)} != {1}:
        found, wanted = "a maximum over dilated windows", "windows without dilation"
        raise DeployError(where=f"tensor {out.name!r}", found=found, wanted=wanted, do="Use dilation=1.")
    kernel = [fields["filterHeight"], fields["filterWidth"]]
    x, pad = fit_windows(graph, inputs[0], kernel, fields, out.name)
    unclamped = unclamped_output(graph, out, fields)
    graph.node("MAX_POOL2D", [x], unclamped, kernel=kernel, stride=[fields["strideH"], fields["strideW"]], pad=pad,
               nan_mode=PROPAGATE)  # fmt: skip
    clamp_fused(graph, unclamped, out, fields)


def average_pool(graph: TosaBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: Fields) -> None:
    """Write AVG_POOL2D, which divides by the number of entries inside the image."""
    kernel = [fields["filterHeight"], fields["filterWidth"]]
    x, pad = fit_windows(graph, inputs[0], kernel, fields, out.name)
    unclamped, zero = unclamped_output(graph, out, fields), qparams_of(x)[1]
    graph.node(
        "AVG_POOL2D", [x, *zeros(graph, zero, zero)], unclamped, kernel=kernel, stride=[fields["strideH"], fields["strideW"]],
        pad=pad, acc_type=INT32,
    )  # fmt: skip
    clamp_fused(graph, unclamped, out, fields)


def extreme_writer(op: str) -> Any:
    """Return the writer of REDUCE_MAX or REDUCE_MIN, along one axis after the other."""

    def write(graph: TosaBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: Fields) -> None:
        x, shape = inputs[0], list(inputs[0].shape)
        for axis in (int(a) for a in np.ravel(np.asarray(inputs[1].value))):
            shape[axis] = 1
            kept = graph.tensor(f"{out.name}.axis{axis}", shape, x.qparams)
            graph.node(op, [x], kept, axis=axis, nan_mode=PROPAGATE)
            x = kept
        write_reshape(graph, x, out.shape, out)

    return write


def extreme_of_two(op: str) -> Any:
    """Return the writer of MAXIMUM or MINIMUM of the codes of two tensors with the same qparams."""

    def write(graph: TosaBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: Fields) -> None:
        pair, rank = list(zip(inputs, ("a", "b"), strict=True)), len(out.shape)
        terms = [with_rank(graph, tensor, rank, f"{out.name}.{name}") for tensor, name in pair]
        wide = [to_int32(graph, tensor, f"{out.name}.{name}.wide") for tensor, name in zip(terms, ("a", "b"), strict=True)]
        acc = graph.int32_tensor(f"{out.name}.wide", out.shape)
        graph.node(op, wide, acc, nan_mode=PROPAGATE)
        rescale(graph, acc, out, multiplier(np.asarray(1.0)), output_zero=qparams_of(out)[1])

    return write


def mean(graph: TosaBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: Fields) -> None:
    """Write REDUCE_SUM along each axis, then RESCALE by s_x / (s_y * count): see `kernels.activations.mean_fixed`."""
    x, axes = inputs[0], [int(a) for a in np.ravel(np.asarray(inputs[1].value))]
    acc, shape = to_int32(graph, x, f"{out.name}.wide"), list(x.shape)
    for axis in axes:
        shape[axis] = 1
        partial = graph.int32_tensor(f"{out.name}.sum{axis}", shape)
        graph.node("REDUCE_SUM", [acc], partial, axis=axis)
        acc = partial
    count = math.prod(x.shape[a] for a in axes)
    (m,), (e,) = multiplier(np.asarray(qparams_of(x)[0] / qparams_of(out)[0]))
    bits = max(0, min(count.bit_length() - 1, 32, 62 - int(e)))
    pair = np.array([(int(m) << bits) // count]), np.array([int(e) + bits])
    kept_axes = graph.tensor_like(out, "kept", shape)
    to_codes(graph, acc, kept_axes, pair, count * max_magnitude(x), fields)
    write_reshape(graph, kept_axes, out.shape, out)


def sum_writer(op: str) -> Any:
    """Return the writer of ADD or SUB: both terms at twice the larger scale with 20 fractional bits, then RESCALE."""

    def write(graph: TosaBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: Fields) -> None:
        pair, rank = list(zip(inputs, ("a", "b"), strict=True)), len(out.shape)
        terms = [with_rank(graph, tensor, rank, f"{out.name}.{name}") for tensor, name in pair]
        scales, out_scale = [qparams_of(tensor)[0] for tensor in terms], qparams_of(out)[0]
        common = 2 * max(scales)
        wide = [to_int32(graph, tensor, f"{out.name}.{name}.wide", scale / common, SHIFT)
                for tensor, name, scale in zip(terms, ("a", "b"), scales, strict=True)]  # fmt: skip
        acc = graph.int32_tensor(f"{out.name}.sum", out.shape)
        graph.node(op, wide, acc)
        bound = sum(
            math.ceil(max_magnitude(tensor) * scale / common * 2.0**SHIFT) for tensor, scale in zip(terms, scales, strict=True)
        )
        to_codes(graph, acc, out, multiplier(np.asarray(common / (2.0**SHIFT * out_scale))), bound, fields)

    return write
