"""Convolutions, linear layers and matrix products."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from qfunc.ops.binding import named
from qfunc.ops.definition import Call, Op, Trait, op


def dense(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return input @ weight + bias, a linear layer with a weight of shape [inputs, outputs].

    >>> dense(torch.ones(1, 2), torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.ones(2))
    tensor([[5., 7.]])
    """
    return input @ weight if bias is None else torch.addmm(bias, input, weight)


def _addmm(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    given = named("input mat1 other", args, kwargs)
    constants = [given.get(k) for k in ("input", "other")]
    plain = given.get("beta", 1) == 1 and given.get("alpha", 1) == 1
    if not plain or any(getattr(v, "op", "") != "get_attr" for v in constants):
        return None
    return op.call, (given["mat1"], given["other"], given["input"])


def _einsum(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    if len(args) < 2 or not isinstance(args[0], str):
        return None
    operands = args[1] if len(args) == 2 and isinstance(args[1], list | tuple) else args[1:]
    return op.call, (args[0].replace(" ", ""), tuple(operands))


_CONV = "input weight bias=None stride=1 padding=0 dilation=1 groups=1"
_DECONV = "input weight bias=None stride=1 padding=0 output_padding=0 groups=1 dilation=1"
_WEIGHTED = Trait.WEIGHTED | Trait.NEVER_BOOLEAN


def _filter(*shape: int) -> Tensor:
    return torch.linspace(-0.7, 0.9, torch.Size(shape).numel()).reshape(shape)


ROWS: tuple[Op, ...] = (
    op("conv", torch.conv1d, _CONV, "conv1d", spatial=1, traits=_WEIGHTED,
       example=lambda x: torch.conv1d(x[0], _filter(2, 5, 2), _filter(2))),
    op("conv", torch.conv2d, _CONV, "conv2d", spatial=2, traits=_WEIGHTED,
       example=lambda x: torch.conv2d(x, _filter(2, 3, 2, 2), _filter(2))),
    op("conv", torch.conv3d, _CONV, "conv3d", spatial=3, traits=_WEIGHTED,
       example=lambda x: torch.conv3d(x[None], _filter(2, 2, 2, 2, 2), _filter(2))),
    op("conv_transpose", torch.conv_transpose1d, _DECONV, "conv_transpose1d", weight_axis=1, spatial=1, traits=_WEIGHTED,
       example=lambda x: torch.conv_transpose1d(x[0], _filter(5, 2, 2), _filter(2))),
    op("conv_transpose", torch.conv_transpose2d, _DECONV, "conv_transpose2d", weight_axis=1, spatial=2, traits=_WEIGHTED,
       example=lambda x: torch.conv_transpose2d(x, _filter(3, 2, 2, 2), _filter(2))),
    op("conv_transpose", torch.conv_transpose3d, _DECONV, "conv_transpose3d", weight_axis=1, spatial=3, traits=_WEIGHTED,
       example=lambda x: torch.conv_transpose3d(x[None], _filter(2, 2, 2, 2, 2), _filter(2))),
    op("linear", F.linear, "input weight bias=None", "linear", traits=_WEIGHTED,
       example=lambda x: F.linear(x, _filter(4, 6), _filter(4))),
    op("linear", dense, "input weight bias=None", "dense", rewrites={"addmm": _addmm}, weight_axis=1, traits=_WEIGHTED,
       example=lambda x: dense(x.flatten(0, 2), _filter(6, 4), _filter(4))),
    op("matmul", torch.matmul, "input other", "matmul", "mm", "bmm", slots={"input": "input", "other": "operand"},
       weight_axis=-1,
       traits=Trait.NEVER_BOOLEAN | Trait.KEEPS_SIGN | Trait.HOMOGENEOUS | Trait.INTEGER_IF_INPUTS | Trait.POSITION_IF_INPUTS,
       example=lambda x: torch.matmul(x, x.new_ones(6, 4)), onnx="MatMul x other"),
    op("einsum", torch.einsum, "equation operands", rewrites={"einsum": _einsum},
       traits=Trait.KEEPS_SIGN | Trait.INTEGER_IF_INPUTS | Trait.NEVER_BOOLEAN,
       example=lambda x: torch.einsum("ijkl,ijkm->lm", (x, x.flip(0)))),
    op("outer", torch.outer, "input vec2", "outer", "ger", traits=Trait.KEEPS_SIGN | Trait.INTEGER_IF_INPUTS,
       example=lambda x: torch.outer(x[0, 0, 0], x[1, 1, 1])),
)  # fmt: skip
