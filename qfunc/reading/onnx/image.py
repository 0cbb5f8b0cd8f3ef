"""Read resizing and sampling of images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch.nn.functional as F

from qfunc.reading.node import NodeReader, Reader
from qfunc.reading.onnx.resize_matrices import by_matrices
from qfunc.reading.values import Number

_LINEAR = {3: "linear", 4: "bilinear", 5: "trilinear"}
_MOST = 4096
"""The size up to which the places of two ways to resize to the nearest are compared."""


def _resize(r: NodeReader) -> Any:
    """Read it as torch's interpolation where that is the same; else, of known sizes, as products with two matrices."""
    rank = r.known_rank()
    scales, sizes = _requested(r, rank)
    if scales is not None and all(s == 1 for s in scales):
        return r.x()
    have: list[Number] = r.sizes() if scales is None else []
    if sizes is not None and _same(sizes, have) and all(isinstance(n, int) for n in have):
        return r.x()
    fixed = scales[:2] == [1, 1] if scales is not None else sizes is not None and _same(sizes[:2], have[:2])
    if fixed and rank in _LINEAR and (mode := _mode_of_torch(r, scales, sizes)) is not None:
        factors = None if scales is None else tuple(scales[2:])
        corners = _how(r) == "align_corners" if mode not in ("nearest", "nearest-exact") else None
        size = None if sizes is None else tuple(sizes[2:])
        return r.call(F.interpolate, r.x(), size, factors, mode, corners)
    have = have or [n if (n := r.length(a)) is not None else r.network.size(r.x(), a) for a in range(rank)]  # type: ignore[arg-type]
    wanted = sizes if scales is None else [int(n * s) if isinstance(n, int) else n for n, s in zip(have, scales, strict=True)]
    known = all(isinstance(n, int) for n in (*have[-2:], *(wanted or ())[-2:]))
    if not known or wanted is None or _same(wanted[:-2], have[:-2]) is False:
        found = (
            f"{r.attribute('mode', 'nearest')!r} by {_how(r)!r} to {scales if scales is not None else 'sizes'} of {rank} axes"
        )
        raise r.refuse(found, "places as torch has them, or images of known sizes", r.network.how_to_fix_sizes)
    return by_matrices(r, scales, [int(n) for n in wanted[-2:]])  # type: ignore[arg-type]


def _how(r: NodeReader) -> str:
    return str(r.attribute("coordinate_transformation_mode", "half_pixel")) if r.version >= 11 else "asymmetric"


def _same(a: Sequence[Number], b: Sequence[Number]) -> bool:
    # Sizes that vary are given again: torch.nn.functional.interpolate keeps the batch and the channels.
    return all(x is y or not isinstance(x, int) or x == y for x, y in zip(a, b, strict=True))


def _requested(r: NodeReader, rank: int) -> tuple[list[float] | None, list[Number] | None]:
    # The factors or the sizes of all axes.
    if r.op == "Upsample":
        given = r.attribute("scales") if r.version < 9 else [float(v) for v in r.known(1, "factors").reshape(-1)]
        return list(given), None
    place = 1 if r.version < 11 else 2
    axes = [a % rank for a in r.attribute("axes", list(range(rank)))]
    factors = r.tensor(place) if r.has(place) else None
    if factors is not None and factors.numel():
        found = [1.0] * rank
        for axis, factor in zip(axes, factors.tolist(), strict=True):
            found[axis] = factor
        return found, None
    if not r.has(3):
        raise r.refuse("factors that are computed", "constant factors, or sizes", "Export the model with constant factors.")
    sizes, wanted = r.sizes(), r.numbers(3, "sizes")
    policy = r.attribute("keep_aspect_ratio_policy", "stretch")
    if policy != "stretch":
        return None, _keeping_ratio(r, sizes, axes, wanted, min if policy == "not_larger" else max)
    for axis, size in zip(axes, wanted, strict=True):
        sizes[axis] = size
    return None, sizes


def _keeping_ratio(r: NodeReader, sizes: list[Number], axes: list[int], wanted: Sequence[Number], choose: Any) -> list[Number]:
    if not all(isinstance(n, int) for n in (*(sizes[a] for a in axes), *wanted)):
        raise r.refuse("an aspect ratio that is kept, of sizes that vary", "known sizes", r.network.how_to_fix_sizes)
    factor = choose(w / sizes[a] for a, w in zip(axes, wanted, strict=True))  # type: ignore[operator]
    return [int(factor * n + 0.5) if a in axes else n for a, n in enumerate(sizes)]


def _mode_of_torch(r: NodeReader, scales: list[float] | None, sizes: list[Number] | None) -> str | None:
    mode, how, rank = r.attribute("mode", "nearest"), _how(r), r.known_rank()
    factors, size = None if scales is None else scales[2:], None if sizes is None else sizes[2:]
    if mode == "nearest":
        return _nearest(r, factors, size)
    if r.attribute("antialias", 0) or r.attribute("exclude_outside", 0) or how not in _PLACES:
        return None
    if how == "align_corners" and factors is not None and not all(float(f).is_integer() for f in factors):
        return None  # ONNX divides by the real size, torch by the rounded one
    alone = [1] if size is None else size
    if how == "pytorch_half_pixel" and size is not None and 1 in alone:
        return None
    if mode == "cubic":
        return "bicubic" if float(r.attribute("cubic_coeff_a", -0.75)) == -0.75 and rank == 4 else None
    return _LINEAR[rank]


_PLACES = ("half_pixel", "pytorch_half_pixel", "align_corners")


def _nearest(r: NodeReader, factors: Sequence[float] | None, size: Sequence[Any] | None) -> str | None:
    # The mode of torch that reads the same places.
    how = _how(r)
    rounding = r.attribute("nearest_mode", "round_prefer_floor") if r.version >= 11 else "floor"
    if (how, rounding) == ("asymmetric", "floor"):
        return "nearest"
    pairs = []
    for axis in range(2, r.known_rank()):
        have, factor = r.length(axis), None if factors is None else factors[axis - 2]
        wanted = None if size is None else size[axis - 2]
        if factor is None and (have is None or not isinstance(wanted, int)):
            return None
        step = 1 / factor if factor is not None else have / wanted  # type: ignore[operator]
        pairs.append((have or _MOST, int((have or _MOST) * factor) if factor is not None else int(wanted or 0), step))
    for mode in ("nearest", "nearest-exact"):
        if all(np.array_equal(_places(n, m, s, how, rounding), _of_torch(n, m, s, mode)) for n, m, s in pairs):
            return mode
    return None


def _places(have: int, wanted: int, step: float, how: str, rounding: str) -> Any:
    i = np.arange(wanted, dtype=np.float64)
    x = {
        "asymmetric": i * step, "half_pixel": (i + 0.5) * step - 0.5,
        "pytorch_half_pixel": (i + 0.5) * step - 0.5 if wanted > 1 else 0 * i,
        "align_corners": i * (have - 1) / max(wanted - 1, 1),
    }.get(how)  # fmt: skip
    if x is None:
        return None
    whole = {
        "floor": np.floor(x),
        "ceil": np.ceil(x),
        "round_prefer_floor": np.ceil(x - 0.5),
        "round_prefer_ceil": np.floor(x + 0.5),
    }
    return np.clip(whole[rounding], 0, have - 1)


def _of_torch(have: int, wanted: int, step: float, mode: str) -> Any:
    i = np.arange(wanted, dtype=np.float64)
    return np.clip(np.floor(i * step if mode == "nearest" else (i + 0.5) * step), 0, have - 1)


def _grid_sample(r: NodeReader) -> Any:
    mode = r.attribute("mode", "bilinear")
    word = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    corners = bool(r.attribute("align_corners", 0))
    return r.call(F.grid_sample, r.x(), r.x(1), word, r.attribute("padding_mode", "zeros"), corners)


READERS: dict[str, Reader] = {"Resize": _resize, "Upsample": _resize, "GridSample": _grid_sample}
"""The readers of this family, by operator."""
