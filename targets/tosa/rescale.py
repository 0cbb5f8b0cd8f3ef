"""RESCALE and CLAMP: from wide integers to codes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from qfunc.errors import DeployError
from qfunc.lowering.nhwc.tensor import NhwcTensor
from qfunc.lowering.qdq.qparams import Array, QParams
from qfunc.numerics.kernels.fixed_point import fixed_multiplier
from qfunc.targets.tosa.builder import TosaBuilder
from qfunc.targets.tosa.schema import PROPAGATE, SINGLE_ROUND

BOUNDS: dict[str, tuple[float | None, float | None]] = {
    "RELU": (0.0, None), "RELU6": (0.0, 6.0), "RELU_N1_TO_1": (-1.0, 1.0),
}  # fmt: skip
"""The real bounds of the activations that TFLite fuses, by operator."""


def qparams_of(tensor: NhwcTensor) -> tuple[float, int]:
    """Return (scale, zero point) of a tensor of codes."""
    assert tensor.qparams is not None
    return tensor.qparams.scale[0], tensor.qparams.zero_point[0]


def scale_ratio(qparams: QParams, *factors: float) -> Array:
    """Return the scales of a tensor times the factors, in float64."""
    ratio = np.asarray(qparams.scale, np.float64)
    for factor in factors:
        ratio = ratio * np.float64(factor)
    return ratio


def multiplier(real: Array) -> tuple[Array, Array]:
    """Return (m, e) with real ~ m * 2^-e, m of 31 bits: see `specs.FixedPoint`; m = 0 has the shift of the widest range."""
    m, e = fixed_multiplier(torch.from_numpy(np.atleast_1d(np.asarray(real, np.float64))))
    return m.numpy(), np.where(m.numpy() == 0, 62, e.numpy())


def to_codes(
    graph: TosaBuilder, acc: NhwcTensor, out: NhwcTensor, pair: tuple[Array, Array], max_sums: Any, fields: Any
) -> None:
    """Write RESCALE from sums to codes, and CLAMP if an activation is fused.

    Args:
        pair: (m, e), each with one entry or with one for each channel (the last axis).
        max_sums: A bound of the magnitude of the sums, in the same shape.
    Raises:
        DeployError: sums outside the range of RESCALE.
    """
    require_range(out, pair, np.asarray(max_sums))
    unclamped = unclamped_output(graph, out, fields)
    rescale(graph, acc, unclamped, pair, output_zero=qparams_of(out)[1])
    clamp_fused(graph, unclamped, out, fields)


def unclamped_output(graph: TosaBuilder, out: NhwcTensor, fields: Any) -> NhwcTensor:
    """Return the tensor that an op writes before its fused activation: a new one, or `out` without an activation."""
    if BOUNDS.get(fields.get("fusedActivationFunction", "NONE")) is None:
        return out
    return graph.tensor_like(out, "unbounded")


def clamp_fused(graph: TosaBuilder, unclamped: NhwcTensor, out: NhwcTensor, fields: Any) -> None:
    """Write the CLAMP of a fused activation, if there is one."""
    bounds = BOUNDS.get(fields.get("fusedActivationFunction", "NONE"))
    if bounds is not None:
        write_clamp(graph, unclamped, out, *bounds)


def require_range(out: NhwcTensor, pair: tuple[Array, Array], max_sums: Array) -> None:
    """Raise unless RESCALE takes the values: it accepts int32 below 2^(shift - 1) and shifts from 2 to 62.

    Raises:
        DeployError: names the tensor.
    """
    _, e = pair
    limit = np.minimum(2.0 ** (e - 1.0), 2.0**31)
    if bool((max_sums >= limit).any()) or int(e.min()) < 2 or int(e.max()) > 62:
        worst = int(np.argmax(np.broadcast_to(max_sums, limit.shape) / limit))
        raise DeployError(
            where=f"tensor {out.name!r}",
            found=f"sums of up to {float(np.broadcast_to(max_sums, limit.shape)[worst]):.4g} before a shift by {int(e[worst])}",
            wanted="sums of int32, below 2^(shift - 1)",
            do="Calibrate on inputs of the deployed range: the output's scale is far below the scales of the products.",
        )


def rescale(
    graph: TosaBuilder, x: NhwcTensor, out: NhwcTensor, pair: tuple[Array, Array], *, input_zero: int = 0, output_zero: int = 0
) -> None:
    """Write RESCALE: (x - input_zero) * m * 2^-e + output_zero, rounded once, half up.

    Args:
        pair: (m, e), each with one entry or with one for each channel (the last axis).
    """
    m, e = pair
    dtypes = [np.int32 if tensor.qparams is None else np.int8 for tensor in (x, out)]
    per_channel = len(m) > 1
    numbers = [graph.constant(v, t, f"{out.name}.{n}" * per_channel) for v, t, n in (
        (m, np.int32, "multiplier"), (e, np.int8, "shift"))]  # fmt: skip
    zeros = [graph.constant(z, t) for z, t in zip((input_zero, output_zero), dtypes, strict=True)]
    graph.node(
        "RESCALE", [x, *numbers, *zeros], out, scale32=1, rounding_mode=SINGLE_ROUND, per_channel=int(per_channel),
        input_unsigned=0, output_unsigned=0,
    )  # fmt: skip


def to_int32(graph: TosaBuilder, x: NhwcTensor, name: str, real: float = 1.0, bits: int = 0) -> NhwcTensor:
    """Return (q - z) * real * 2^bits in int32, rounded half up."""
    result = graph.int32_tensor(name, x.shape)
    m, e = multiplier(np.asarray(real))
    rescale(graph, x, result, (m, e - bits), input_zero=qparams_of(x)[1])
    return result


def write_clamp(graph: TosaBuilder, x: NhwcTensor, out: NhwcTensor, low: float | None, high: float | None) -> None:
    """Write CLAMP between the codes of two real values; None is no bound."""
    scale, zero = qparams_of(out)
    codes = [d if b is None else int(np.clip(np.rint(np.float32(b) / np.float32(scale)) + zero, -128, 127))
            for b, d in ((low, -128), (high, 127))]  # fmt: skip
    clamp_codes(graph, x, out, codes[0], codes[1])


def clamp_codes(graph: TosaBuilder, x: NhwcTensor, out: NhwcTensor, low: int, high: int) -> None:
    """Write CLAMP between two codes."""
    low_byte, high_byte = (np.array([v], np.int8).tobytes() for v in (low, high))
    graph.node("CLAMP", [x], out, min_val=low_byte, max_val=high_byte, nan_mode=PROPAGATE)
