"""The error that a range would make, from a sketch of the data."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from qfunc.estimators.altered import altered
from qfunc.estimators.binning import Bins
from qfunc.estimators.sketch import Sketch, magnitude, on_the_line
from qfunc.numerics.affine import dequantize, quantize
from qfunc.numerics.qparams import Affine, from_range
from qfunc.numerics.rounding import round_by
from qfunc.specs import Int, PerBlock, Scale, Scheme

Error = Callable[[Tensor, Tensor], Tensor]
"""Candidates' low and high, float32 [n, *shape], to their errors, float64 [n, *shape] in units of max|x|^p."""

DIRECTED = ("floor", "trunc")
"""Roundings whose error is up to a whole step."""

AT_ONCE = 1 << 16
"""Terms evaluated together: what a core's cache holds."""

ONE = Scale()


def error_of(state: Sketch, bins: Bins, scheme: Scheme, p: float) -> Error:
    """sum |x_hat - x|^p as a function of the range.

    For an Int scheme and counts the sum over a bin [a, b] of c elements is c/(b-a) of the integral over it.
    In units u = x/s the error |u - q|, q = clamp(R(u) + z) - z, has the integral

        G(u) = q C + sign(u - q) |u - q|^(p+1) / (p+1),  C = 2 (1/2)^(p+1) / (p+1) to nearest, 1 / (p+1) else,

    also where it clips, so that a bin costs two values of G.  A bin's sum is off by at most c times the
    spread of the error over the bin: that of the elements themselves never differs by more.  Other
    formats take each bin's middle through the scheme.  Stochastic rounding is judged as to nearest.

    Args:
        state: Not empty.
        bins: Of the sketch.
        p: The norm.
    """
    scheme = _judged(scheme)
    unit = magnitude(state.low, state.high).double()
    unit = torch.where(unit > 0, unit, 1.0)
    if state.values.shape[-1]:
        return partial(_of_points, state.values, torch.ones_like(unit).unsqueeze(-1), unit, scheme, p)
    edges, counts = on_the_line(state, bins)
    if isinstance(scheme.format, Int):
        return partial(_of_bins, *_densities(edges, counts, unit), unit, scheme, p)
    used = _used(counts)
    middles = ((edges[..., 1:] + edges[..., :-1]) / 2)[..., used]
    return partial(_of_points, middles.float(), counts[..., used].double(), unit, scheme, p)


def _of_points(points: Tensor, weights: Tensor, unit: Tensor, scheme: Scheme, p: float, low: Tensor, high: Tensor) -> Tensor:
    # sum w |x_hat - x|^p over points x of weight w, by the scheme's own numerics.
    qparams = _qparams(low, high, scheme)
    costs: list[Tensor] = []
    scheme = _of_rows(scheme)
    for part in _parts(qparams, points.numel()):
        affine, each = (
            Affine(part.scale.unsqueeze(-1), part.zero_point.unsqueeze(-1)),
            points.expand(len(part.scale), *points.shape),
        )
        error = dequantize(quantize(each, affine, scheme), affine, scheme) - each
        relative = error.double().div_(unit.unsqueeze(-1)).abs_()
        costs.append((relative.square_() if p == 2 else relative.pow_(p)).mul_(weights).sum(-1))
    return torch.cat(costs)


def _densities(edges: Tensor, counts: Tensor, unit: Tensor) -> tuple[Tensor, Tensor]:
    # sum_i w_i (G(e_i+1) - G(e_i)) with densities w_i = c_i / (e_i+1 - e_i) is sum_j fall_j G(e_j), fall_j = w_j-1 - w_j.
    edges = edges / unit.unsqueeze(-1)
    width = edges.diff()
    density = torch.where(width > 0, counts / width, 0.0)
    fall = -torch.nn.functional.pad(density, (1, 1)).diff()
    used = _used(fall)
    return edges[..., used].contiguous(), fall[..., used].contiguous()


def _used(values: Tensor) -> Tensor | slice:
    # Where any block is not 0; the compiler would not know how many that are.
    if torch.compiler.is_compiling():
        return slice(None)
    return values.reshape(-1, values.shape[-1]).any(0).nonzero().squeeze(-1)


def _of_bins(edges: Tensor, fall: Tensor, unit: Tensor, scheme: Scheme, p: float, low: Tensor, high: Tensor) -> Tensor:
    # sum_j fall_j G(edge_j / s) s^(p+1), a row for each block.
    qparams = _qparams(low, high, scheme)
    scale = (qparams.scale.double() / unit).reshape(len(low), -1)
    zero = None if scheme.zero_point is None else qparams.zero_point.double().view(scale.shape)
    edges, fall = (t.view(scale.shape[1], t.shape[-1]) for t in (edges, fall))
    offset = torch.zeros_like(scale[0])
    if scheme.rounding not in DIRECTED and not torch.compiler.is_compiling():
        # In the cell of 0 under every candidate, G(e/s) s^(p+1) is the same for all.
        outer = edges.abs() * 2 > scale.abs().amin(0).unsqueeze(-1)
        offset = torch.linalg.vecdot(torch.where(outer, 0.0, _power(edges, p)), fall) / (p + 1)
        used = outer.any(0)
        fall = torch.where(outer, fall, 0.0)[:, used]
        edges = edges[:, used]
    blocks = max(1, AT_ONCE // max(edges.shape[-1], 1))
    costs = [
        _summed(edges[i : i + blocks], fall[i : i + blocks], scale[:, i : i + blocks],
                None if zero is None else zero[:, i : i + blocks], scheme, p)
        for i in range(0, len(edges), blocks)
    ]  # fmt: skip
    return (torch.cat(costs, -1) + offset).view(qparams.scale.shape)


def _summed(edges: Tensor, fall: Tensor, scale: Tensor, zero: Tensor | None, scheme: Scheme, p: float) -> Tensor:
    # The costs of these blocks, [n, blocks]; in tensors that are used again, for memory that is new costs more.
    # G is continuous, so that q + z = clamp(R(u + z)) serves also where it is not R(u) + z.
    fmt = scheme.format
    assert isinstance(fmt, Int)
    directed = scheme.rounding in DIRECTED
    cell = (1.0 if directed else 2.0**-p) / (p + 1)
    size = max(1, AT_ONCE // max(edges.numel(), 1))
    room = edges.new_empty((3, min(size, len(scale)), *edges.shape))
    costs: list[Tensor] = []
    for i in range(0, len(scale), size):
        each = scale[i : i + size].unsqueeze(-1)
        shift = torch.zeros_like(each) if zero is None else zero[i : i + size].unsqueeze(-1)
        real, code, beyond = room[:, : len(each)]
        torch.addcmul(shift, edges, each.reciprocal(), out=real)
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
        costs.append((total * each * each.abs() ** p).squeeze(-1))  # du = dx / s, and s may be negative
    return torch.cat(costs)


def _power(x: Tensor, p: float) -> Tensor:
    # sign(x) |x|^(p+1)
    return x.square() * x if p == 2 else torch.copysign(x.abs().pow_(p + 1), x)


def _judged(scheme: Scheme) -> Scheme:
    return altered(scheme, rounding="half_even") if scheme.rounding == "stochastic" else scheme


def _of_rows(scheme: Scheme) -> Scheme:
    # Here every block is a row.
    return altered(scheme, scale=ONE) if isinstance(scheme.scale.shared, PerBlock) else scheme


def _qparams(low: Tensor, high: Tensor, scheme: Scheme) -> Affine:
    # The qparams of every candidate; an outer scale, which blocks share, is multiplied in.
    if scheme.scale.within is None:
        return from_range(low, high, scheme)
    each = [from_range(a, b, scheme) for a, b in zip(low, high, strict=True)]
    scales = [e.scale if e.outer is None else e.scale * e.outer for e in each]
    return Affine(torch.stack(scales), torch.stack([e.zero_point for e in each]))


def _parts(qparams: Affine, terms: int) -> list[Affine]:
    # So few candidates at a time that their terms stay in the cache.
    size = max(1, AT_ONCE // max(terms, 1))
    return [Affine(*pair) for pair in zip(*(torch.split(p, size) for p in qparams[:2]), strict=True)]
