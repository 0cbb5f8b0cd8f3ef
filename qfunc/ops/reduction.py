"""Reductions: sums, means, extrema, moments and norms of vectors; sorting and sums along an axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from qfunc.ops.binding import all_axes_or_some, bind, dims_of, dtype_of, exactly, named
from qfunc.ops.definition import Call, Op, Rewrite, Trait, op
from qfunc.ops.pooling import global_avg_pool
from qfunc.ops.sizes import is_number


def variance(input: Tensor, dim: Sequence[int] | None, correction: float, keepdim: bool) -> Tensor:
    """Call `torch.var` with every argument by position.

    >>> variance(torch.tensor([1.0, 3.0]), None, 1, False)
    tensor(2.)
    """
    return torch.var(input, dim if dim is None else list(dim), correction=correction, keepdim=keepdim)


def deviation(input: Tensor, dim: Sequence[int] | None, correction: float, keepdim: bool) -> Tensor:
    """Call `torch.std` with every argument by position.

    >>> deviation(torch.tensor([1.0, 3.0]), None, 0, False)
    tensor(1.)
    """
    return torch.std(input, dim if dim is None else list(dim), correction=correction, keepdim=keepdim)


def variance_mean(input: Tensor, dim: Sequence[int] | None, correction: float, keepdim: bool) -> tuple[Tensor, Tensor]:
    """Call `torch.var_mean` with every argument by position.

    >>> variance_mean(torch.tensor([1.0, 3.0]), None, 1, False)
    (tensor(2.), tensor(2.))
    """
    variance, mean = torch.var_mean(input, dim if dim is None else list(dim), correction=correction, keepdim=keepdim)
    return variance, mean


def deviation_mean(input: Tensor, dim: Sequence[int] | None, correction: float, keepdim: bool) -> tuple[Tensor, Tensor]:
    """Call `torch.std_mean` with every argument by position.

    >>> deviation_mean(torch.tensor([1.0, 3.0]), None, 0, False)
    (tensor(1.), tensor(2.))
    """
    deviation, mean = torch.std_mean(input, dim if dim is None else list(dim), correction=correction, keepdim=keepdim)
    return deviation, mean


def sorted_by(input: Tensor, dim: int, descending: bool) -> tuple[Tensor, Tensor]:
    """Return `torch.sort` as (values, indices).

    >>> sorted_by(torch.tensor([3, 1]), 0, False)[1]
    tensor([1, 0])
    """
    values, indices = torch.sort(input, dim=dim, descending=descending)
    return values, indices


def topk(input: Tensor, k: int, dim: int, largest: bool, sorted: bool) -> tuple[Tensor, Tensor]:
    """Return `torch.topk` as (values, indices); equal values, which are common among codes, keep their order.

    >>> topk(torch.tensor([1, 2, 2]), 2, 0, True, True)[1]
    tensor([1, 2])
    """
    values, indices = torch.sort(input, dim=dim, descending=largest, stable=True)
    return values.narrow(dim, 0, k), indices.narrow(dim, 0, k)


def cumsum(value: Tensor, dim: int, dtype: torch.dtype | None) -> Tensor:
    """Call `torch.cumsum` with every argument by position.

    >>> cumsum(torch.tensor([True, True]), 0, None)
    tensor([1, 2])
    """
    return torch.cumsum(value, dim, dtype=dtype)


def difference(value: Tensor, dim: int, prepend: Tensor | None) -> Tensor:
    """Return the first differences of neighbours, `torch.diff`.

    >>> difference(torch.tensor([1, 4, 9]), 0, None)
    tensor([3, 5])
    """
    return torch.diff(value, 1, dim, prepend)


def _mean(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    given = exactly("input dim keepdim", args, kwargs)
    if given is not None and given.get("dim") in (None, (), []):
        return op.call, (given["input"], None, given.get("keepdim", False))
    if (dtype := kwargs.pop("dtype", None)) is not None and dtype != dtype_of(args[0] if args else None):
        return None
    call = bind(op, args, kwargs)
    if call is None or call[1][1] is None:
        return None
    x, dim, keepdim = call[1]
    dims = tuple(dim) if isinstance(dim, list | tuple) else (dim,)
    if sorted(dims) in ([2, 3], [-2, -1]):
        return global_avg_pool, (x, keepdim, tuple(sorted(dims)))
    return call[0], (x, dims, keepdim)


def _moments(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    # var and std with `unbiased` or `correction`, over some axes or all.
    unbiased = kwargs.pop("unbiased", True)
    correction = kwargs.pop("correction", None)
    if len(args) > 1 and isinstance(args[1], bool):  # x.var(unbiased)
        unbiased, args = args[1], (args[0],)
    if len(args) > 2:
        unbiased, args = args[2], (*args[:2], *args[3:])
    given = exactly("input dim keepdim", args, kwargs)
    if given is None:
        return None
    degrees = int(bool(unbiased)) if correction is None else correction
    return op.call, (given["input"], dims_of(given.get("dim")), degrees, given.get("keepdim", False))


def _norm(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    given = exactly("input p dim keepdim dtype", args, kwargs)
    if given is None or given.get("dtype") is not None:
        return None
    order = 2 if given.get("p") in (None, "fro") else given["p"]
    if isinstance(order, str):
        return None
    return op.call, (given["input"], order, dims_of(given.get("dim")), given.get("keepdim", False))


def _sort(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    kwargs.pop("stable", None)
    given = exactly("input dim descending", args, kwargs)
    return None if given is None else (op.call, (given["input"], given.get("dim", -1), given.get("descending", False)))


def _extremum(over_all: Callable[..., Any], of_two: Callable[..., Any]) -> Rewrite:
    """Return a rewrite of max(x), max(x, dim) and max(x, y), or of min."""

    def rewrite(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        second = (*args, *kwargs.values(), None)[1]
        if isinstance(second, fx.Node) and not is_number(second):
            given = exactly("input other", args, kwargs)
            return (of_two, (given["input"], given["other"])) if given and isinstance(given.get("other"), fx.Node) else None
        given = exactly("input dim keepdim", args, kwargs)
        if given is None or not isinstance(given.get("dim"), int | fx.Node | None):
            return None
        x, dim = given["input"], given.get("dim")
        return (over_all, (x, (), False)) if dim is None else (op.call, (x, dim, given.get("keepdim", False)))

    return rewrite


def _cumsum(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    given = named("input dim dtype", args, kwargs)
    return op.call, (given["input"], given["dim"], given.get("dtype"))


def _difference(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    given = named("input n dim prepend append", args, kwargs)
    if given.get("n", 1) != 1 or given.get("append") is not None:
        return None
    return op.call, (given["input"], given.get("dim", -1), given.get("prepend"))


_SCALED = Trait.KEEPS_SIGN | Trait.HOMOGENEOUS | Trait.SCALES_WITH_CHANNELS
_EXTREME = _SCALED | Trait.KEEPS_CONSTANTS | Trait.INTEGER_IF_INPUTS
_SPREAD = Trait.NON_NEGATIVE | Trait.KEEPS_SIGN | Trait.NEVER_BOOLEAN
_PLACE = Trait.INTEGER_RESULT | Trait.NON_NEGATIVE | Trait.KEEPS_SIGN | Trait.NEVER_BOOLEAN
_TRUTH = Trait.INTEGER_RESULT | Trait.NON_NEGATIVE | Trait.KEEPS_SIGN
_INTEGER = Trait.INTEGER_IF_INPUTS
_ORDER = Trait.KEEPS_SIGN | _INTEGER
_MOMENTS = Trait.KEEPS_SIGN | Trait.NEVER_BOOLEAN

ROWS: tuple[Op, ...] = (
    op("mean", torch.mean, "input dim keepdim=False", rewrites={"mean": _mean},
       traits=_SCALED | Trait.KEEPS_CONSTANTS | Trait.AVERAGES | Trait.NEVER_BOOLEAN | Trait.FOLDABLE,
       example=lambda x: torch.mean(x, 1)),
    op("sum", torch.sum, "input dim keepdim=False", rewrites={"sum": all_axes_or_some},
       traits=_SCALED | Trait.INTEGER_IF_INPUTS | Trait.NEVER_BOOLEAN | Trait.FOLDABLE, example=lambda x: torch.sum(x, 1)),
    op("prod", torch.prod, "input dim keepdim=False", "prod",
       traits=Trait.KEEPS_SIGN | Trait.INTEGER_IF_INPUTS | Trait.NEVER_BOOLEAN, example=lambda x: torch.prod(x, 1)),
    op("amax", torch.amax, "input dim=() keepdim=False", "amax", traits=_EXTREME, example=lambda x: torch.amax(x, 1)),
    op("amin", torch.amin, "input dim=() keepdim=False", "amin", traits=_EXTREME, example=lambda x: torch.amin(x, 1)),
    op("max", torch.max, "input dim keepdim=False", rewrites={"max": _extremum(torch.amax, torch.maximum)}, results=2,
       traits=_ORDER, example=lambda x: torch.max(x, 1)),
    op("min", torch.min, "input dim keepdim=False", rewrites={"min": _extremum(torch.amin, torch.minimum)}, results=2,
       traits=_ORDER, example=lambda x: torch.min(x, 1)),
    op("argmax", torch.argmax, "input dim=None keepdim=False", "argmax", traits=_PLACE),
    op("argmin", torch.argmin, "input dim=None keepdim=False", "argmin", traits=_PLACE),
    op("any", torch.any, "input dim=None keepdim=False", "any", traits=_TRUTH),
    op("all", torch.all, "input dim=None keepdim=False", "all", traits=_TRUTH),
    op("logsumexp", torch.logsumexp, "input dim keepdim=False", "logsumexp", traits=_MOMENTS,
       example=lambda x: torch.logsumexp(x, 1)),
    op("var", variance, "input dim correction keepdim", rewrites={"var": _moments}, traits=_SPREAD,
       example=lambda x: variance(x, (1,), 1, False)),
    op("std", deviation, "input dim correction keepdim", rewrites={"std": _moments},
       traits=_SPREAD | Trait.HOMOGENEOUS, example=lambda x: deviation(x, (1,), 1, False)),
    op("var_mean", variance_mean, "input dim correction keepdim", rewrites={"var_mean": _moments}, results=2,
       traits=_MOMENTS, example=lambda x: variance_mean(x, (1,), 1, False)),
    op("std_mean", deviation_mean, "input dim correction keepdim", rewrites={"std_mean": _moments}, results=2,
       traits=_MOMENTS | Trait.HOMOGENEOUS, example=lambda x: deviation_mean(x, (1,), 1, False)),
    op("vector_norm", torch.linalg.vector_norm, "input ord=2 dim=None keepdim=False", "vector_norm", "linalg_vector_norm",
       rewrites={"norm": _norm}, traits=_SPREAD | Trait.HOMOGENEOUS, example=lambda x: torch.linalg.vector_norm(x, 2, 1)),
    op("topk", topk, "input k dim=-1 largest=True sorted=True", "topk", results=2, traits=_ORDER,
       example=lambda x: topk(x, 2, 2, True, True)),
    op("sort", sorted_by, "input dim=-1 descending=False", rewrites={"sort": _sort}, results=2, traits=_ORDER,
       example=lambda x: sorted_by(x, 2, False)),
    op("argsort", torch.argsort, "input dim=-1 descending=False", "argsort", traits=_PLACE),
    op("cumsum", cumsum, "value dim dtype=None", rewrites={"cumsum": _cumsum},
       traits=_MOMENTS | Trait.HOMOGENEOUS | _INTEGER | Trait.POSITION_IF_INPUTS, example=lambda x: cumsum(x, 1, None)),
    op("difference", difference, "value dim=-1 prepend=None", rewrites={"diff": _difference},
       traits=Trait.HOMOGENEOUS | _INTEGER | Trait.POSITION_IF_INPUTS, example=lambda x: difference(x, -1, None)),
)  # fmt: skip
