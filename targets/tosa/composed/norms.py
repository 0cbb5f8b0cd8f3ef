"""Write layer, group, instance and RMS norms of codes: see `specs.NormFixed`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from qfunc.errors import DeployError
from qfunc.lowering.nhwc.context import OpContext
from qfunc.lowering.nhwc.tensor import NhwcTensor
from qfunc.lowering.qdq.qparams import Array
from qfunc.numerics.kernels.fixed_rows import LONGEST, ROOTS, NormConstants, norm_constants
from qfunc.targets.tosa.builder import TosaBuilder
from qfunc.targets.tosa.composed.integers import Integers
from qfunc.targets.tosa.images import write_reshape
from qfunc.targets.tosa.rescale import multiplier, qparams_of, rescale
from qfunc.targets.tosa.schema import PROPAGATE


def layer_norm(step: OpContext) -> None:
    """Write LayerNormalization over the last axes."""
    rank = len(step.shape)
    axis = int(step.attribute("axis", -1)) % rank
    shape = [*step.shape[:axis], math.prod(step.shape[axis:])]
    write_norm(step, step.node.input[0], shape, _leading(step, 1, rank), _leading(step, 2, rank))


def group_norm(step: OpContext) -> None:
    """Write GroupNormalization."""
    _grouped(step, int(step.attribute("num_groups", 1)))


def instance_norm(step: OpContext) -> None:
    """Write InstanceNormalization, the group norm whose groups are single channels."""
    _grouped(step, step.shape[1])


def _grouped(step: OpContext, groups: int) -> None:
    shape = [step.shape[0], groups, math.prod(step.shape[1:]) // groups]
    scale, bias = (step.array(i)[0].reshape(1, -1, *[1] * (len(step.shape) - 2)) for i in (1, 2))
    write_norm(step, step.node.input[0], shape, scale, bias)


def _leading(step: OpContext, index: int, rank: int) -> Array | None:
    # A constant input with leading axes of length 1.
    if index >= len(step.node.input) or not step.node.input[index]:
        return None
    value = step.array(index)[0]
    return value.reshape([1] * (rank - value.ndim) + list(value.shape))


def write_norm(
    step: OpContext, source: str, rows: Sequence[int], scale: Array | None, bias: Array | None, *, centred: bool = True,
    epsilon: float | None = None,
) -> None:  # fmt: skip
    """Write a norm, on codes.

    Args:
        source: The name of its input.
        rows: The codes as rows, one statistic for each.
        scale: The weight in a shape of the result's rank, or None for ones; likewise `bias`, for zeros.
        centred: False for an RMS norm.
        epsilon: If None, the node's attribute.
    """
    given = step.writer.tensor(source)
    on_codes = given.qparams is not None and step.on_codes()
    x = step.writer.plain(step.writer.stored(given) if on_codes else step.writer.real(given))
    one = (1,) * len(step.shape)
    step.file.operator(
        "NORM", [x], [step.result(step.shape)], rows=list(rows), centred=centred,
        scale=np.ones(one, np.float32) if scale is None else scale, bias=np.zeros(one, np.float32) if bias is None else bias,
        epsilon=float(step.attribute("epsilon", 1e-5)) if epsilon is None else epsilon,
    )  # fmt: skip


def norm(graph: TosaBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
    """Write the operators of a norm.

    Raises:
        DeployError: sums beyond 32 bits.
    """
    (x,), rows = inputs, fields["rows"]
    (scale_in, zero_in), (scale_out, zero) = qparams_of(x), qparams_of(out)
    given = [torch.from_numpy(np.array(fields[name])) for name in ("scale", "bias")]
    k = norm_constants(rows[-1], fields["centred"], scale_in, scale_out, given[0], given[1], fields["epsilon"])
    if rows[-1] > LONGEST:
        do = "Keep it out of the deployed model, or normalize fewer values."
        found = f"a norm of {rows[-1]} codes"
        raise DeployError(where=f"tensor {out.name!r}", found=found, wanted=f"at most {LONGEST}: sums of 32 bits", do=do)
    i = Integers(graph, out.name, len(rows))
    q = i.wide(write_reshape(graph, x, rows, f"{out.name}.rows"), zero_in)
    normal = graph.int32_tensor(f"{out.name}.normal", out.shape)
    graph.node("RESHAPE", [_normalized(i, x, q, k, fields["centred"]), graph.shape(out.shape)], normal)
    j = Integers(graph, f"{out.name}.affine", len(out.shape))
    if k.limit is not None:
        bounded = j("MINIMUM", normal, k.limit, nan_mode=PROPAGATE)
        normal = j("MAXIMUM", bounded, -k.limit, nan_mode=PROPAGATE)
    value = j("ADD", j.product(normal, k.factors.numpy(), k.shift), k.offsets.numpy())
    rescale(graph, value, out, (np.array([1 << 30]), np.array([30 + k.bits])), output_zero=zero)


def _normalized(i: Integers, x: NhwcTensor, q: NhwcTensor, k: NormConstants, centred: bool) -> NhwcTensor:
    axis, count = len(q.shape) - 1, q.shape[-1]
    rest = None
    if centred:
        q = i("SUB", q, _scaled(i, i.total(q, axis), 1 / count))
        rest = i.total(q, axis)
    squares = i.total(i.product(q, q), axis)
    length = i.left(squares, k.f) if k.f >= 0 else i.right(squares, min(-k.f, 31), rounds=True)
    if rest is not None:
        length = i("SUB", length, _scaled(i, i.product(rest, rest), 2.0**k.f / count))
    length = i("MAXIMUM", i("ADD", length, k.epsilon), 1, nan_mode=PROPAGATE)
    up = i("BITWISE_AND", i("SUB", i("CLZ", length), 1), -2)
    unit = i.left(length, up)
    index = i.graph.tensor_like(x, f"{i.name}.index", unit.shape)
    rescale(i.graph, i.right(unit, 23, rounds=False), index, (np.array([1 << 30]), np.array([30])), output_zero=-128)
    y = i.from_table(ROOTS, index)
    y = i.product(y, i("SUB", 3 << 29, i.product(unit, i.product(y, y), 16)), 7)
    centre = i.left(q, k.h)
    if rest is not None:
        centre = i("SUB", centre, _scaled(i, rest, 2.0**k.h / count))
    return i.product(i.left(centre, i.right(up, 1, rounds=False)), y, 31)


def _scaled(i: Integers, x: NhwcTensor, factor: float) -> NhwcTensor:
    (m,), (e,) = multiplier(np.asarray(factor))
    return i.scaled(x, int(m), int(e))
