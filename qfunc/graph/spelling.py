"""From a traced call, however it is spelled, to the canonical op and its arguments."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

from qfunc.graph.vocabulary import BY_NAME, EMPTY, Op, global_avg_pool

Call = tuple[Callable[..., Any], tuple[Any, ...]]

_RENAMED = {"self": "input", "axis": "dim", "x": "input", "a": "input", "b": "other", "mat2": "other", "end": "max"}
_IGNORED = ("inplace", "_stacklevel", "out", "antialias", "memory_format", "enable_gqa", "scale", "sparse",
            "scale_grad_by_freq", "padding_idx", "max_norm", "norm_type", "half_to_float", "cudnn_enable")  # fmt: skip
IN_PLACE_FUNCTIONS = {"iadd", "isub", "imul", "itruediv"}


def short_name(node: fx.Node) -> str | None:
    """The bare name of a torch function, method or aten op; None for anybody else's callable.

    In-place spellings keep their trailing underscore.
    """
    if node.op == "call_method":
        return str(node.target)
    if node.op != "call_function":
        return None
    target: Any = node.target
    if hasattr(target, "overloadpacket"):
        space, _, name = str(target.name()).partition("::")
        return name.partition(".")[0] if space == "aten" else None
    module = str(getattr(target, "__module__", "") or "")
    known = module.split(".")[0] == "torch" or module == "_operator" or target in _BUILTINS
    return str(getattr(target, "__name__", "")) if known else None


_BUILTINS = {f for space in (torch, F) for f in vars(space).values() if callable(f) and getattr(f, "__module__", 0) is None}


def is_in_place(node: fx.Node) -> bool:
    """Whether a traced call writes into its first argument."""
    name = short_name(node)
    if name is None:
        return False
    flagged = node.kwargs.get("inplace") is True or (name in _FLAG_AT and _at(node.args, _FLAG_AT[name]) is True)
    dunder = name.startswith("__") or name.endswith("__")
    return flagged or name in IN_PLACE_FUNCTIONS or name == "setitem" or (name.endswith("_") and not dunder)


# Where functions of torch.nn.functional take `inplace` by position.
_FLAG_AT = {"relu": 1, "relu6": 1, "silu": 1, "hardswish": 1, "hardsigmoid": 1, "mish": 1, "leaky_relu": 2, "elu": 2, "hardtanh": 3,
            "dropout": 3, "celu": 2, "selu": 1, "threshold": 3}  # fmt: skip


def _at(args: tuple[Any, ...], index: int) -> Any:
    return args[index] if len(args) > index else None


def canonical(node: fx.Node) -> Call | None:
    """The canonical callable and its full positional arguments, or None if the vocabulary lacks the op.

    >>> g = fx.symbolic_trace(lambda x: x.clamp_(max=6)).graph
    >>> canonical([*g.nodes][1])[1][1:]
    (None, 6)
    """
    name = short_name(node)
    if name is None:
        return None
    name = name.removesuffix("_") if is_in_place(node) else name
    args, kwargs = node.args, {_RENAMED.get(k, k): v for k, v in node.kwargs.items() if k not in _IGNORED}
    if name in _SPECIAL:
        return _SPECIAL[name](args, kwargs)
    if kwargs.pop("dtype", None) is not None:
        return None
    op = BY_NAME.get(name)
    return op and _bind(op, args[: _FLAG_AT.get(name, len(args))], kwargs)


def _bind(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    try:
        bound = op.signature.bind(*args, **kwargs)
    except TypeError:
        return None
    bound.apply_defaults()
    given = tuple(bound.arguments.values())
    return None if EMPTY in map(type, given) else (op.target, given)


def _varargs(name: str, at: str) -> Callable[..., Call | None]:
    """view(2, 3) and view((2, 3)) alike."""

    def rewrite(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        if len(args) > 1:
            given = args[1] if len(args) == 2 and isinstance(args[1], list | tuple) else args[1:]
            return BY_NAME[name].target, (args[0], tuple(given))
        value = next((kwargs[k] for k in (at, "size", "shape", "dims") if k in kwargs), None)
        return None if value is None else (BY_NAME[name].target, (kwargs.get("input", *args[:1]), tuple(value)))

    return rewrite


def _with_alpha(name: str) -> Callable[..., Call | None]:
    def rewrite(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        alpha = kwargs.pop("alpha", 1)
        return _bind(BY_NAME[name], args, kwargs) if alpha == 1 else None

    return rewrite


def _div(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    return _bind(BY_NAME["div"], args, kwargs) if kwargs.pop("rounding_mode", None) is None else None


def _mean(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    if kwargs.pop("dtype", None) is not None:
        return None
    call = _bind(BY_NAME["mean"], args, kwargs)
    if call is None:
        return None
    x, dim, keepdim = call[1]
    dims = tuple(sorted(dim)) if isinstance(dim, list | tuple) else (dim,)
    return (global_avg_pool, (x, keepdim)) if dims in ((2, 3), (-2, -1)) else (call[0], (x, dims, keepdim))


def _adaptive(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    call = _bind(BY_NAME["adaptive_avg_pool2d"], args, kwargs)
    return (global_avg_pool, (call[1][0], True)) if call and call[1][1] in (1, (1, 1), [1, 1]) else call


def _max_pool(n: int) -> Callable[..., Call | None]:
    def rewrite(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        if kwargs.pop("return_indices", False) or _at(args, 6):
            return None
        call = _bind(BY_NAME[f"max_pool{n}d"], args[:6], kwargs)
        return call and (call[0], (*call[1][:2], call[1][2] or call[1][1], *call[1][3:]))

    return rewrite


def _avg_pool(n: int) -> Callable[..., Call | None]:
    def rewrite(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        call = _bind(BY_NAME[f"avg_pool{n}d"], args, kwargs)
        return call and (call[0], (*call[1][:2], call[1][2] or call[1][1], *call[1][3:]))

    return rewrite


def _clip(low: float | None, high: float | None) -> Callable[..., Call | None]:
    def rewrite(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        given = dict(zip(("input", "min", "max"), args, strict=False)) | {k.removesuffix("_val"): v for k, v in kwargs.items()}
        lo, hi = given.get("min", low), given.get("max", high)
        if isinstance(lo, fx.Node | torch.Tensor) or isinstance(hi, fx.Node | torch.Tensor):
            return None
        hi = None if hi == math.inf else hi
        return (F.relu, (given["input"],)) if lo == 0 and hi is None else (torch.clamp, (given["input"], lo, hi))

    return rewrite


def _softmax(name: str) -> Callable[..., Call | None]:
    def rewrite(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        given = dict(zip(("input", "dim"), args, strict=False)) | kwargs
        if given.pop("dtype", None) is not None or given.get("dim") is None:
            return None
        return BY_NAME[name].target, (given["input"], given["dim"])

    return rewrite


def _slice(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    given = dict(zip(("input", "dim", "start", "max", "step"), args, strict=False)) | kwargs
    dim, stop = given.get("dim", 0), given.get("max")
    if dim < 0:
        return None
    stop = None if isinstance(stop, int) and stop > 2**62 else stop
    index = (slice(None),) * dim + (slice(given.get("start"), stop, given.get("step", 1)),)
    return BY_NAME["getitem"].target, (given["input"], index)


def _select(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    given = dict(zip(("input", "dim", "index"), args, strict=False)) | kwargs
    if given["dim"] < 0:
        return None
    return BY_NAME["getitem"].target, (given["input"], (slice(None),) * given["dim"] + (given["index"],))


def _upsample(mode: str) -> Callable[..., Call | None]:
    def rewrite(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        names = ("input", "output_size", *(() if mode == "nearest" else ("align_corners",)), "scale_factors")
        given = dict(zip(names, args, strict=False)) | kwargs
        size, factors = given.get("output_size"), given.get("scale_factors")
        return F.interpolate, (given["input"], size, None if size else factors, mode, given.get("align_corners"), None)

    return rewrite


def _embedding(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    given = dict(zip(("first", "second"), args, strict=False)) | kwargs
    table, index = given.get("weight", given.get("second")), given.get("input", given.get("indices", given.get("first")))
    # aten puts the weight first, torch.nn.functional the indices; a parameter is the weight.
    if isinstance(index, fx.Node) and index.op == "get_attr":
        table, index = index, table
    return F.embedding, (index, table)


_SPECIAL: dict[str, Callable[..., Call | None]] = {
    "view": _varargs("reshape", "shape"), "reshape": _varargs("reshape", "shape"), "permute": _varargs("permute", "dims"),
    "expand": _varargs("expand", "size"), "add": _with_alpha("add"), "sub": _with_alpha("sub"), "div": _div, "mean": _mean,
    "iadd": _with_alpha("add"), "adaptive_avg_pool2d": _adaptive, "relu6": _clip(0.0, 6.0), "hardtanh": _clip(-1.0, 1.0),
    "clamp": _clip(None, None), "clip": _clip(None, None), "clamp_min": _clip(None, None), "softmax": _softmax("softmax"),
    "log_softmax": _softmax("log_softmax"), "slice": _slice, "select": _select, "upsample_nearest2d": _upsample("nearest"),
    "upsample_bilinear2d": _upsample("bilinear"), "embedding": _embedding,
    **{f"max_pool{n}d": _max_pool(n) for n in (1, 2, 3)}, **{f"avg_pool{n}d": _avg_pool(n) for n in (1, 2, 3)},
}  # fmt: skip
