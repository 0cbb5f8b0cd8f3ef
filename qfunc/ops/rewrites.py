"""Spellings whose arguments need more than binding: one small rewrite each, by short name."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

from qfunc.ops.float_spellings import FLOAT_REWRITES, entries, extremum, whole
from qfunc.ops.index_spellings import INDEX_REWRITES, dtype_of, is_sizes
from qfunc.ops.indexing import INDEXING, Call, Rewrite
from qfunc.ops.rare_ops import antialiased, between, plus, truncated
from qfunc.ops.vocabulary import BY_NAME, EMPTY, Op, global_avg_pool


def bind(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    """The canonical call of an op, every parameter by position; None if the arguments do not fit."""
    try:
        bound = op.signature.bind(*args, **kwargs)
    except TypeError:
        return None
    bound.apply_defaults()
    given = tuple(bound.arguments.values())
    return None if EMPTY in map(type, given) else (op.target, given)


def _varargs(name: str) -> Rewrite:
    """view(2, 3), view((2, 3)) and view(y.shape) alike."""

    def rewrite(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        if len(args) > 1:
            given = args[1] if len(args) == 2 and (isinstance(args[1], list | tuple) or is_sizes(args[1])) else args[1:]
        else:
            given = next((kwargs[k] for k in ("size", "shape", "dims") if k in kwargs), ())
        if is_sizes(given):
            return BY_NAME[name].target, (kwargs.get("input", *args[:1]), given)
        if not isinstance(given, list | tuple) or not given or any(isinstance(v, torch.dtype) for v in given):
            return None
        return BY_NAME[name].target, (kwargs.get("input", *args[:1]), tuple(given))

    return rewrite


def _with_alpha(name: str) -> Rewrite:
    def rewrite(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        alpha = kwargs.pop("alpha", 1)
        call = bind(BY_NAME[name], args, kwargs)
        if call is None or alpha == 1:
            return call
        return (plus, (*call[1], alpha if name == "add" else -alpha)) if isinstance(alpha, int | float) else None

    return rewrite


def _rsub(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    call = _with_alpha("sub")(args[:2], kwargs) if len(args) < 3 or args[2] == 1 else None
    return call and (call[0], (call[1][1], call[1][0], *call[1][2:]))


def _div(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    mode = kwargs.pop("rounding_mode", None)
    if mode == "trunc":
        call = bind(BY_NAME["div"], args, kwargs)
        return call and (truncated, call[1])
    name = {None: "div", "floor": "floor_divide"}.get(mode)
    return bind(BY_NAME[name], args, kwargs) if name else None


def _pairwise(name: str) -> Rewrite:
    """min(x, y) of two tensors; min(x) and min(x, dim) reduce."""

    def rewrite(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        call = bind(BY_NAME[name], args, kwargs)
        return call if call and isinstance(call[1][1], fx.Node) else None

    return rewrite


def _mean(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    if (dtype := kwargs.pop("dtype", None)) is not None and dtype != dtype_of(args[0] if args else None):
        return None
    call = bind(BY_NAME["mean"], args, kwargs)
    if call is None or call[1][1] is None:
        return None
    x, dim, keepdim = call[1]
    dims = tuple(dim) if isinstance(dim, list | tuple) else (dim,)
    if sorted(dims) in ([2, 3], [-2, -1]):
        return global_avg_pool, (x, keepdim, tuple(sorted(dims)))
    return call[0], (x, dims, keepdim)


def _adaptive(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    call = bind(BY_NAME["adaptive_avg_pool2d"], args, kwargs)
    return (global_avg_pool, (call[1][0], True, (-2, -1))) if call and call[1][1] in (1, (1, 1), [1, 1]) else call


def _pool(name: str, length: int) -> Rewrite:
    """stride=None and stride=[] mean the kernel's size; no pool with indices."""

    def rewrite(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        if kwargs.pop("return_indices", False) or any(args[length:]):
            return None
        call = bind(BY_NAME[name], args[:length], kwargs)
        return call and (call[0], (*call[1][:2], call[1][2] or call[1][1], *call[1][3:]))

    return rewrite


def _clip(low: float | None, high: float | None) -> Rewrite:
    def rewrite(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        given = dict(zip(("input", "min", "max"), args, strict=False)) | {k.removesuffix("_val"): v for k, v in kwargs.items()}
        lo, hi = given.get("min", low), given.get("max", high)
        if any(isinstance(v, fx.Node) for v in (lo, hi)):
            return between, (given["input"], lo, hi)
        if any(isinstance(v, torch.Tensor) for v in (lo, hi)):
            return None
        hi = None if hi == math.inf else hi
        return (F.relu, (given["input"],)) if lo == 0 and hi is None else (torch.clamp, (given["input"], lo, hi))

    return rewrite


def _clamp_max(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    return _clip(None, None)(args[:1], kwargs | dict(zip(("max",), args[1:], strict=True)))


def _softmax(name: str) -> Rewrite:
    def rewrite(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        given = dict(zip(("input", "dim", "_stacklevel" if name == "softmax" else "", "dtype"), args, strict=False)) | kwargs
        dtypes = [v for v in (given.get("dtype"), given.get("")) if isinstance(v, torch.dtype)]
        if given.get("dim") is None or any(d != dtype_of(given["input"]) for d in dtypes):
            return None
        return BY_NAME[name].target, (given["input"], given["dim"])

    return rewrite


def _interpolate(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    smooth = kwargs.pop("antialias", False) or any(args[6:])
    call = bind(BY_NAME["interpolate"], args[:6], kwargs)
    if call is None:
        return None
    x, size, factor, mode, corners, recompute = call[1]
    target = antialiased if smooth else call[0]
    return target, (x, size, factor, mode, bool(corners) if mode in _SMOOTH else None, recompute)


_SMOOTH = ("linear", "bilinear", "bicubic", "trilinear")


def _upsample(mode: str, target: Any = F.interpolate) -> Rewrite:
    def rewrite(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        names = ("input", "output_size", *(("align_corners",) if mode in _SMOOTH else ()), "scale_factors")
        given = dict(zip(names, args, strict=False)) | kwargs
        size, factors = given.get("output_size"), given.get("scale_factors")
        if len(args) > len(names) or (factors is not None and not isinstance(factors, list | tuple)):
            return None
        return target, (given["input"], size, None if size else factors, mode, given.get("align_corners"), None)

    return rewrite


def _embedding(first: str, second: str) -> Rewrite:
    def rewrite(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        if any(kwargs.pop(k, None) not in (None, False) for k in ("max_norm", "sparse", "scale_grad_by_freq")):
            return None
        kwargs.pop("norm_type", None)
        if any(v not in (None, False, 2.0) for v in args[3:]):
            return None
        given = dict(zip((first, second, "padding_idx"), args, strict=False)) | kwargs
        padding = given.get("padding_idx")
        none = first == "weight" and padding == -1  # for torch.nn.functional -1 is the last row
        return F.embedding, (given.get("input", given.get("indices")), given["weight"], None if none else padding)

    return rewrite


def _split(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    renamed = {"split_size_or_sections" if k in ("split_size", "split_sizes") else k: v for k, v in kwargs.items()}
    return bind(BY_NAME["split"], args, renamed)


REWRITES: dict[str, Rewrite] = {
    **INDEXING,
    **INDEX_REWRITES,
    **FLOAT_REWRITES,
    "getattr": entries(INDEXING["getattr"]),
    "view": _varargs("reshape"),
    "reshape": _varargs("reshape"),
    "permute": _varargs("permute"),
    "expand": _varargs("expand"),
    "add": _with_alpha("add"),
    "sub": _with_alpha("sub"),
    "subtract": _with_alpha("sub"),
    "rsub": _rsub,
    "div": _div,
    "divide": _div,
    "mean": whole(torch.mean, _mean),
    "adaptive_avg_pool2d": _adaptive,
    "relu6": _clip(0.0, 6.0),
    "hardtanh": _clip(-1.0, 1.0),
    "min": extremum("min", _pairwise("minimum")),
    "max": extremum("max", _pairwise("maximum")),
    "clamp": _clip(None, None),
    "clip": _clip(None, None),
    "clamp_min": _clip(None, None),
    "clamp_max": _clamp_max,
    "softmax": _softmax("softmax"),
    "log_softmax": _softmax("log_softmax"),
    "split": _split,
    "split_with_sizes": _split,
    "interpolate": _interpolate,
    "embedding": _embedding("input", "weight"),
    "aten.embedding": _embedding("weight", "indices"),
    **{
        f"upsample_{m}{n}d": _upsample(m)
        for m, n in (
            ("nearest", 1),
            ("nearest", 2),
            ("nearest", 3),
            ("linear", 1),
            ("bilinear", 2),
            ("bicubic", 2),
            ("trilinear", 3),
        )
    },
    **{f"_upsample_{m}2d_aa": _upsample(m, antialiased) for m in ("bilinear", "bicubic")},
    **{f"_upsample_nearest_exact{n}d": _upsample("nearest-exact") for n in (1, 2, 3)},
    **{f"max_pool{n}d": _pool(f"max_pool{n}d", 6) for n in (1, 2, 3)},
    "avg_pool1d": _pool("avg_pool1d", 6),
    **{f"avg_pool{n}d": _pool(f"avg_pool{n}d", 7) for n in (2, 3)},
}
