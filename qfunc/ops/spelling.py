"""The name with which a traced call spells an op."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import fx


def short_name(node: fx.Node) -> str | None:
    """Return the bare name of a torch function, method or aten op; None for any other callable.

    In-place spellings keep their trailing underscore.

    >>> g = fx.symbolic_trace(lambda x: x.clamp_(max=6)).graph
    >>> short_name([*g.nodes][1])
    'clamp_'
    """
    if node.op == "call_method":
        return str(node.target)
    if node.op != "call_function":
        return None
    target: Any = node.target
    if isinstance(target, torch._ops.OpOverload):
        space, name, *_ = str(target).split(".")
        return name if space == "aten" else None
    module = str(getattr(target, "__module__", "") or "")
    known = (
        getattr(torch.Tensor, getattr(target, "__name__", ""), None) is target
        or module.split(".")[0] == "torch"
        or module in ("_operator", "builtins", "math")
        or target in _BUILTINS
    )
    return str(getattr(target, "__name__", "")) if known else None


# torch's own builtins, torch.conv2d for one, have no __module__.
_BUILTINS = {f for space in (torch, F) for f in vars(space).values() if callable(f) and getattr(f, "__module__", 0) is None}


__all__ = ["short_name"]
