"""Recognise the 0 + x with which Python's sum() begins."""

from __future__ import annotations

from typing import Any

from torch import fx, nn

from qfunc.ops.binding import dtype_of
from qfunc.ops.canonicalize import canonical
from qfunc.ops.definition import Trait
from qfunc.ops.opset import BY_TARGET
from qfunc.ops.sizes import short_name


def is_sum_start(node: fx.Node, owner: nn.Module) -> fx.Node | None:
    """Return the x of a traced 0 + x; None for any other node, or if x may be a boolean tensor.

    >>> g = fx.symbolic_trace(lambda x, y: sum([x.relu(), y])).graph
    >>> [str(is_sum_start(n, nn.Module())) for n in g.nodes]
    ['None', 'None', 'None', 'relu', 'None', 'None']
    """
    if short_name(node.op, node.target) not in ("add", "iadd") or node.kwargs or len(node.args) != 2:
        return None
    x, start = node.args if isinstance(node.args[0], fx.Node) else node.args[::-1]
    if not isinstance(x, fx.Node) or not isinstance(start, int) or start != 0:
        return None
    known = dtype_of(node)
    return x if (_is_of_numbers(x, owner) if known is None else known == dtype_of(x)) else None


def _is_of_numbers(value: Any, owner: nn.Module) -> bool:
    if not isinstance(value, fx.Node):
        return isinstance(value, float)
    if value.op == "call_module":  # a norm, a dropout, or a leaf of the user
        return type(owner.get_submodule(str(value.target))).__module__.startswith(("torch.nn.", "qfunc."))
    call = canonical(value)
    op = None if call is None else BY_TARGET.get(call[0])
    if op is None or call is None:
        return False
    # These operands have the dtype of the result; a condition or an index does not.
    follows = op.traits & (Trait.VIEW | Trait.ARITHMETIC) or op.kind == "pad"
    return Trait.NEVER_BOOLEAN in op.traits or (bool(follows) and any(_is_of_numbers(v, owner) for v in call[1]))
