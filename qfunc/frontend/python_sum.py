"""The 0 + x with which Python's sum begins, which is x."""

from __future__ import annotations

from typing import Any

from torch import fx, nn

from qfunc.ops.binding import dtype_of
from qfunc.ops.canonicalize import canonical, short_name
from qfunc.ops.opset import BY_TARGET

# Of these PyTorch has none for booleans, whose 0 + x is of another type.
_NUMBERS = ("conv", "conv_transpose", "linear", "matmul", "avg_pool", "adaptive_avg_pool", "global_avg_pool", "mean", "relu",
            "leaky_relu", "prelu", "sigmoid", "tanh", "gelu", "silu", "hardswish", "hardsigmoid", "elu", "softplus", "mish",
            "softmax", "layer_norm", "group_norm", "sdpa", "div", "exp", "sqrt", "embedding")  # fmt: skip
_AS_THEIR_INPUTS = ("add", "sub", "mul", "pow", "clip", "max_pool", "reshape", "flatten", "transpose", "squeeze", "unsqueeze",
                    "slice", "expand", "pad", "resize", "split", "chunk")  # fmt: skip


def is_sum_start(node: fx.Node, owner: nn.Module) -> fx.Node | None:
    """The x of a traced 0 + x that is x; None for all else, and where x may be a tensor of booleans.

    >>> g = fx.symbolic_trace(lambda x, y: sum([x.relu(), y])).graph
    >>> [str(is_sum_start(n, nn.Module())) for n in g.nodes]
    ['None', 'None', 'None', 'relu', 'None', 'None']
    """
    if short_name(node) not in ("add", "iadd") or node.kwargs or len(node.args) != 2:
        return None
    x, start = node.args if isinstance(node.args[0], fx.Node) else node.args[::-1]
    if not isinstance(x, fx.Node) or not isinstance(start, int) or start != 0:
        return None
    known = dtype_of(node)
    return x if (_is_of_numbers(x, owner) if known is None else known == dtype_of(x)) else None


def _is_of_numbers(value: Any, owner: nn.Module) -> bool:
    if not isinstance(value, fx.Node):
        return isinstance(value, float)
    if value.op == "call_module":  # a norm or a dropout, or a leaf of the user's
        return type(owner.get_submodule(str(value.target))).__module__.startswith(("torch.nn.", "qfunc."))
    call = canonical(value)
    kind = "" if call is None or call[0] not in BY_TARGET else BY_TARGET[call[0]].kind
    given = () if call is None or kind not in _AS_THEIR_INPUTS else call[1]
    return kind in _NUMBERS or any(_is_of_numbers(v, owner) for v in given)


__all__ = ["is_sum_start"]
