"""The op vocabulary: one table from every spelling of an op to its kind, its canonical form and its slots.

After capture each op of the table is a `call_function` of its canonical callable with every parameter
given by position, so that `attribute(node, "stride")` needs no cases.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any

import torch
import torch.nn.functional as F
from attrs import frozen
from torch import fx

from qfunc.ops.float_ops import FLOAT_OPS, MOVES
from qfunc.ops.index_ops import INDEX_OPS, dense
from qfunc.ops.rare_ops import RARE_OPS
from qfunc.ops.recurrent import RECURRENT_OPS

EMPTY = Parameter.empty


def global_avg_pool(input: torch.Tensor, keepdim: bool, dim: tuple[int, int] = (-2, -1)) -> torch.Tensor:
    """The mean over height and width.

    >>> global_avg_pool(torch.ones(2, 3, 5, 7), True).shape
    torch.Size([2, 3, 1, 1])
    """
    return input.mean(dim, keepdim)


def gelu(input: torch.Tensor, approximate: str) -> torch.Tensor:
    """`F.gelu` with both arguments by position.

    >>> gelu(torch.zeros(2), "tanh")
    tensor([0., 0.])
    """
    return F.gelu(input, approximate=approximate)


def sdpa(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> torch.Tensor:
    """`F.scaled_dot_product_attention` with every argument by position.

    >>> x = torch.ones(1, 2, 3)
    >>> sdpa(x, x, x, None, 0.0, False, None, False).shape
    torch.Size([1, 2, 3])
    """
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )


@frozen
class Op:
    """One canonical op: its kind, callable, parameters with defaults, and the names that spell it.

    `constant_axis` is the channel axis of the weight; `view` says that the result may share its input's storage.
    """

    kind: str
    target: Callable[..., Any]
    signature: Signature
    names: tuple[str, ...]
    constant_axis: int = 0
    view: bool = False

    @property
    def parameters(self) -> tuple[str, ...]:
        """The canonical parameter names, in order."""
        return tuple(self.signature.parameters)


def _op(kind: str, target: Callable[..., Any], parameters: str, *names: str, axis: int = 0, view: bool = False) -> Op:
    made = []
    for word in parameters.split():
        name, given, default = word.partition("=")
        value = ast.literal_eval(default) if given else EMPTY
        made.append(Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=value))
    return Op(kind, target, Signature(made), names, axis, view)


_CONV = "input weight bias=None stride=1 padding=0 dilation=1 groups=1"
_DECONV = "input weight bias=None stride=1 padding=0 output_padding=0 groups=1 dilation=1"
_MAX = "input kernel_size stride=None padding=0 dilation=1 ceil_mode=False"
_AVG = "input kernel_size stride=None padding=0 ceil_mode=False count_include_pad=True"

OPS: tuple[Op, ...] = (
    *(_op("conv", getattr(torch, f"conv{n}d"), _CONV, f"conv{n}d") for n in (1, 2, 3)),
    *(_op("conv_transpose", getattr(torch, f"conv_transpose{n}d"), _DECONV, f"conv_transpose{n}d", axis=1) for n in (1, 2)),
    _op("conv_transpose", torch.conv_transpose3d, _DECONV, "conv_transpose3d", axis=1),
    _op("linear", F.linear, "input weight bias=None", "linear"),
    _op("matmul", torch.matmul, "input other", "matmul", "mm", "bmm", axis=-1),
    _op("add", torch.add, "input other", "add", "iadd"),
    _op("sub", torch.sub, "input other", "sub", "isub", "subtract"),
    _op("mul", torch.mul, "input other", "mul", "imul", "multiply"),
    _op("div", torch.div, "input other", "div", "truediv", "itruediv", "true_divide", "divide"),
    _op("pow", torch.pow, "input exponent", "pow"),
    _op("concat", torch.cat, "tensors dim=0", "cat", "concat", "concatenate"),
    _op("stack", torch.stack, "tensors dim=0", "stack"),
    *(_op("max_pool", getattr(torch, f"max_pool{n}d"), _MAX, f"max_pool{n}d") for n in (1, 2, 3)),
    _op("avg_pool", F.avg_pool1d, _AVG, "avg_pool1d"),
    _op("avg_pool", F.avg_pool2d, _AVG + " divisor_override=None", "avg_pool2d"),
    _op("avg_pool", F.avg_pool3d, _AVG + " divisor_override=None", "avg_pool3d"),
    _op("global_avg_pool", global_avg_pool, "input keepdim dim=(-2,-1)", "global_avg_pool"),
    _op("adaptive_avg_pool", F.adaptive_avg_pool1d, "input output_size", "adaptive_avg_pool1d"),
    _op("adaptive_avg_pool", F.adaptive_avg_pool2d, "input output_size", "adaptive_avg_pool2d"),
    _op("adaptive_avg_pool", F.adaptive_avg_pool3d, "input output_size", "adaptive_avg_pool3d"),
    _op("relu", F.relu, "input", "relu"),
    _op("clip", torch.clamp, "input min=None max=None", "clamp", "clip"),
    _op("leaky_relu", F.leaky_relu, "input negative_slope=0.01", "leaky_relu"),
    _op("prelu", torch.prelu, "input weight", "prelu"),
    _op("sigmoid", torch.sigmoid, "input", "sigmoid"),
    _op("tanh", torch.tanh, "input", "tanh"),
    _op("gelu", gelu, "input approximate='none'", "gelu"),
    _op("silu", F.silu, "input", "silu"),
    _op("hardswish", F.hardswish, "input", "hardswish"),
    _op("hardsigmoid", F.hardsigmoid, "input", "hardsigmoid"),
    _op("elu", F.elu, "input alpha=1.0", "elu"),
    _op("softplus", F.softplus, "input beta=1.0 threshold=20.0", "softplus"),
    _op("mish", F.mish, "input", "mish"),
    _op("softmax", torch.softmax, "input dim", "softmax"),
    _op("log_softmax", torch.log_softmax, "input dim", "log_softmax"),
    _op("layer_norm", F.layer_norm, "input normalized_shape weight=None bias=None eps=1e-05", "layer_norm"),
    _op("group_norm", F.group_norm, "input num_groups weight=None bias=None eps=1e-05", "group_norm"),
    _op("embedding", F.embedding, "indices weight padding_idx=None", "embedding"),
    _op("sdpa", sdpa, "query key value attn_mask=None dropout_p=0.0 is_causal=False scale=None enable_gqa=False",
        "scaled_dot_product_attention", "sdpa"),
    _op("reshape", torch.reshape, "input shape", "reshape", "view", view=True),
    _op("flatten", torch.flatten, "input start_dim=0 end_dim=-1", "flatten", "ravel", view=True),
    _op("transpose", torch.transpose, "input dim0 dim1", "transpose", "swapaxes", "swapdims", view=True),
    _op("transpose", torch.permute, "input dims", "permute", view=True),
    _op("squeeze", torch.squeeze, "input dim", "squeeze", view=True),
    _op("unsqueeze", torch.unsqueeze, "input dim", "unsqueeze", view=True),
    _op("slice", operator.getitem, "input index", "getitem", view=True),
    _op("split", torch.split, "input split_size_or_sections dim=0", "split", "split_with_sizes", view=True),
    _op("chunk", torch.chunk, "input chunks dim=0", "chunk", view=True),
    _op("expand", torch.Tensor.expand, "input shape", "expand", view=True),
    _op("pad", F.pad, "input pad mode='constant' value=None", "pad"),
    _op("resize", F.interpolate,
        "input size=None scale_factor=None mode='nearest' align_corners=None recompute_scale_factor=None", "interpolate"),
    _op("mean", torch.mean, "input dim keepdim=False", "mean"),
    _op("sum", torch.sum, "input dim keepdim=False", "sum"),
    _op("exp", torch.exp, "input", "exp"),
    _op("sqrt", torch.sqrt, "input", "sqrt"),
    _op("rsqrt", torch.rsqrt, "input", "rsqrt"),
    _op("neg", torch.neg, "input", "neg", "negative"),
    _op("abs", torch.abs, "input", "abs", "absolute"),
    _op("unbind", torch.unbind, "input dim=0", "unbind", view=True),
    _op("minimum", torch.minimum, "input other", "minimum"),
    _op("maximum", torch.maximum, "input other", "maximum"),
    _op("linear", dense, "input weight bias=None", "dense", axis=1),
    *(
        _op(kind, target, parameters, *names)
        for kind, target, parameters, *names in (*INDEX_OPS, *FLOAT_OPS, *RARE_OPS, *RECURRENT_OPS)
    ),
    *(_op(kind, target, parameters, *names, view=True) for kind, target, parameters, *names in MOVES),
)  # fmt: skip

BY_NAME: dict[str, Op] = {name: op for op in OPS for name in op.names}
BY_TARGET: dict[Any, Op] = {op.target: op for op in OPS}

MODULE_KINDS = {
    "TrainingOnly": "dropout",
    "Dropout": "dropout", "Dropout1d": "dropout", "Dropout2d": "dropout", "Dropout3d": "dropout", "AlphaDropout": "dropout",
    "FeatureAlphaDropout": "dropout", "BatchNorm1d": "batch_norm", "BatchNorm2d": "batch_norm", "BatchNorm3d": "batch_norm",
    "SyncBatchNorm": "batch_norm", "InstanceNorm1d": "instance_norm", "InstanceNorm2d": "instance_norm",
    "InstanceNorm3d": "instance_norm",
}  # fmt: skip
"""Leaves of torch.nn, and of ours, that stay modules, and their kinds."""

_WEIGHTS = ("weight", "weight_ih", "weight_hh")
_ACTIVATION_INPUTS = ("input", "other", "tensors", "query", "key", "value")


def op_of(node: fx.Node) -> Op | None:
    """The canonical op of a captured node, or None."""
    op = BY_TARGET.get(node.target) if node.op == "call_function" else None
    return op if op and not node.kwargs and len(node.args) == len(op.parameters) else None


def kind_of(node: fx.Node) -> str:
    """The kind of a captured node: a name of the vocabulary, a module leaf's, or one of "input", "constant",
    "output", "size", "unknown".

    >>> g = fx.symbolic_trace(lambda x: torch.sigmoid(x)).graph
    >>> [kind_of(n) for n in g.nodes]
    ['input', 'sigmoid', 'output']
    """
    match node.op:
        case "placeholder":
            return "input"
        case "get_attr":
            return "constant"
        case "output":
            return "output"
        case "call_module":
            module = node.graph.owning_module.get_submodule(str(node.target)) if node.graph.owning_module else None
            if getattr(module, "site", None) is not None:
                return "fake_quantize"
            return (
                MODULE_KINDS.get(type(module).__name__, "unknown")
                if type(module).__module__.startswith(("torch.", "qfunc."))
                else "unknown"
            )
    if node.target is torch.Tensor.size:
        return "size"
    op = op_of(node)
    return op.kind if op else "unknown"


def attribute(node: fx.Node, name: str) -> Any:
    """A parameter of a captured op by its canonical name."""
    op = BY_TARGET[node.target]
    return node.args[op.parameters.index(name)]


def slots(node: fx.Node) -> list[tuple[str, fx.Node]]:
    """The tensors that an op reads, as (slot, producer): slots "input", "weight" and "bias", in order.

    A constant second operand of a matmul is its weight.  Modules and unknown ops read inputs only.
    """
    op = op_of(node)
    if op is None:
        return [("input", n) for n in node.all_input_nodes]
    found: list[tuple[str, fx.Node]] = []
    for name, value in zip(op.parameters, node.args, strict=True):
        if name in _WEIGHTS and isinstance(value, fx.Node):
            found.append(("weight", value))
        elif name == "bias" and isinstance(value, fx.Node):
            found.append((name, value))
        elif name == "other" and op.kind == "matmul" and isinstance(value, fx.Node) and is_constant(value):
            found.append(("weight", value))
        elif name in _ACTIVATION_INPUTS:
            entries = value if isinstance(value, list | tuple) else (value,)
            found += [("input", v) for v in entries if isinstance(v, fx.Node)]
    return found


def is_constant(node: fx.Node) -> bool:
    """Whether a node is a parameter or buffer, perhaps behind its quantizer."""
    while node.op == "call_module" and kind_of(node) == "fake_quantize":
        node = node.all_input_nodes[0]
    return node.op == "get_attr"


def channel_axis(node: fx.Node) -> int:
    """The axis of an op's weight that runs over output channels."""
    op = op_of(node)
    return op.constant_axis if op else 0
