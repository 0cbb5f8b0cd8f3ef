"""Products whose input is quantized at run time, in float32 and in an engine's own order: see `specs.DynamicProduct`.

A group is a token, or a block along K, the last axis; per-group tensors are [..., G] with G groups in a token.
"""

from __future__ import annotations

import torch
from torch import Tensor

from qfunc.numerics.kernels.integer import fma
from qfunc.numerics.rounding import round_by

_TINY = torch.finfo(torch.float32).tiny


def flushed(x: Tensor, flushes: bool = True) -> Tensor:
    """Return x in float32, with 0 for values below 2^-126 if `flushes`.

    >>> flushed(torch.tensor([2.0**-126, 2.0**-127])).tolist()
    [1.1754943508222875e-38, 0.0]
    """
    return torch.where(x.abs() < _TINY, torch.zeros_like(x), x) if flushes else x


def extremes(x: Tensor, size: int | None, flushes: bool) -> tuple[Tensor, Tensor]:
    """Return (l, h) of each group of `size` entries, None for tokens: min(x, 0) and max(x, 0)."""
    groups = flushed(x, flushes).reshape(*x.shape[:-1], -1, size or x.shape[-1])
    return groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)


def multipliers(x: Tensor, size: int | None, steps: float, symmetric: bool, quotient: str, flushes: bool) -> Tensor:
    """Return r of each group: n / e, or with quotient="last" 1 / (e / n); 1 where e is 0.

    >>> multipliers(torch.tensor([[0.0, 51.0]]), None, 255.0, False, "first", False).tolist()
    [[5.0]]
    """
    span = _span(x, size, symmetric, flushes)
    n = torch.full_like(span, steps)  # PyTorch multiplies by 1 / span in a quotient of a number
    ratio = 1 / flushed(span / n, flushes) if quotient == "last" else n / span
    return torch.where(span == 0, 1.0, flushed(ratio, flushes))


def input_scales(
    x: Tensor, r: Tensor, size: int | None, steps: float, symmetric: bool, quotient: str, dtype: str, flushes: bool
) -> Tensor:
    """Return s_x of each group: e / n, or with quotient="first" 1 / r; rounded to `dtype`, in float32; 1 where e is 0.

    >>> x = torch.tensor([[0.0, 51.0]])
    >>> input_scales(x, torch.tensor([[5.0]]), None, 255.0, False, "first", "float32", False).tolist()
    [[0.20000000298023224]]
    """
    span = _span(x, size, symmetric, flushes)
    scale = 1 / r if quotient == "first" else span / torch.full_like(span, steps)
    return torch.where(span == 0, 1.0, flushed(scale, flushes)).to(getattr(torch, dtype)).float()


def _span(x: Tensor, size: int | None, symmetric: bool, flushes: bool) -> Tensor:
    low, high = extremes(x, size, flushes)
    return torch.maximum(-low, high) if symmetric else flushed(high - low, flushes)


def input_zero_points(
    x: Tensor, r: Tensor, size: int | None, low: int, high: int, rounding: str, nearest: bool, flushes: bool
) -> Tensor:
    """Return z of each group: R(clamp(qmin - l r)), or of `nearest` R(clamp(qmax - h r)) where that has the smaller error.

    >>> x, r = torch.tensor([[-1.0, 50.0]]), torch.tensor([[5.0]])
    >>> input_zero_points(x, r, None, -128, 127, "half_even", False, False).tolist()
    [[-123.0]]
    """
    least, most = (flushed(end * r, flushes) for end in extremes(x, size, flushes))
    value = low - least
    if nearest:
        value = torch.where((low + least) + (high + most) > 0, value, high - most)
    return round_by(value.nan_to_num(float(low)).clamp(low, high), rounding)


def input_codes(x: Tensor, r: Tensor, z: Tensor | None, low: int, high: int, rounding: str, flushes: bool) -> Tensor:
    """Return the codes of x: clamp(R(x r) + z).

    >>> input_codes(torch.tensor([[-1.0, 2.5]]), torch.tensor([[5.0]]), torch.tensor([[-123.0]]), -128, 127, "half_even", False)
    tensor([[-128., -111.]])
    """
    groups = flushed(x, flushes).reshape(*r.shape, -1)
    zero = torch.zeros_like(r) if z is None else z
    real = flushed(groups * r[..., None], flushes).nan_to_num(torch.inf, torch.inf, -torch.inf)
    real = torch.minimum(torch.maximum(real, low - zero[..., None]), high - zero[..., None])
    return (round_by(real, rounding, low) + zero[..., None]).flatten(-2)


def weight_sums(weight: Tensor, scale: Tensor, run: int) -> Tensor:
    """Return k of each output: -sum_j float32(c_j s_w), in float32 and in order; see `specs.WeightSums`.

    Args:
        weight: Codes [O, K].
        scale: Their scales [O, K / block].
        run: The codes of K in one c_j.

    >>> weight_sums(torch.tensor([[1.0, 2.0, 3.0, 4.0]]), torch.tensor([[0.5, 2.0]]), 2).tolist()
    [-15.5]
    """
    block, total = weight.shape[1] // scale.shape[1], torch.zeros(weight.shape[0], device=weight.device)
    for start in range(0, weight.shape[1], run):
        total = total - weight[:, start : start + run].sum(1) * scale[:, start // block]
    return total


def block_sums(
    codes: Tensor, z: Tensor | None, s_x: Tensor | None, weight: Tensor, s_w: Tensor, count: int, run: int, fused: bool,
    flushes: bool, sums: Tensor | None = None, order: str = "halves", part: int | None = None,
    more: tuple[Tensor, int] | None = None, first: tuple[Tensor, Tensor, int] | None = None,
    rest: str = "lanes",
) -> Tensor:  # fmt: skip
    """Return v of each token and output: acc_b m_b added for one block after the other, in `count` lanes.

    Args:
        codes: q_x [..., K].
        z: Zero points [..., G]; None if there are none, or if `sums` has their part.
        s_x: Scales [..., G] that are multiplied inside; None if they come after the sum.
        weight: q_w [O, K]; s_w: their scales [O, K / block].
        count, run, order, rest: See `specs.Lanes`.
        fused: v + acc_b m_b has one rounding.
        flushes: Values below 2^-126 are 0.
        sums: v_0 [..., O], of lane 0.
        part: The most entries of one acc_b.
        more: Other integers [O, K] whose products are added to acc_b, in lanes of runs of this length.
        first: Other integers [O, K] and their scales, whose a_b m_b is added to v before acc_b, in lanes of such runs.

    >>> x, w = torch.tensor([[2.0, 3.0]]), torch.tensor([[4.0, 5.0]])
    >>> block_sums(x, None, None, w, torch.tensor([[1.0, 0.5]]), 1, 1, True, False).tolist()
    [[15.5]]
    """
    size = weight.shape[1]
    groups = 1 if s_x is None else s_x.shape[-1]
    blocks = max(groups, s_w.shape[1], size // (part or size))
    width = size // blocks
    offsets = codes if z is None else codes - z.repeat_interleave(size // z.shape[-1], -1)
    entries = torch.arange(size, device=weight.device)
    terms = [(matrix, entries // length % count) for matrix, length in ((weight, run), *(() if more is None else (more,)))]
    totals = [torch.zeros((*codes.shape[:-1], weight.shape[0]), device=weight.device) for _ in range(count)]
    if sums is not None:
        totals[0] = flushed(sums, flushes)
    sides = [(terms, s_w)]
    if first is not None:
        sides.insert(0, ([(first[0], entries // first[2] % count)], first[1]))
    end = size // (count * run) * count * run if rest == "after" else size

    def factor(scale: Tensor, b: int) -> Tensor:
        m = scale[:, b * scale.shape[1] // blocks]
        return m if s_x is None else flushed(s_x[..., b * groups // blocks, None] * m, flushes)

    for b in range(end // width):
        span = slice(b * width, (b + 1) * width)
        x = offsets[..., span].double()
        for added, scale in sides:
            m = factor(scale, b)
            for i in sorted({i for _, lane in added for i in lane[span].tolist()}):
                products = [x[..., lane[span] == i] @ w[:, span][:, lane[span] == i].double().T for w, lane in added]
                acc = sum(products[1:], products[0]).float()
                totals[i] = flushed(_add(acc, m.expand_as(acc), totals[i], fused, flushes), flushes)
    while len(totals) > 1:
        half = len(totals) // 2
        pairs = (totals[:half], totals[half:]) if order == "halves" else (totals[::2], totals[1::2])
        totals = [flushed(a + b, flushes) for a, b in zip(*pairs, strict=True)]
    (total,) = totals
    for b in range(end // width, blocks):
        span = slice(b * width, (b + 1) * width)
        acc = (offsets[..., span].double() @ weight[:, span].double().T).float()
        total = flushed(_add(acc, factor(s_w, b).expand_as(acc), total, fused, flushes), flushes)
    return total


def _add(acc: Tensor, m: Tensor, total: Tensor, fused: bool, flushes: bool) -> Tensor:
    return fma(acc, m, total) if fused else total + flushed(acc * m, flushes)


def scaled_sums(
    v: Tensor,
    s_x: Tensor | None,
    bias: Tensor | None,
    bounds: list[tuple[float | None, float | None]],
    clamps: bool,
    flushes: bool,
    fused: bool = False,
) -> Tensor:
    """Return v s_x + bias with two roundings, or one if `fused`, in the bounds; `clamps`: the lower one, or -inf, for NaN.

    >>> scaled_sums(torch.tensor([[3.0]]), torch.tensor([[2.0]]), torch.tensor([1.0]), [], True, False).tolist()
    [[7.0]]
    """
    scale = torch.ones_like(v) if s_x is None else s_x.expand_as(v)
    offset = torch.zeros_like(v) if bias is None else flushed(bias, flushes).expand_as(v)
    value = fma(v, scale, offset) if fused else flushed(v * scale, flushes) + offset
    value = flushed(value, flushes)
    for low, high in bounds or [(None, None)]:
        least = -torch.inf if low is None else low
        value = torch.where(value.isnan(), least, value) if clamps else value
        value = value.clamp(least, torch.inf if high is None else high)
    return value
