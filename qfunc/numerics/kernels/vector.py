"""Vector kernels whose remainder loop rounds differently from the vector loop."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from qfunc.numerics.kernels import fixed_point
from qfunc.numerics.kernels.integer import fma, int32_codes, quantize_int32
from qfunc.numerics.rounding import round_by


def dequantize_sum(codes: Tensor, scale: float, zero_point: int, lanes: int, fused: bool = False) -> Tensor:
    """Return the real values of codes in float32: see `specs.DequantizeSum`.

    q*s + (-z*s) in the vector loop, (q - z)*s for the last n mod `lanes`.  `fused`: one rounding for product and sum.

    >>> dequantize_sum(torch.tensor([4.0]), 0.25, 3, 16).tolist()
    [0.25]
    """
    s, flat = torch.tensor(scale), codes.contiguous().reshape(-1)
    vector = torch.arange(flat.numel(), device=flat.device) < flat.numel() // lanes * lanes
    shift = s * -float(zero_point)
    summed = fma(flat, s, shift) if fused else flat * s + shift
    return torch.where(vector, summed, (flat - zero_point) * s).reshape(codes.shape)


def quantize_lanes(
    x: Tensor, scale: float, zero_point: int, low: int, high: int, rounding: str, division: bool, rest: str, lanes: int,
    saturates: bool = False,
) -> Tensor:  # fmt: skip
    """Return the codes of `quantize_int32`, with x / s in float64 for the last n mod `lanes`: see `specs.QuantizeLanes`.

    >>> quantize_lanes(torch.tensor([0.5, 0.5, 0.5]), 1.0, 3, 0, 255, "half_even", False, "half_away", 2).tolist()
    [3.0, 3.0, 4.0]
    """
    flat = x.contiguous().reshape(-1)
    whole = flat.numel() // lanes * lanes
    vector = quantize_int32(flat[:whole], scale, zero_point, low, high, rounding, division, saturates)
    last = int32_codes(round_by(flat[whole:].double() / scale, rest, low - zero_point), zero_point, low, high, saturates)
    return torch.cat([vector, last]).reshape(x.shape)


def product_lanes(
    acc: Tensor, a: Tensor, b: Tensor, m: Tensor, e: Tensor, bits: int, lanes: int, zero_point: int, low: int, high: int,
    channels_last: bool = False,
) -> Tensor:  # fmt: skip
    """Return the codes of the product `acc` of a and b: see `specs.ProductLanes`.

    `channels_last`: as that of `addition.add_shifted`.

    >>> a, m = torch.tensor([200.0, 10.0]), torch.tensor(2**30)
    >>> product_lanes(a * a, a, a, m, torch.tensor(30), 16, 2, 3, -128, 127).tolist()
    [-128.0, 103.0]
    """
    p = fixed_point.scale_fixed(acc, m, e, ("srdhm", "half_away"))
    half = 1 << (bits - 1)
    narrow = wrapped(p.clamp(-half, half - 1) + zero_point, bits)
    return torch.where(in_vectors(a, b, lanes, channels_last, numbers=lanes), narrow, p + zero_point).clamp(low, high).float()


def wrapped(x: Tensor, bits: int) -> Tensor:
    """Return integers modulo 2^bits, as signed integers of `bits` bits.

    >>> wrapped(torch.tensor([32770, 32767, -115712]), 16).tolist()
    [-32766, 32767, 15360]
    """
    half = 1 << (bits - 1)
    return torch.remainder(x + half, 2 * half) - half


def in_vectors(a: Tensor, b: Tensor, lanes: int, channels_last: bool, *, numbers: int = 0) -> Tensor:
    """Return `in_vector_loop` of two tensors; with `channels_last`, axis 1 of images is the last in memory."""
    if channels_last and a.ndim == b.ndim == 4:
        last = [t.permute(0, 2, 3, 1).shape for t in (a, b)]
        return in_vector_loop(last[0], last[1], lanes, numbers=numbers).permute(0, 3, 1, 2).to(a.device)
    return in_vector_loop(a.shape, b.shape, lanes, numbers=numbers).to(a.device)


def in_vector_loop(a: Sequence[int], b: Sequence[int], lanes: int, *, numbers: int = 0) -> Tensor:
    """Return True for the entries of a + b that the vector loop of a kernel computes: see `specs.SumShifted`.

    a and b are shapes in memory order.  The kernel processes rows of equal trailing sizes one after the other, each in
    whole runs of `lanes`, or of `numbers` where one number meets many.  It uses no vectors where that is 0, and where the
    broadcast side changes twice.

    >>> in_vector_loop((2, 5), (5,), 2).long().tolist()
    [[1, 1, 1, 1, 0], [1, 1, 1, 1, 0]]
    """
    rank = max(len(a), len(b))
    first, second = ((1,) * (rank - len(given)) + tuple(given) for given in (a, b))
    pairs = list(zip(first, second, strict=True))
    shape = [n if m == 1 else m for m, n in pairs]
    axes = [pair for pair in pairs if pair != (1, 1)][::-1]
    groups = [(kind, math.prod(map(max, sizes))) for kind, sizes in itertools.groupby(axes, _kind)]
    sides = [kind for kind, _ in groups if kind]
    together = (numbers if groups[0][0] else lanes) if groups and len(set(sides)) == len(sides) else 0
    run = groups[0][1] if together else 0
    return torch.arange(math.prod(shape)).view(shape) % max(run, 1) < run // max(together, 1) * together


def _kind(sizes: tuple[int, int]) -> str:
    # The tensor that is broadcast along an axis.
    return "" if sizes[0] == sizes[1] else "first" if sizes[0] == 1 else "second"
