"""Compute the quantization error of candidate ranges from a sketch of the data."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from qfunc.estimators.binning import Bins
from qfunc.estimators.replace_fields import replace_fields
from qfunc.estimators.sketch import Sketch, magnitude, of_values
from qfunc.numerics.affine import dequantize, quantize
from qfunc.numerics.qparams import Affine, from_range
from qfunc.numerics.rounding import round_by
from qfunc.specs import Int, PerBlock, PerTensor, Scheme

Error = Callable[[Tensor, Tensor], Tensor]
"""(low, high) of n candidates, float32 [n, *shape] -> their errors, float64 [n, *shape] in units of max|x|^p."""

DIRECTED = ("floor", "trunc")
"""Roundings with errors up to a whole step."""

AT_ONCE = 1 << 16
"""Number of terms evaluated together; they fit into the cache of one core."""

FIRST = 8
"""Number of candidates before the first test whether later ones can be better; each next test comes after twice as many."""

TOLERANCE = 1e-9
"""Relative rounding error allowed to a float64 sum."""

_PER_TENSOR = PerTensor()
Rows = tuple[Tensor, ...]
"""Tensors with one row per block; the points or edges come first."""


def error_of(state: Sketch, bins: Bins, scheme: Scheme, p: float) -> Error:
    """Return sum |x_hat - x|^p as a function of the range.

    For an Int scheme and counts, the sum over a bin [a, b] of c elements is c/(b-a) times the integral over it.
    In units u = x/s, the error |u - q|^p with q = clamp(R(u) + z) - z has the integral

        G(u) = q C + sign(u - q) |u - q|^(p+1) / (p+1),  C = 2 (1/2)^(p+1) / (p+1) to nearest, 1 / (p+1) else,

    also where it clips, so that a bin costs two values of G.  A bin's sum differs from the sum over its elements
    by at most c times the spread of the error over the bin.  For other formats the error is that of each bin's
    midpoint.  Stochastic rounding is evaluated as rounding to nearest.

    Args:
        state: A sketch that is not empty.
        bins: The bins of the sketch.
        p: The norm.
    """
    unit = magnitude(state.low, state.high).double()
    unit = torch.where(unit > 0, unit, 1.0)
    if state.values.shape[-1]:
        return partial(_of_points, state.values, torch.ones_like(unit).unsqueeze(-1), unit, scheme, p)
    edges, counts = of_values(state, bins)
    if isinstance(scheme.format, Int):
        return partial(_of_bins, *_densities(edges, counts, unit), unit, scheme, p)
    used = _used(counts)
    middles = ((edges[..., 1:] + edges[..., :-1]) / 2)[..., used]
    return partial(_of_points, middles.float(), counts[..., used].double(), unit, scheme, p)


def _of_points(points: Tensor, weights: Tensor, unit: Tensor, scheme: Scheme, p: float, low: Tensor, high: Tensor) -> Tensor:
    # sum w |x_hat - x|^p over points x of weight w, quantized and dequantized by the scheme.
    scheme, rows = _of_rows(scheme), points.shape[:-1].numel()

    def weighted_sum(error: Tensor, weights: Tensor, unit: Tensor) -> Tensor:
        relative = error.double().div_(unit).abs_()
        return (relative.square_() if p == 2 else relative.pow_(p)).mul_(weights).sum(-1)

    def cost(data: Rows, scale: Tensor, zero: Tensor) -> Tensor:
        points, *rest = data
        affine = Affine(scale.unsqueeze(-1), zero.unsqueeze(-1))
        candidates = points.expand(len(scale), *points.shape)
        return weighted_sum(dequantize(quantize(candidates, affine, scheme), affine, scheme) - candidates, *rest)

    def beyond(data: Rows, least: Tensor, most: Tensor) -> Tensor:
        points, *rest = data
        return weighted_sum(points - points.clamp(least.float(), most.float()), *rest)

    data = tuple(t.reshape(rows, -1) for t in (points, weights, unit))
    return _costs(data, _qparams(low, high, scheme), scheme, cost, beyond)


def _costs(data: Rows, qparams: Affine, scheme: Scheme, cost: Callable[..., Tensor], beyond: Callable[..., Tensor]) -> Tensor:
    # cost(data, scale, zero) of all candidates for every row, in parts that fit into the cache.
    count, rows, terms = len(qparams.scale), len(data[0]), max(1, data[0].shape[-1])
    scale, zero, least, most = (t.reshape(count, rows) for t in (*qparams[:2], *_reached(qparams, scheme)))
    size, costs = max(1, AT_ONCE // terms), []
    for i in range(0, rows, size):
        part = tuple(t[i : i + size] for t in data)
        trial = [t[:, i : i + size] for t in (scale, zero, least, most)]
        costs.append(_pruned(part, trial[0], trial[1], trial[2], trial[3], cost, beyond))
    return torch.cat(costs, -1).view(qparams.scale.shape)


def _pruned(
    data: Rows, scale: Tensor, zero: Tensor, least: Tensor, most: Tensor, cost: Callable[..., Tensor],
    beyond: Callable[..., Tensor],
) -> Tensor:  # fmt: skip
    # A candidate costs inf if its clipping error, and that of all later ones, exceeds the smallest cost before it.
    count, rows = scale.shape
    costs = torch.full((count, rows), torch.inf, dtype=torch.float64, device=scale.device)
    left: Tensor | slice = slice(None)
    size, i = max(1, AT_ONCE // max(1, data[0].numel())), 0
    while i < count:
        if i and not torch.compiler.is_compiling():
            clipped = beyond(data, least[i, left].unsqueeze(-1), most[i, left].unsqueeze(-1))
            closed = clipped > costs[:i, left].amin(0) * (1 + TOLERANCE)
            if closed.all():
                break
            if closed.any():
                left, data = torch.arange(rows, device=scale.device)[left][~closed], tuple(t[~closed] for t in data)
        until = min(max(2 * i, FIRST), count)
        for j in range(i, until, size):
            trial = slice(j, min(j + size, until))
            costs[trial, left] = cost(data, scale[trial, left], zero[trial, left])
        i = until
    return costs


def _reached(qparams: Affine, scheme: Scheme) -> tuple[Tensor, Tensor]:
    # The smallest and the largest value that a candidate or a later one represents; infinite if unknown.
    fmt = scheme.format
    if not isinstance(fmt, Int):
        unbounded = torch.full_like(qparams.scale, torch.inf)
        return -unbounded, unbounded
    zero = 0 if scheme.zero_point is None else qparams.zero_point.double()
    ends = torch.stack([(code - zero) * qparams.scale.double() for code in (fmt.qmin, fmt.qmax)]).flip(1)
    return ends.amin(0).cummin(0).values.flip(0), ends.amax(0).cummax(0).values.flip(0)


def _densities(edges: Tensor, counts: Tensor, unit: Tensor) -> tuple[Tensor, Tensor]:
    # sum_i w_i (G(e_i+1) - G(e_i)) with densities w_i = c_i / (e_i+1 - e_i) is sum_j fall_j G(e_j), fall_j = w_j-1 - w_j.
    edges = edges / unit.unsqueeze(-1)
    width = edges.diff()
    density = torch.where(width > 0, counts / width, 0.0)
    fall = -torch.nn.functional.pad(density, (1, 1)).diff()
    used = _used(fall)
    return edges[..., used].contiguous(), fall[..., used].contiguous()


def _used(values: Tensor) -> Tensor | slice:
    # The indices at which some block is not 0; while compiling all, because their number depends on the data.
    if torch.compiler.is_compiling():
        return slice(None)
    return values.reshape(-1, values.shape[-1]).any(0).nonzero().squeeze(-1)


def _of_bins(edges: Tensor, fall: Tensor, unit: Tensor, scheme: Scheme, p: float, low: Tensor, high: Tensor) -> Tensor:
    # sum_j fall_j G(edge_j / s) s^(p+1), one row per block.
    qparams = _qparams(low, high, scheme)
    qparams = Affine(qparams.scale.double() / unit, qparams.zero_point.double())
    rows = unit.numel()
    edges, fall = whole = tuple(t.view(rows, t.shape[-1]) for t in (edges, fall))
    offset = edges.new_zeros(rows)
    if scheme.rounding not in DIRECTED and not torch.compiler.is_compiling():
        # At edges that every candidate rounds to 0, G(e/s) s^(p+1) is the same for all candidates.
        outer = edges.abs() * 2 > qparams.scale.abs().reshape(len(low), -1).amin(0).unsqueeze(-1)
        offset = torch.linalg.vecdot(torch.where(outer, 0.0, _power(edges, p)), fall) / (p + 1)
        used = outer.any(0)
        fall = torch.where(outer, fall, 0.0)[:, used]
        edges = edges[:, used]

    buffers = edges.new_empty((3, max(AT_ONCE, edges.shape[-1])))  # reused, because allocating takes longer than the sums

    def cost(data: Rows, scale: Tensor, zero: Tensor) -> Tensor:
        edges, fall, offset = data[:3]
        used = (t[: len(scale) * edges.numel()].view(len(scale), *edges.shape) for t in buffers)
        return _summed(edges, fall, scale.unsqueeze(-1), zero.unsqueeze(-1), scheme, p, *used) + offset.squeeze(-1)

    def beyond(data: Rows, least: Tensor, most: Tensor) -> Tensor:
        edges, fall = data[3:]
        return _power(edges - edges.clamp(least, most), p).mul_(fall).sum(-1) / (p + 1)

    return _costs((edges, fall, offset.unsqueeze(-1), *whole), qparams, scheme, cost, beyond)


def _summed(
    edges: Tensor, fall: Tensor, scale: Tensor, zero: Tensor, scheme: Scheme, p: float, real: Tensor, code: Tensor,
    beyond: Tensor,
) -> Tensor:  # fmt: skip
    # The costs [n, rows] of scales [n, rows, 1]; the last three arguments are buffers.
    # G is continuous, so q + z = clamp(R(u + z)) may be used even where it differs from R(u) + z.
    fmt = scheme.format
    assert isinstance(fmt, Int)
    directed = scheme.rounding in DIRECTED
    cell = (1.0 if directed else 2.0**-p) / (p + 1)
    shift = torch.zeros_like(scale) if scheme.zero_point is None else zero
    torch.addcmul(shift, edges, scale.reciprocal(), out=real)
    if directed:
        code.copy_(round_by(real - shift, scheme.rounding).add_(shift))
    else:
        torch.round(real, out=code)
    real.sub_(code.clamp_(fmt.qmin, fmt.qmax))
    if p == 2:
        torch.mul(real, real, out=beyond).mul_(real)
    else:
        beyond.copy_(_power(real, p))
    total = beyond.mul_(1 / (p + 1)).add_(code, alpha=cell).mul_(fall).sum(-1, keepdim=True)
    total -= cell * shift * fall.sum(-1, keepdim=True)
    return (total * scale * scale.abs() ** p).squeeze(-1)  # du = dx / s, and s may be negative


def _power(x: Tensor, p: float) -> Tensor:
    # sign(x) |x|^(p+1)
    return x.square() * x if p == 2 else torch.copysign(x.abs().pow_(p + 1), x)


def _of_rows(scheme: Scheme) -> Scheme:
    # The rows of the data are the blocks, so one scale per tensor is one per row.
    if not isinstance(scheme.scale.shared, PerBlock):
        return scheme
    return replace_fields(scheme, scale=replace_fields(scheme.scale, shared=_PER_TENSOR))


def _qparams(low: Tensor, high: Tensor, scheme: Scheme) -> Affine:
    # The qparams of every candidate; an outer scale, shared among blocks, is multiplied into the scale.
    if scheme.scale.within is None:
        return from_range(low, high, scheme)
    candidates = [from_range(a, b, scheme) for a, b in zip(low, high, strict=True)]
    scales = [e.scale if e.outer is None else e.scale * e.outer for e in candidates]
    return Affine(torch.stack(scales), torch.stack([e.zero_point for e in candidates]))
