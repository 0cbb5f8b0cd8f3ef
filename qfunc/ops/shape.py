"""Shapes and the order of axes and entries: reshape, transpose, split, join, pad, repeat."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from qfunc.ops.binding import axes, bind, exactly, is_sizes, named, varargs
from qfunc.ops.definition import Call, Op, Trait, op


def squeeze_all(input: Tensor) -> Tensor:
    """Return the tensor without its axes of length 1, `torch.squeeze`.

    >>> squeeze_all(torch.ones(1, 2, 1)).shape
    torch.Size([2])
    """
    return torch.squeeze(input)


def time_first(input: Tensor) -> Tensor:
    """Return a batch of sequences [N, T, C] as [T, N, C], and back; a single sequence [T, C] unchanged.

    >>> time_first(torch.ones(2, 3, 5)).shape
    torch.Size([3, 2, 5])
    """
    return input.transpose(0, 1) if input.ndim == 3 else input


def _transposed(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    return op.call, (kwargs.get("input", *args[:1]), 0, 1)


def _matrix_transposed(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    return op.call, (args[0], -2, -1)


def _getattr(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    rewrite = {"T": _transposed, "mT": _matrix_transposed}.get(args[1])
    return rewrite and rewrite(op, args[:1], {})


def _broadcast_to(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    given = exactly("input size", args, kwargs)
    if given is None:
        return None
    size = given["size"]
    return op.call, (given["input"], tuple(size) if isinstance(size, list | tuple) else size)


def _squeeze(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    given = exactly("input dim", args, kwargs)
    if given is None:
        return None
    return (op.call, (given["input"], given["dim"])) if "dim" in given else (squeeze_all, (given["input"],))


def _unflatten(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    given = exactly("input dim sizes", args, kwargs)
    return None if given is None else (op.call, (given["input"], given["dim"], tuple(given["sizes"])))


def _split(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    renamed = {"split_size_or_sections" if k in ("split_size", "split_sizes") else k: v for k, v in kwargs.items()}
    return bind(op, args, renamed)


def _repeat(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    several = len(args) == 2 and (isinstance(args[1], list | tuple) or is_sizes(args[1]))
    given = kwargs.get("repeats", args[1] if several else args[1:])
    return (op.call, (args[0], given if is_sizes(given) else tuple(given))) if given else None


def _roll(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    given = named("input shifts dims", args, kwargs)
    each = [(v,) if isinstance(v, int | fx.Node) else tuple(v or ()) for v in (given["shifts"], given.get("dims"))]
    return (op.call, (given["input"], *each)) if each[1] else None


_COPY = Trait.MOVES_VALUES | Trait.KEEPS_SIGN | Trait.HOMOGENEOUS | Trait.INTEGER_IF_INPUTS
_COPY_OF_POSITIONS = _COPY | Trait.POSITION_IF_INPUTS
_PART = _COPY | Trait.VIEW
_VIEW = _COPY_OF_POSITIONS | Trait.VIEW
_FOLDABLE_VIEW = _VIEW | Trait.FOLDABLE

ROWS: tuple[Op, ...] = (
    op("reshape", torch.reshape, "input shape", rewrites={"reshape": varargs, "view": varargs}, traits=_FOLDABLE_VIEW,
       example=lambda x: torch.reshape(x, (2, -1, 6))),
    op("reshape", torch.unflatten, "input dim sizes", rewrites={"unflatten": _unflatten}, traits=_FOLDABLE_VIEW,
       example=lambda x: torch.unflatten(x, 3, (2, 3))),
    op("reshape", torch.Tensor.view_as, "input like", "view_as", "reshape_as", traits=_FOLDABLE_VIEW,
       example=lambda x: x.view_as(x.new_zeros(6, 30))),
    op("flatten", torch.flatten, "input start_dim=0 end_dim=-1", "flatten", "ravel", traits=_FOLDABLE_VIEW,
       example=lambda x: torch.flatten(x, 1)),
    op("transpose", torch.transpose, "input dim0 dim1", "transpose", "swapaxes", "swapdims", traits=_FOLDABLE_VIEW,
       rewrites={"t": _transposed, "numpy_T": _transposed, "mT": _matrix_transposed, "getattr": _getattr},
       example=lambda x: torch.transpose(x, 1, 3)),
    op("transpose", torch.permute, "input dims", rewrites={"permute": varargs}, traits=_FOLDABLE_VIEW,
       example=lambda x: torch.permute(x, (0, 3, 1, 2))),
    op("transpose", torch.movedim, "input source destination", "movedim", "moveaxis", traits=_FOLDABLE_VIEW,
       example=lambda x: torch.movedim(x, 1, 3)),
    op("transpose", time_first, "input", traits=_FOLDABLE_VIEW, example=lambda x: time_first(x[0])),
    op("squeeze", torch.squeeze, "input dim", rewrites={"squeeze": _squeeze}, traits=_FOLDABLE_VIEW,
       example=lambda x: torch.squeeze(x[:, :1], 1)),
    op("squeeze", squeeze_all, "input", traits=_FOLDABLE_VIEW, example=lambda x: squeeze_all(x[:, :1])),
    op("unsqueeze", torch.unsqueeze, "input dim", "unsqueeze", traits=_FOLDABLE_VIEW,
       example=lambda x: torch.unsqueeze(x, 1)),
    op("expand", torch.Tensor.expand, "input shape", rewrites={"expand": varargs, "broadcast_to": _broadcast_to},
       traits=_FOLDABLE_VIEW, example=lambda x: x[:, :1].expand((-1, 4, -1, -1))),
    op("expand", torch.Tensor.expand_as, "input like", "expand_as", traits=_FOLDABLE_VIEW,
       example=lambda x: x[:, :1].expand_as(x)),
    op("detach", torch.detach, "input", "detach", traits=_VIEW | Trait.ELEMENTWISE, onnx="Identity x"),
    op("split", torch.split, "input split_size_or_sections dim=0", rewrites={"split": _split, "split_with_sizes": _split},
       results=None, traits=_PART, example=lambda x: torch.split(x, 4, 2)),
    op("chunk", torch.chunk, "input chunks dim=0", "chunk", results=None, traits=_PART,
       example=lambda x: torch.chunk(x, 3, 3)),
    op("unbind", torch.unbind, "input dim=0", "unbind", results=None, traits=_PART, example=lambda x: torch.unbind(x, 1)),
    op("concat", torch.cat, "tensors dim=0", "cat", "concat", "concatenate", traits=_COPY_OF_POSITIONS,
       example=lambda x: torch.cat((x, x.flip(1)), 1)),
    op("stack", torch.stack, "tensors dim=0", "stack", traits=_COPY_OF_POSITIONS,
       example=lambda x: torch.stack((x, x.flip(1)), 1)),
    op("pad", F.pad, "input pad mode='constant' value=None", "pad", traits=Trait.INTEGER_IF_INPUTS,
       example=lambda x: F.pad(x, (1, 2, 0, 1), "constant", -0.3)),
    op("flip", torch.flip, "input dims", rewrites={"flip": axes("dims")}, traits=_COPY,
       example=lambda x: torch.flip(x, (2,))),
    op("roll", torch.roll, "input shifts dims", rewrites={"roll": _roll}, traits=_COPY_OF_POSITIONS,
       example=lambda x: torch.roll(x, (1, 2), (2, 3))),
    op("repeat", torch.Tensor.repeat, "input repeats", rewrites={"repeat": _repeat}, traits=_COPY_OF_POSITIONS,
       example=lambda x: x.repeat((1, 2, 1, 1))),
    op("tile", torch.tile, "input dims", rewrites={"tile": axes("dims")}, traits=_COPY_OF_POSITIONS,
       example=lambda x: torch.tile(x, (2, 1))),
    op("repeat_interleave", torch.repeat_interleave, "input repeats dim=None", "repeat_interleave", traits=_COPY,
       example=lambda x: torch.repeat_interleave(x, 2, 1)),
    op("channel_shuffle", torch.channel_shuffle, "input groups", "channel_shuffle", "native_channel_shuffle", traits=_COPY,
       example=lambda x: torch.channel_shuffle(torch.cat((x, x), 1), 2)),
)  # fmt: skip
