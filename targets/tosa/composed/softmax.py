"""Write softmax of codes in 32-bit fixed point: the exponentials are tables, the reciprocal of their sum Newton's method."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from qfunc.errors import DeployError
from qfunc.lowering.nhwc.context import OpContext
from qfunc.lowering.nhwc.tensor import NhwcTensor
from qfunc.lowering.nhwc.writer import Writer
from qfunc.numerics.kernels.fixed_rows import exponentials
from qfunc.targets.tosa.builder import TosaBuilder
from qfunc.targets.tosa.composed.integers import Integers
from qfunc.targets.tosa.rescale import multiplier, qparams_of, rescale
from qfunc.targets.tosa.schema import PROPAGATE

LONGEST = 4095
"""The longest row: each exponential is at most 2^19 before the sum, which has 31 bits."""
_SUM_BITS = 12
_START, _SLOPE = 1515870810, -1010580540  # 48/17 and -32/17 with 29 fractional bits: the first estimate of a reciprocal


def softmax(graph: TosaBuilder, inputs: list[NhwcTensor], out: NhwcTensor, fields: dict[str, Any]) -> None:
    """Write softmax along the last axis, of the entries that a mask `drop` leaves: see `specs.SoftmaxFixed`.

    Raises:
        DeployError: rows whose sum of exponentials does not fit into 32 bits.
    """
    x, axis, drop = inputs[0], len(inputs[0].shape) - 1, fields.get("drop")
    if x.shape[axis] > LONGEST:
        do = "Compute it outside of the deployed model, or attend to fewer positions."
        found, wanted = f"softmax of rows of {x.shape[axis]}", f"at most {LONGEST}: their sum has 32 bits"
        raise DeployError(where=f"tensor {out.name!r}", found=found, wanted=wanted, do=do)
    i = Integers(graph, out.name, len(x.shape))
    q = i.wide(x, 0)
    if drop is not None:  # the lowest code keeps an entry out of the maximum, and the factor 0 out of the sum
        q = i("MINIMUM", q, np.where(drop, -128, 127), nan_mode=PROPAGATE)
    largest = graph.int32_tensor(f"{out.name}.largest", [*q.shape[:axis], 1])
    graph.node("REDUCE_MAX", [q], largest, axis=axis, nan_mode=PROPAGATE)
    below = graph.tensor_like(x, f"{out.name}.below", q.shape)  # q - max(q) + 127: the index of the table
    rescale(graph, i("SUB", q, largest), below, (np.array([1 << 30]), np.array([30])), output_zero=127)
    e = i.from_table(exponentials(qparams_of(x)[0]).tolist(), below)
    if drop is not None:
        e = i.product(e, (~drop).astype(np.int32))
    total = i.total(i.right(e, _SUM_BITS, rounds=True), axis)
    zeros = i("CLZ", total)
    product = i.product(_reciprocal(i, total, zeros), e, 31)
    # The share is product * 2^-(23 + over), over = 12 - zeros, in two shifts and one rounding.
    over = i("SUB", _SUM_BITS + 1, zeros)
    share = i.right(i.right(product, 22, rounds=False), over, rounds=True)
    scale, zero = qparams_of(out)
    rescale(graph, share, out, multiplier(np.array(1 / 256 / scale)), output_zero=zero)


def masked_softmax(writer: Writer, nodes: list[onnx.NodeProto]) -> None:
    """Write the softmax of scores, or of -infinity where a mask drops them: the nodes Where and Softmax.

    Raises:
        DeployError: another constant mask for each example.
    """
    masked, shares = nodes[:2]
    step, final, given = OpContext(writer, masked), OpContext(writer, shares), writer.tensor(masked.input[2])
    final.on_codes()
    x = writer.plain(writer.stored(given))
    writer.done.update(name for node in nodes[:2] for name in node.output)
    drop = np.asarray(step.number(0), bool)
    if drop.ndim == len(x.shape) and len(drop) > 1:
        do = "Give the mask one batch axis of length 1."
        raise step.refuse("a constant mask with an entry for each example", "one for all examples", do)
    shaped = drop.reshape((1,) * (len(x.shape) - drop.ndim) + drop.shape)
    final.file.operator("SOFTMAX", [x], [final.result(final.shape)], drop=shaped)


def _reciprocal(i: Integers, total: NhwcTensor, zeros: NhwcTensor) -> NhwcTensor:
    # 1 / (1 + f) with 31 fractional bits; (1 + f) / 2 is the sum without its leading zeros.
    half = i.left(total, i("SUB", zeros, 1))
    x = i("ADD", i.product(half, _SLOPE, 31), _START)
    for _ in range(3):
        x = i("ADD", x, i.left(i.product(x, i("SUB", 1 << 29, i.product(half, x, 31)), 31), 2))
    x = i("MINIMUM", x, 1 << 30, nan_mode=PROPAGATE)
    return i("ADD", x, i("MINIMUM", x, (1 << 30) - 1, nan_mode=PROPAGATE))  # 2 x, at most 2^31 - 1
