"""Average pools on codes: float inside, or integer sums with a rounded division."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from qfunc.graph.vocabulary import attribute, slots
from qfunc.numerics import integer
from qfunc.numerics.rounding import round_by
from qfunc.specs import Interior
from qfunc.transforms.job import Job


def quantize_interior(
    real: Tensor, scale: float, zero_point: int, low: int, high: int, rounding: str, division: bool, place: str
) -> Tensor:
    """clamp(R(v/s) + z), or clamp(R(v/s + z)) with place "before": see `specs.Interior`."""
    if place == "after":
        return integer.quantize_codes(real, scale, zero_point, low, high, rounding, division)
    s = torch.tensor(scale, dtype=torch.float32)
    return round_by((real / s if division else real * (1 / s)) + zero_point, rounding, low).clamp(low, high)


def window_sum(job: Job, arithmetic: Interior) -> fx.Node:
    """The node of an average pool in float, summed in window order."""
    x, (zero, low, high) = job.given(slots(job.root)[0][1]), job.range()
    if job.unit.kind == "adaptive_avg_pool":
        return job.emitter.call(
            adaptive_pool_codes, x.node, x.coding.scale, x.coding.zero_point, attribute(job.root, "output_size"),
            job.output.scale, zero, low, high, arithmetic.rounding, name=job.name, result=True,
        )  # fmt: skip
    rank = 1 if job.root.target is F.avg_pool1d else 2 if job.root.target is F.avg_pool2d else 3

    def each(name: str) -> list[int]:
        value = attribute(job.root, name)
        return [value] * rank if isinstance(value, int) else [int(v) for v in value]

    return job.emitter.call(
        average_pool_codes, x.node, x.coding.scale, x.coding.zero_point, each("kernel_size"), each("stride"), each("padding"),
        attribute(job.root, "ceil_mode"), attribute(job.root, "count_include_pad"), job.output.scale, zero, low, high,
        arithmetic.rounding, name=job.name, result=True,
    )  # fmt: skip


def average_pool_codes(
    codes: Tensor, scale_in: float, zero_in: int, kernel: list[int], stride: list[int], padding: list[int], ceil_mode: bool,
    include_pad: bool, scale: float, zero_point: int, low: int, high: int, rounding: str,
) -> Tensor:  # fmt: skip
    """Codes of average pooling in float, zero point before rounding; a window over everything is a global average."""
    if list(codes.shape[2:]) == kernel and not any(padding) and codes.ndim == 4:
        return integer.global_average_codes(codes, zero_in, scale_in, scale, zero_point, low, high, rounding, True)
    real = integer.dequantize_codes(codes, scale_in, zero_in)
    mean = integer.average_pool_real(real, tuple(kernel), tuple(stride), tuple(padding), ceil_mode, include_pad)
    return quantize_interior(mean, scale, zero_point, low, high, rounding, True, "before")


def adaptive_pool_codes(
    codes: Tensor, scale_in: float, zero_in: int, size: Any, scale: float, zero_point: int, low: int, high: int, rounding: str
) -> Tensor:
    """Codes of average pooling to a size that divides the input's: windows that do not overlap."""
    spatial = list(codes.shape[2:])
    wanted = (
        [size] * len(spatial)
        if isinstance(size, int)
        else [s if s is not None else n for s, n in zip(size, spatial, strict=True)]
    )
    kernel = [n // s for n, s in zip(spatial, wanted, strict=True)]
    none = [0] * len(kernel)
    return average_pool_codes(
        codes, scale_in, zero_in, kernel, kernel, none, False, True, scale, zero_point, low, high, rounding
    )


def average(job: Job, rounding: str, reciprocals: Any) -> fx.Node:
    """The node of a `specs.AveragePool` unit."""
    # Integer average: equal scales in and out; sum, then a rounded division or the chip's reciprocal.
    x = job.given(slots(job.root)[0][1])
    kernel = None if job.unit.kind == "global_avg_pool" else attribute(job.root, "kernel_size")
    table = {tuple(k): (m, s) for k, m, s in reciprocals}
    arguments = (kernel, *(attribute(job.root, n) for n in ("stride", "padding"))) if kernel else (None, None, 0)
    return job.emitter.call(
        average_codes, x.node, x.coding.zero_point, *arguments, x.coding.scale / job.output.scale,
        [[*k, m, s] for k, (m, s) in table.items()], rounding, *job.range(), name=job.name, result=True,
    )  # fmt: skip


def average_codes(
    codes: Tensor, zero_in: int, kernel: Any, stride: Any, padding: Any, ratio: float, reciprocals: list[list[int]],
    rounding: str, zero_point: int, low: int, high: int,
) -> Tensor:  # fmt: skip
    """Codes of an integer average: R(sum * ratio / n), or R(sum * n * m / (n * 2^s) * ratio) with a reciprocal (m, s)."""
    window = list(codes.shape[-2:]) if kernel is None else [kernel] * 2 if isinstance(kernel, int) else list(kernel)
    total = F.avg_pool2d((codes - zero_in).double(), window, stride or window, padding, divisor_override=1)
    chosen = next((r for r in reciprocals if r[:2] == window), None)
    share = chosen[2] / 2.0 ** chosen[3] if chosen else 1 / (window[0] * window[1])
    exact = total * (ratio * share) if chosen else total * ratio / (window[0] * window[1])
    return (round_by(exact, rounding, low) + zero_point).clamp(low, high).float()
