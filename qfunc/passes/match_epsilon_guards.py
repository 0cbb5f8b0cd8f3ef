"""Rewrites that make the sum y + 1e-5 in a divisor the op "guard", which stays in float.

A scale of 8 bits that covers y rounds 1e-5 to 0.
"""

from __future__ import annotations

from typing import Any

from torch import fx

from qfunc.graph.dtypes import position_nodes
from qfunc.graph.matcher import Rewrite, calls
from qfunc.graph.patterns import Match, OpPattern, number, op, tensor
from qfunc.ops.arithmetic import at_least, guarded
from qfunc.ops.definition import Trait
from qfunc.ops.node import has, kind_of
from qfunc.passes.rewrite import rewrite

SMALL = 0.01
"""The largest constant that counts as a guard.  Layers use 1e-5, 1e-6 and 1e-12."""

_DIVIDE = ("sqrt", "rsqrt", "reciprocal", "log")
_Y, _EPS = tensor("y"), number("eps", lambda v: 0 < v <= SMALL, f"a number in (0, {SMALL}]")


def _other_use(found: Match) -> str:
    return "" if _divides(found.root) else f"{found.root.name!r} has a reader that does not divide by it"


def _guard(pattern: OpPattern, target: Any) -> Rewrite:
    return Rewrite("guard", pattern, calls(target, "y", "eps"), check=_other_use)


GUARDS = (
    _guard(op("add", _Y, _EPS, commutative=True), guarded),
    _guard(op("clip", input=_Y, min=_EPS, max=None), at_least),
)


def match_epsilon_guards(network: fx.GraphModule) -> fx.GraphModule:
    """Replace y + eps and max(y, eps) by the op "guard" where every reader divides by them or takes a root or logarithm.

    Quantized to 8 bits they would be 0 where y is 0, and the quotient infinite or NaN.  The network is changed in place.

    >>> from qfunc.frontend.capture import capture
    >>> guarded_net = match_epsilon_guards(capture()(fx.symbolic_trace(lambda x, y: x / (y + 1e-5))))
    >>> [kind_of(n) for n in guarded_net.graph.nodes]
    ['input', 'input', 'guard', 'div', 'output']
    """
    positions = position_nodes(network)
    return rewrite(network, GUARDS, nodes=[n for n in network.graph.nodes if n not in positions])


def _divides(node: fx.Node) -> bool:
    # Return True if each reader divides by the node, perhaps after ops that move data.
    def divided(user: fx.Node) -> bool:
        kind = kind_of(user)
        if has(user, Trait.VIEW) or kind == "cast":
            return _divides(user)
        return kind in _DIVIDE or (kind == "div" and user.args[1] is node and user.args[0] is not node)

    return bool(node.users) and all(divided(u) or kind_of(u) == "size" for u in node.users)
