"""Parts of a tensor: by slices, positions, conditions and triangles; tables that are read by index."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from qfunc.ops.binding import dtype_of, named
from qfunc.ops.definition import Call, Op, Rewrite, Trait, op


def element(values: Any, index: Any) -> Any:
    """Return an entry of a shape, a list or a dict.

    >>> element((2, 3, 5), 1)
    3
    """
    return values[index]


def index(input: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """Return `input[indices]` with index tensors, which may have rank 0; None selects a whole axis.

    >>> index(torch.tensor([[1, 2], [3, 4]]), (None, torch.tensor([1])))
    tensor([[2],
            [4]])
    """
    found: Tensor = torch.ops.aten.index.Tensor(input, [None if i is None else i.to(input.device) for i in indices])
    return found


def take(input: Tensor, dim: int, places: Sequence[int]) -> Tensor:
    """Return the entries at some places of an axis, x[:, [0, 2]].

    >>> take(torch.tensor([[1, 2, 3]]), 1, (0, 2))
    tensor([[1, 3]])
    """
    return index(input, (*(None,) * dim, torch.tensor(places)))


def index_put(input: Tensor, dim: int, index: Tensor, values: Tensor | float) -> Tensor:
    """Return a copy of x in which x[:, ..., index] = values, for the positions `index` of one axis; values broadcast.

    >>> index_put(torch.zeros(2, 3), 1, torch.tensor([2, 0]), torch.tensor([1.0, 2.0]))
    tensor([[2., 0., 1.],
            [2., 0., 1.]])
    """
    places = (*(None,) * (dim % input.ndim), index.to(input.device))
    written = torch.as_tensor(values, dtype=input.dtype, device=input.device)
    found: Tensor = torch.ops.aten.index_put.default(input, places, written)
    return found


def index_call(x: Any, key: Any, is_number: Callable[[Any], bool]) -> Call | None:
    """Return the canonical call of x[:, [0, 2]] or x[:, places, others], which index axes by a list or tensors; else None."""
    entries = tuple(map(_tensor_of_item, key if isinstance(key, tuple) else (key,)))
    *before, last = entries or (None,)
    if isinstance(last, list) and last and all(type(i) is int for i in last) and all(b == slice(None) for b in before):
        return take, (x, len(before), tuple(last))
    tensors = [isinstance(e, fx.Node) and not is_number(e) for e in entries]
    if any(tensors) and all(t or (isinstance(e, slice) and e == slice(None)) for t, e in zip(tensors, entries, strict=True)):
        return index, (x, tuple(e if t else None for t, e in zip(tensors, entries, strict=True)))
    return None


def _tensor_of_item(entry: Any) -> Any:
    # torch.export writes x[:, i] with a tensor i of rank 0 as x[:, i.item()].
    is_item = isinstance(entry, fx.Node) and getattr(entry.target, "overloadpacket", entry.target) in (
        torch.ops.aten.item,
        "item",
    )
    return entry.args[0] if is_item else entry


def _slice(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    given = named("input dim start end step", args, kwargs)
    dim, stop = given.get("dim", 0), given.get("end")
    stop = None if isinstance(stop, int) and stop > 2**62 else stop
    return _along(op, given["input"], dim, slice(given.get("start"), stop, given.get("step", 1)))


def _select(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    given = named("input dim index", args, kwargs)
    return _along(op, given["input"], given["dim"], given["index"])


def _narrow(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    given = named("input dim start length", args, kwargs)
    start, length = given["start"], given["length"]
    if start == 0:  # the length may be computed from sizes
        return _along(op, given["input"], given["dim"], slice(0, length))
    if not isinstance(start, int) or not isinstance(length, int) or start < 0:
        return None
    return _along(op, given["input"], given["dim"], slice(start, start + length))


def _along(op: Op, x: Any, dim: Any, index: Any) -> Call | None:
    if not isinstance(dim, int):
        return None
    after = (slice(None),) * (-dim - 1)
    return op.call, (x, (..., index, *after) if dim < 0 else ((slice(None),) * dim + (index,)))


def _getitem(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    # A string can only be the key of a dict.
    return (element if isinstance(args[1], str) else op.call), args


def _index(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    # With a mask as index, the size of the result depends on values, so there is no canonical op.
    indices = tuple(args[1])
    return None if any(dtype_of(i) in (torch.bool, torch.uint8) for i in indices) else (op.call, (args[0], indices))


def _index_put(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    # One index tensor only; with accumulate=True the result is a sum.
    given = named("input indices values accumulate", args, kwargs)
    indices = tuple(given["indices"])
    *before, last = indices
    if given.get("accumulate") or any(i is not None for i in before) or dtype_of(last) in (torch.bool, torch.uint8):
        return None
    return op.call, (given["input"], len(before), last, given["values"])


def _index_copy(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    given = named("input dim index source", args, kwargs)
    return op.call, (given["input"], given["dim"], given["index"], given["source"])


def _scatter(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    # A tensor of values only; with `reduce` the result is a sum or product.
    given = named("input dim index src", args, kwargs)
    if set(given) != {"input", "dim", "index", "src"} or not isinstance(given["src"], fx.Node):
        return None
    return op.call, tuple(given[name] for name in ("input", "dim", "index", "src"))


def _masked_fill(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    given = named("input mask value", args, kwargs)
    return op.call, (given["mask"], given["value"], given["input"])


def _embedding(first: str, second: str) -> Rewrite:
    def rewrite(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        if any(kwargs.pop(k, None) not in (None, False) for k in ("max_norm", "sparse", "scale_grad_by_freq")):
            return None
        kwargs.pop("norm_type", None)
        if any(v not in (None, False, 2.0) for v in args[3:]):
            return None
        given = named(f"{first} {second} padding_idx", args, kwargs)
        padding = given.get("padding_idx")
        none = first == "weight" and padding == -1  # for torch.nn.functional -1 is the last row
        return op.call, (given.get("input", given.get("indices")), given["weight"], None if none else padding)

    return rewrite


def _positions(x: Tensor) -> Tensor:
    return torch.arange(x.shape[-1] * 2).reshape(2, -1) % 3


_COPY = Trait.MOVES_VALUES | Trait.KEEPS_SIGN | Trait.HOMOGENEOUS | Trait.INTEGER_IF_INPUTS
_TRIANGLE = Trait.KEEPS_SIGN | Trait.HOMOGENEOUS | Trait.INTEGER_IF_INPUTS | Trait.POSITION_IF_INPUTS
_OF_POSITIONS = _COPY | Trait.POSITION_IF_INPUTS

ROWS: tuple[Op, ...] = (
    op("slice", operator.getitem, "input index", traits=_OF_POSITIONS | Trait.VIEW | Trait.FOLDABLE,
       rewrites={"getitem": _getitem, "slice": _slice, "select": _select, "narrow": _narrow},
       example=lambda x: operator.getitem(x, (slice(None), slice(1, None), slice(None, None, 2)))),
    op("take", take, "input dim places", traits=_COPY, example=lambda x: take(x, 1, (2, 0))),
    op("index", index, "input indices", rewrites={"index": _index}, traits=_OF_POSITIONS,
       example=lambda x: index(x, (None, torch.tensor([2, 0])))),
    op("index", torch.index_select, "input dim index", "index_select", traits=_OF_POSITIONS,
       example=lambda x: torch.index_select(x, -1, torch.tensor([2, 0]))),
    op("gather", torch.gather, "input dim index", "gather", traits=_OF_POSITIONS,
       example=lambda x: torch.gather(x[0, 0], 0, _positions(x))),
    op("index_put", index_put, "input dim index values", traits=_COPY, slots={"input": "input", "values": "input"},
       rewrites={"index_put": _index_put, "index_copy": _index_copy},
       example=lambda x: index_put(x, 1, torch.tensor([2, 0]), x.flip(2)[:, :2])),
    op("index_put", torch.scatter, "input dim index src", traits=_COPY, slots={"input": "input", "src": "input"},
       rewrites={"scatter": _scatter},
       example=lambda x: torch.scatter(x, 1, torch.ones_like(x, dtype=torch.int64)[:, :1], x.flip(2)[:, :1])),
    op("where", torch.where, "condition input other", "where", rewrites={"masked_fill": _masked_fill},
       traits=Trait.ELEMENTWISE | Trait.KEEPS_SIGN | Trait.HOMOGENEOUS | Trait.INTEGER_IF_INPUTS | Trait.POSITION_IF_INPUTS,
       example=lambda x: torch.where(x > 0, x, x.flip(0))),
    op("one_hot", F.one_hot, "indices num_classes", "one_hot",
       traits=Trait.INTEGER_RESULT | Trait.NEVER_BOOLEAN | Trait.NON_NEGATIVE | Trait.KEEPS_SIGN,
       example=lambda x: F.one_hot(_positions(x), 3)),
    op("embedding", F.embedding, "indices weight padding_idx=None",
       rewrites={"embedding": _embedding("input", "weight"), "aten.embedding": _embedding("weight", "indices")},
       traits=Trait.NEVER_BOOLEAN, example=lambda x: F.embedding(_positions(x), torch.linspace(-1, 1, 6).reshape(3, 2))),
    op("tril", torch.tril, "value diagonal=0", "tril", traits=_TRIANGLE),
    op("triu", torch.triu, "value diagonal=0", "triu", traits=_TRIANGLE),
)  # fmt: skip
