"""The names that spell traced calls, and the numbers that Python computes from sizes: values that are no tensors."""

from __future__ import annotations

from collections import deque
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

from qfunc.ops.indexing import element

IN_PLACE_FUNCTIONS = {"iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor", "imatmul"}
_SIZES = ("size", "sym_size", "dim", "ndimension", "numel", "sym_numel", "__len__", "element_size")
_ARITHMETIC = (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "neg", "abs", "getitem", "min", "max", "sum", "prod",
    "floor", "ceil", "trunc", "round", "int", "float", "sqrt", "exp", "log", "log2", "log10", "log1p", "gcd", "isqrt",
    "lt", "le", "gt", "ge", "eq", "ne", *IN_PLACE_FUNCTIONS,
)  # fmt: skip
"""Functions of Python whose result is a number, if all their arguments are."""

NAMES_OF_NUMBERS = frozenset((*_SIZES, *_ARITHMETIC, "getattr"))
"""The names of all functions and methods whose results may be numbers."""


@lru_cache(maxsize=4096)
def short_name(op: str, target: Any) -> str | None:
    """Return the bare name of a torch function, method or aten op; None for any other callable.

    In-place spellings keep their trailing underscore.

    Args:
        op: The op of a traced node, such as "call_method".
        target: Its target.

    >>> node = [*fx.symbolic_trace(lambda x: x.clamp_(max=6)).graph.nodes][1]
    >>> short_name(node.op, node.target)
    'clamp_'
    """
    if op == "call_method":
        return str(target)
    if op != "call_function":
        return None
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


def is_number(node: Any) -> bool:
    """Return True if a value of a traced or captured graph is a size, or numbers computed from sizes, and no tensor.

    >>> g = fx.symbolic_trace(lambda x: x.view(x.size(0) * 2, x.shape[1])).graph
    >>> [n.name for n in g.nodes if is_number(n)]
    ['size', 'mul', 'getattr_1', 'getitem']
    """
    # All operands of an op come before theirs: most sums of tensors have an operand that no arithmetic computes.
    pending, seen = deque([node]), set[fx.Node]()
    while pending:
        value = pending.popleft()
        if isinstance(value, list | tuple):
            pending.extend(value)
        elif not isinstance(value, fx.Node):
            if not isinstance(value, int | float | slice):
                return False
        elif value not in seen:
            seen.add(value)
            name = "getitem" if value.target is element else short_name(value.op, value.target)
            if name in _SIZES or (name == "getattr" and value.args[1] in ("shape", "ndim")):
                continue
            if name not in _ARITHMETIC:
                return False
            pending.extend((*value.args, *value.kwargs.values()))
    return True
