"""RESCALE and CLAMP: from wide integers to codes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from qfunc.errors import DeployError
from qfunc.lowering.nhwc.tensor import NhwcTensor
from qfunc.lowering.qdq_reader import Array, QParams
from qfunc.lowering.tosa.builder import TosaBuilder
from qfunc.lowering.tosa.schema import PROPAGATE, SINGLE_ROUND
from qfunc.numerics.kernels.fixed_point import fixed_multiplier

BOUNDS: dict[str, tuple[float | None, float | None]] = {
    "RELU": (0.0, None), "RELU6": (0.0, 6.0), "RELU_N1_TO_1": (-1.0, 1.0),
}  # fmt: skip


def qparams_of(held: NhwcTensor) -> tuple[float, int]:
    """Return (scale, zero point) of a tensor of codes."""
    assert held.qparams is not None
    return held.qparams.scale[0], held.qparams.zero_point[0]


def scale_ratio(qparams: QParams, *factors: float) -> Array:
    """Return the scales of a tensor times factors, in float64."""
    found = np.asarray(qparams.scale, np.float64)
    for factor in factors:
        found = found * np.float64(factor)
    return found


def multiplier(real: Array) -> tuple[Array, Array]:
    """Return (m, e) with real ~ m * 2^-e, m of 31 bits: see `specs.FixedPoint`."""
    m, e = fixed_multiplier(torch.from_numpy(np.atleast_1d(np.asarray(real, np.float64))))
    return m.numpy(), e.numpy()


def to_codes(
    graph: TosaBuilder, acc: NhwcTensor, out: NhwcTensor, pair: tuple[Array, Array], largest: Any, fields: Any
) -> None:
    """RESCALE of sums to codes, and CLAMP where an activation is fused.

    Args:
        pair: m and e, one for all or one for each channel, the last axis.
        largest: Which number no sum exceeds in size, of the same shape.
    Raises:
        DeployError: sums that TOSA does not rescale.
    """
    _require(out, pair, np.asarray(largest))
    made = clamp_fused(graph, out, fields)
    rescale(graph, acc, made, pair, made=qparams_of(out)[1])
    clamp_fused(graph, out, fields, made)


def clamp_fused(graph: TosaBuilder, out: NhwcTensor, fields: Any, made: NhwcTensor | None = None) -> NhwcTensor:
    """Return the input of a fused activation's CLAMP, or `out` without an activation; from `made`, write the CLAMP."""
    bounds = BOUNDS.get(fields.get("fusedActivationFunction", "NONE"))
    if bounds is None:
        return out
    if made is None:
        return graph.inner(out, "unbounded")
    clamp(graph, made, out, *bounds)
    return out


def _require(out: NhwcTensor, pair: tuple[Array, Array], largest: Array) -> None:
    # RESCALE takes values of int32 below 2^(shift - 1); shifts are of 2 to 62 bits.
    m, e = pair
    room = np.where(m == 0, 2.0**31, np.minimum(2.0 ** (e - 1.0), 2.0**31))
    if bool((largest >= room).any()) or int(e.min()) < 2 or int(e.max()) > 62:
        worst = int(np.argmax(np.broadcast_to(largest, room.shape) / room))
        raise DeployError(
            where=f"tensor {out.name!r}",
            found=f"sums of up to {float(np.broadcast_to(largest, room.shape)[worst]):.4g} before a shift by {int(e[worst])}",
            wanted="sums of int32, below 2^(shift - 1)",
            do="Calibrate on inputs of the range that it meets: a scale of the output is far below those of the products.",
        )


def rescale(
    graph: TosaBuilder, x: NhwcTensor, out: NhwcTensor, pair: tuple[Array, Array], *, given: int = 0, made: int = 0
) -> None:
    """RESCALE with one rounding, half up.

    Args:
        pair: m and e, one for all or one for each channel, the last axis.
        given: The zero point that is taken off; made: the one that is put on.
    """
    m, e = pair
    kinds = [np.int32 if held.qparams is None else np.int8 for held in (x, out)]
    each = len(m) > 1
    numbers = [graph.constant(v, t, f"{out.name}.{n}" * each) for v, t, n in (
        (m, np.int32, "multiplier"), (e, np.int8, "shift"))]  # fmt: skip
    zeros = [graph.constant(z, t) for z, t in zip((given, made), kinds, strict=True)]
    graph.node(
        "RESCALE", [x, *numbers, *zeros], out, scale32=1, rounding_mode=SINGLE_ROUND, per_channel=int(each), input_unsigned=0,
        output_unsigned=0,
    )  # fmt: skip


def widened(graph: TosaBuilder, x: NhwcTensor, name: str, real: float = 1.0, bits: int = 0) -> NhwcTensor:
    """Return (q - z) * real * 2^bits in int32, rounded half up."""
    made = graph.wide(name, x.shape)
    m, e = multiplier(np.asarray(real))
    rescale(graph, x, made, (m, e - bits), given=qparams_of(x)[1])
    return made


def clamp(graph: TosaBuilder, x: NhwcTensor, out: NhwcTensor, low: float | None, high: float | None) -> None:
    """CLAMP between the codes of two real values."""
    scale, zero = qparams_of(out)
    ends = [d if b is None else int(np.clip(np.rint(np.float32(b) / np.float32(scale)) + zero, -128, 127))
            for b, d in ((low, -128), (high, 127))]  # fmt: skip
    between(graph, x, out, ends[0], ends[1])


def between(graph: TosaBuilder, x: NhwcTensor, out: NhwcTensor, low: int, high: int) -> None:
    """CLAMP between two codes."""
    low_, high_ = (np.array([v], np.int8).tobytes() for v in (low, high))
    graph.node("CLAMP", [x], out, min_val=low_, max_val=high_, nan_mode=PROPAGATE)


__all__ = [
    "BOUNDS",
    "between",
    "clamp",
    "clamp_fused",
    "multiplier",
    "qparams_of",
    "scale_ratio",
    "rescale",
    "to_codes",
    "widened",
]
