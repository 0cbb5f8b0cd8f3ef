"""Read resizing and sampling of images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch.nn.functional as F

from qfunc.reading.node import NodeReader, Reader
from qfunc.reading.values import Number, Value

_LINEAR = {3: "linear", 4: "bilinear", 5: "trilinear"}
_MOST = 4096
"""The size up to which the places of two ways to resize to the nearest are compared."""


def _resize(r: NodeReader) -> Value:
    rank = r.known_rank()
    scales, sizes = _requested(r, rank)
    if r.attribute("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise r.refuse("an aspect ratio that is kept", "sizes for each axis", "Give the sizes that it results in.")
    if scales is not None and all(s == 1 for s in scales):
        return r.x()
    have = r.sizes()
    fixed = scales[:2] == [1, 1] if scales is not None else sizes is not None and list(sizes[:2]) == have[:2]
    if rank not in _LINEAR or not (fixed or (sizes is not None and rank in _LINEAR and _same(sizes[:2], have[:2]))):
        found = f"resizing to {scales if scales is not None else sizes} of {rank} axes"
        raise r.refuse(found, "images, whose batch and channels stay", "Leave the op out: read(..., outputs=(...)).")
    mode = r.attribute("mode", "nearest")
    factors = tuple(float(s) for s in scales[2:]) if scales is not None else None
    size = None if sizes is None else tuple(sizes[2:])
    if mode == "nearest":
        return r.call(F.interpolate, r.x(), size, factors, _nearest(r, factors, size))  # type: ignore[no-any-return]
    how = r.attribute("coordinate_transformation_mode", "half_pixel") if r.version >= 11 else "asymmetric"
    corners = how == "align_corners"
    if how not in ("half_pixel", "pytorch_half_pixel", "align_corners"):
        raise r.refuse(f"places by {how!r}", "half_pixel or align_corners", "Export the model with one of them.")
    if mode == "cubic" and float(r.attribute("cubic_coeff_a", -0.75)) != -0.75:
        raise r.refuse(f"cubic_coeff_a={r.attribute('cubic_coeff_a')}", "-0.75", "Export the model with it.")
    if r.attribute("exclude_outside", 0):
        raise r.refuse("exclude_outside", "edges that are repeated", "Export the model without it.")
    word = "bicubic" if mode == "cubic" else _LINEAR[rank]
    smooth = bool(r.attribute("antialias", 0))
    more = {"antialias": True} if smooth else {}
    return r.call(F.interpolate, r.x(), size, factors, word, corners, None, **more)  # type: ignore[no-any-return]


def _same(a: Sequence[Number], b: Sequence[Number]) -> bool:
    # Sizes that vary and that the op is given again: torch.nn.functional.interpolate keeps them.
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
    sizes = r.sizes()
    for axis, size in zip(axes, r.numbers(3, "sizes"), strict=True):
        sizes[axis] = size
    return None, sizes


def _nearest(r: NodeReader, factors: tuple[float, ...] | None, size: tuple[Any, ...] | None) -> str:
    # The mode of torch that reads the same places.
    how = r.attribute("coordinate_transformation_mode", "half_pixel") if r.version >= 11 else "asymmetric"
    rounding = r.attribute("nearest_mode", "round_prefer_floor") if r.version >= 11 else "floor"
    if (how, rounding) == ("asymmetric", "floor"):
        return "nearest"
    pairs = []
    for axis in range(2, r.known_rank()):
        have, factor = r.length(axis), None if factors is None else factors[axis - 2]
        wanted = None if size is None else size[axis - 2]
        if factor is None and (have is None or not isinstance(wanted, int)):
            raise r.refuse(f"{how}, {rounding}, to sizes that vary", "asymmetric and floor", "Export the model with these.")
        step = 1 / factor if factor is not None else have / wanted  # type: ignore[operator]
        pairs.append((have or _MOST, int((have or _MOST) * factor) if factor is not None else int(wanted), step))
    for mode in ("nearest", "nearest-exact"):
        if all(np.array_equal(_places(n, m, s, how, rounding), _of_torch(n, m, s, mode)) for n, m, s in pairs):
            return mode
    raise r.refuse(f"{how}, {rounding}", "places that torch reads, such as asymmetric and floor", "Export the model with these.")


def _places(have: int, wanted: int, step: float, how: str, rounding: str) -> Any:
    i = np.arange(wanted, dtype=np.float64)
    x = {
        "asymmetric": i * step, "half_pixel": (i + 0.5) * step - 0.5,
        "pytorch_half_pixel": (i + 0.5) * step - 0.5 if wanted > 1 else 0 * i,
        "align_corners": i * (have - 1) / max(wanted - 1, 1),
    }.get(how)  # fmt: skip
    if x is None:
        return None
    whole = {"floor": np.floor(x), "ceil": np.ceil(x), "round_prefer_floor": np.ceil(x - 0.5), "round_prefer_ceil": np.floor(x + 0.5)}
    return np.clip(whole[rounding], 0, have - 1)


def _of_torch(have: int, wanted: int, step: float, mode: str) -> Any:
    i = np.arange(wanted, dtype=np.float64)
    return np.clip(np.floor(i * step if mode == "nearest" else (i + 0.5) * step), 0, have - 1)


def _grid_sample(r: NodeReader) -> Value:
    mode = r.attribute("mode", "bilinear")
    word = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    corners = bool(r.attribute("align_corners", 0))
    return r.call(F.grid_sample, r.x(), r.x(1), word, r.attribute("padding_mode", "zeros"), corners)  # type: ignore[no-any-return]


READERS: dict[str, Reader] = {"Resize": _resize, "Upsample": _resize, "GridSample": _grid_sample}
"""The readers of this family, by operator."""
