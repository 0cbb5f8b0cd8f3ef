"""Sizes in a graph, and the numbers that Python computes from sizes: values that are no tensors."""

from __future__ import annotations

from collections import deque
from typing import Any

from torch import fx

from qfunc.ops.indexing import element
from qfunc.ops.spelling import short_name

IN_PLACE_FUNCTIONS = {"iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor", "imatmul"}
_SIZES = ("size", "sym_size", "dim", "ndimension", "numel", "sym_numel", "__len__", "element_size")
_ARITHMETIC = (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "neg", "abs", "getitem", "min", "max", "sum", "prod",
    "floor", "ceil", "trunc", "round", "int", "float", "sqrt", "exp", "log", "log2", "log10", "log1p", "gcd", "isqrt",
    "lt", "le", "gt", "ge", "eq", "ne", *IN_PLACE_FUNCTIONS,
)  # fmt: skip
"""Functions of Python whose result is a number, if all their arguments are."""


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
            name = "getitem" if value.target is element else short_name(value)
            if name in _SIZES or (name == "getattr" and value.args[1] in ("shape", "ndim")):
                continue
            if name not in _ARITHMETIC:
                return False
            pending.extend((*value.args, *value.kwargs.values()))
    return True


__all__ = ["IN_PLACE_FUNCTIONS", "is_number"]
