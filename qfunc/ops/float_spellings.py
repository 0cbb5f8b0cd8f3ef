"""Spellings of ops that compute in float: each becomes one canonical call of `float_ops`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

from qfunc.ops.float_ops import addcdiv, addcmul, deviation, sorted_by, squeeze_all, take, variance
from qfunc.ops.index_ops import index
from qfunc.ops.indexing import Call, Rewrite, element
from qfunc.ops.rare_ops import deviation_mean, rounded, variance_mean


def _given(names: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
    words = names.split()
    return None if len(args) > len(words) or not set(kwargs) <= set(words) else dict(zip(words, args, strict=False)) | kwargs


def _dims(value: Any) -> Any:
    return (value,) if isinstance(value, int) else tuple(value) if isinstance(value, list | tuple) else None


def _moments(target: Any) -> Rewrite:
    """var and std with `unbiased` or `correction`, over some axes or all."""

    def rewrite(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        unbiased = kwargs.pop("unbiased", True)
        correction = kwargs.pop("correction", None)
        if len(args) > 1 and isinstance(args[1], bool):  # x.var(unbiased)
            unbiased, args = args[1], (args[0],)
        if len(args) > 2:
            unbiased, args = args[2], (*args[:2], *args[3:])
        given = _given("input dim keepdim", args, kwargs)
        if given is None:
            return None
        degrees = int(bool(unbiased)) if correction is None else correction
        return target, (given["input"], _dims(given.get("dim")), degrees, given.get("keepdim", False))

    return rewrite


def _round(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    given = _given("input decimals", args, kwargs)
    if given is None:
        return None
    decimals = given.get("decimals", 0)
    return (rounded, (given["input"], decimals)) if decimals else (torch.round, (given["input"],))


def _norm(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    given = _given("input p dim keepdim dtype", args, kwargs)
    if given is None or given.get("dtype") is not None:
        return None
    order = 2 if given.get("p") in (None, "fro") else given["p"]
    if isinstance(order, str):
        return None
    return torch.linalg.vector_norm, (given["input"], order, _dims(given.get("dim")), given.get("keepdim", False))


def _sort(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    kwargs.pop("stable", None)
    given = _given("input dim descending", args, kwargs)
    return None if given is None else (sorted_by, (given["input"], given.get("dim", -1), given.get("descending", False)))


def extremum(name: str, pairwise: Rewrite) -> Rewrite:
    """max(x), max(x, dim) and max(x, y), and min alike."""
    whole, along = (torch.amax, torch.max) if name == "max" else (torch.amin, torch.min)

    def rewrite(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        if isinstance((*args, *kwargs.values(), None)[1], fx.Node):
            return pairwise(args, kwargs)
        given = _given("input dim keepdim", args, kwargs)
        if given is None or not isinstance(given.get("dim"), int | None):
            return None
        x, dim = given["input"], given.get("dim")
        return (whole, (x, (), False)) if dim is None else (along, (x, dim, given.get("keepdim", False)))

    return rewrite


def whole(target: Any, rewrite: Rewrite | None = None) -> Rewrite:
    """sum(x) and mean(x) over all axes."""

    def rewritten(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        given = _given("input dim keepdim", args, kwargs)
        if given is not None and given.get("dim") is None:
            return target, (given["input"], None, given.get("keepdim", False))
        if rewrite is not None or given is None:
            return rewrite(args, kwargs) if rewrite is not None else None
        return target, (given["input"], given["dim"], given.get("keepdim", False))

    return rewritten


def _axes(target: Any, name: str) -> Rewrite:
    """flip(0, 1) and flip((0, 1)) alike."""

    def rewrite(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        rest = kwargs.get(name, args[1] if len(args) == 2 else args[1:])
        dims = (rest,) if isinstance(rest, int) else tuple(rest)
        return (target, (kwargs.get("input", *args[:1]), dims)) if dims else None

    return rewrite


def _broadcast_to(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    given = _given("input size", args, kwargs)
    if given is None:
        return None
    size = given["size"]
    return torch.Tensor.expand, (given["input"], tuple(size) if isinstance(size, list | tuple) else size)


def _squeeze(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    given = _given("input dim", args, kwargs)
    if given is None:
        return None
    return (torch.squeeze, (given["input"], given["dim"])) if "dim" in given else (squeeze_all, (given["input"],))


def _unflatten(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    given = _given("input dim sizes", args, kwargs)
    return None if given is None else (torch.unflatten, (given["input"], given["dim"], tuple(given["sizes"])))


def _adaptive(target: Any) -> Rewrite:
    def rewrite(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        if kwargs.pop("return_indices", False) or any(args[2:]):
            return None
        given = _given("input output_size", args[:2], kwargs)
        return None if given is None else (target, (given["input"], given["output_size"]))

    return rewrite


def _rrelu(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    given = _given("input lower upper training", args[:4], kwargs)
    if given is None or given.get("training", False):
        return None
    return F.leaky_relu, (given["input"], (given.get("lower", 1 / 8) + given.get("upper", 1 / 3)) / 2)


def _triple(target: Any) -> Rewrite:
    def rewrite(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        given = _given("input tensor1 tensor2 value", args, kwargs)
        return None if given is None else (target, tuple(given.get(n, 1) for n in ("input", "tensor1", "tensor2", "value")))

    return rewrite


def _einsum(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    if len(args) < 2 or not isinstance(args[0], str):
        return None
    operands = args[1] if len(args) == 2 and isinstance(args[1], list | tuple) else args[1:]
    return torch.einsum, (args[0].replace(" ", ""), tuple(operands))


def _grid_sampler(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    if len(args) != 5 or kwargs:
        return None
    mode, padding = ("bilinear", "nearest", "bicubic")[args[2]], ("zeros", "border", "reflection")[args[3]]
    return F.grid_sample, (*args[:2], mode, padding, args[4])


def entries(rewrite: Rewrite) -> Rewrite:
    """`.values` and `.indices` of what has both."""

    def rewritten(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        if len(args) == 2 and args[1] in ("values", "indices"):
            return element, (args[0], ("values", "indices").index(args[1]))
        return rewrite(args, kwargs)

    return rewritten


def picked(x: Any, given: Any, is_number: Callable[[Any], bool]) -> Call | None:
    """x[:, [0, 2]] and x[:, places]: one axis by a list or tensor, whole ones before it; None for other indices."""
    entries_of = given if isinstance(given, tuple) else (given,)
    *before, last = entries_of or (None,)
    if any(b != slice(None) for b in before):
        return None
    if isinstance(last, list) and last and all(type(i) is int for i in last):
        return take, (x, len(before), tuple(last))
    if isinstance(last, fx.Node) and not is_number(last):
        return index, (x, (*(None,) * len(before), last))
    return None


def stays(node: fx.Node, name: str) -> bool:
    """Whether a traced call only moves its tensor to a device: a captured model computes where its inputs are."""
    if name in ("cpu", "cuda"):
        return True
    given = (*node.args[1:], *(v for k, v in node.kwargs.items() if k not in ("non_blocking", "copy", "memory_format")))
    return name == "to" and len(given) == 1 and _is_device(given[0])


def _is_device(value: Any) -> bool:
    if isinstance(value, fx.Node):
        return getattr(value.target, "__name__", "") == "getattr" and value.args[1] == "device"
    return isinstance(value, str | torch.device)


FLOAT_REWRITES: dict[str, Rewrite] = {
    "var": _moments(variance),
    "std": _moments(deviation),
    "var_mean": _moments(variance_mean),
    "std_mean": _moments(deviation_mean),
    "round": _round,
    "norm": _norm,
    "sort": _sort,
    "sum": whole(torch.sum),
    "addcmul": _triple(addcmul),
    "addcdiv": _triple(addcdiv),
    "flip": _axes(torch.flip, "dims"),
    "tile": _axes(torch.tile, "dims"),
    "broadcast_to": _broadcast_to,
    "squeeze": _squeeze,
    "unflatten": _unflatten,
    "adaptive_max_pool1d": _adaptive(F.adaptive_max_pool1d),
    "adaptive_max_pool2d": _adaptive(F.adaptive_max_pool2d),
    "rrelu": _rrelu,
    "einsum": _einsum,
    "grid_sampler": _grid_sampler,
}
"""The rewrites of this file, by short name."""

SEVERAL = ("topk", "sort", "max", "min", "median", "mode", "kthvalue", "aminmax", "var_mean", "std_mean", "unique",
           "max_pool1d_with_indices", "max_pool2d_with_indices", "lstm", "gru", "rnn_tanh", "rnn_relu")  # fmt: skip
"""Short names of ops with several results, whose entries are no slices of a tensor."""
