"""Add codes of different scales, with the arithmetic of each kind of kernel."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from qfunc.numerics.kernels import fixed_point
from qfunc.numerics.kernels.integer import fma
from qfunc.numerics.kernels.vector import in_vectors, wrapped
from qfunc.numerics.rounding import round_by


def add_codes(
    a: Tensor, scale_a: float, zero_a: int, b: Tensor, scale_b: float, zero_b: int,
    scale: float, zero_point: int, low: int, high: int, rounding: str, channels_last: bool | None = None, fused: bool = True,
) -> Tensor:  # fmt: skip
    """Return the codes of a + b, computed with two fused multiply-adds that include the zero point: see `specs.SumFma`.

    r_a = float32(s_a/s), r_b = float32(s_b/s), f = float32(z - fma(r_a, z_a, float32(r_b*z_b))).

    Args:
        fused: False for products and sums that are rounded each.
        channels_last: The runtime swaps the operands if, in its layout, a is constant along the last axis and b
            is not.  True: axis 1 is last (between convolutions).  False: the layout of the tensors.  None: the
            layout of the tensors, but 4-d tensors are not swapped, which is right for [N, C, 1, 1] between
            convolutions and for masks [N, 1, 1, T].
    Source: ONNX Runtime mlas/lib/qladd.cpp (AVX2, AVX512); the layouts are measured.

    >>> add_codes(torch.tensor([3.0]), 0.5, 1, torch.tensor([5.0]), 0.5, 1, 1.0, 0, 0, 255, "half_even").tolist()
    [3.0]
    """
    may_swap = a.shape != b.shape and (a.ndim != 4 or channels_last is not None)
    if may_swap and _scalar_along_last(a, b, bool(channels_last)):
        a, scale_a, zero_a, b, scale_b, zero_b = b, scale_b, zero_b, a, scale_a, zero_a
    f32 = torch.float32
    s = torch.tensor(scale, dtype=f32)
    r_a, r_b = torch.tensor(scale_a, dtype=f32) / s, torch.tensor(scale_b, dtype=f32) / s
    z_a, z_b = torch.tensor(float(zero_a)), torch.tensor(float(zero_b))
    if not fused:
        offset = torch.tensor(float(zero_point)) - (r_a * z_a + r_b * z_b)
        terms = (b * r_b, a * r_a) if _scalar_along_last(b, a, bool(channels_last)) else (a * r_a, b * r_b)
        return round_by(offset + terms[0] + terms[1], rounding, low).clamp(low, high)
    offset = torch.tensor(float(zero_point)) - fma(r_a, z_a, r_b * z_b)
    add = _wide_sum if _float64_is_exact(scale_a / scale, scale_b / scale) else fma
    return round_by(add(a, r_a, add(b, r_b, offset)), rounding, low).clamp(low, high)


def _wide_sum(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return (a.double() * b.double() + c.double()).float()


def _float64_is_exact(r_a: float, r_b: float) -> bool:
    # Every term is a multiple of the last bit of r_a, r_b or 1, and |codes| <= 2^16 bounds the sums.  If that many
    # bits fit into float64, the float64 sum is exact and the cast to float32 is the only rounding.
    last = min(1.0, *(2.0 ** (math.frexp(r)[1] - 25) for r in (r_a, r_b)))
    return 2.0**17 * (r_a + r_b + 1) < 2.0**53 * last


def _scalar_along_last(a: Tensor, b: Tensor, channels_last: bool) -> bool:
    rank = max(a.ndim, b.ndim)
    axes = [0, *range(2, rank), 1] if channels_last else list(range(rank))
    shapes = [(*[1] * (rank - t.ndim), *t.shape) for t in (a, b)]
    for axis in reversed(axes):
        n_a, n_b = (int(shape[axis]) for shape in shapes)
        if (n_a, n_b) != (1, 1):
            return n_a == 1 and n_b != 1
    return False


def add_shifted(
    a: Tensor, b: Tensor, zeros: tuple[int, int], pairs: list[tuple[int, int]], left_shift: int, steps: list[str],
    zero_point: int, low: int, high: int, sign: int = 1, lanes: int | None = None, channels_last: bool = False, bits: int = 32,
) -> Tensor:  # fmt: skip
    """Return the codes of a + sign * b in fixed point: see `specs.SumShifted`.

    `channels_last`: the runtime stores 4-d tensors with axis 1 last, which decides which entries its vectors compute.
    """
    m = [(torch.tensor(p), torch.tensor(e)) for p, e in pairs]
    terms = [
        fixed_point.scale_fixed((t - z).long() << left_shift, *scaling, steps)
        for t, z, scaling in zip((a, b), zeros, m, strict=False)
    ]
    for i, (t, z, (multiplier, e)) in enumerate(zip((a, b), zeros, pairs, strict=False)):
        if lanes is not None and 31 < e <= 31 + left_shift:
            exact_product = (t - z).long() << left_shift - (e - 31)
            exact_product = fixed_point.scale_fixed(exact_product, torch.tensor(multiplier), torch.tensor(31), steps)
            terms[i] = torch.where(in_vectors(a, b, lanes, channels_last), exact_product, terms[i])
    total = fixed_point.scale_fixed(terms[0] + sign * terms[1], *m[2], steps)
    if lanes is None or bits == 32:
        return (total + zero_point).clamp(low, high).float()
    vectors = in_vectors(a, b, lanes, channels_last, numbers=lanes // 2)
    return torch.where(vectors, wrapped(total + zero_point, bits), total + zero_point).clamp(low, high).float()


def add_scaled(
    a: Tensor, b: Tensor, zeros: tuple[int, int], m: list[int], shift: int, rounding: str, zero_point: int, low: int, high: int
) -> Tensor:
    """Return the codes of a + b, computed with two integer multipliers and one shift: see `specs.SumScaled`."""
    total = (a - zeros[0]).long() * m[0] + (b - zeros[1]).long() * m[1]
    left = total << max(-shift, 0)
    return (fixed_point.shift_right(left, torch.tensor(max(shift, 0)), rounding) + zero_point).clamp(low, high).float()


def add_by_shifts(
    a: Tensor, b: Tensor, zeros: tuple[int, int], left: list[int], shift: int, rounding: str, zero_point: int, low: int,
    high: int,
) -> Tensor:  # fmt: skip
    """Return clamp(R((a * 2^left_a + b * 2^left_b) * 2^-shift) + z): see `specs.Shift`; a negative shift shifts left."""
    terms = [(t - z).long() << s for t, z, s in zip((a, b), zeros, left, strict=True)]
    total = (terms[0] + terms[1]) << max(-shift, 0)
    return (fixed_point.shift_right(total, torch.tensor(max(shift, 0)), rounding) + zero_point).clamp(low, high).float()
