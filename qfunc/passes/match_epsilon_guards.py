"""Guards of divisions: y + 1e-5 under a division is the op "guard", for no scale fits y and what keeps it from 0."""

from __future__ import annotations

from torch import fx

from qfunc.graph.dtypes import position_nodes
from qfunc.ops.arithmetic import at_least, guarded
from qfunc.ops.definition import Trait
from qfunc.ops.node import attribute, has, kind_of

SMALL = 0.01
"""What guards a division is at most this: layers take 1e-5, 1e-6, 1e-12."""

_DIVIDE = ("sqrt", "rsqrt", "reciprocal", "log")


def match_epsilon_guards(network: fx.GraphModule) -> fx.GraphModule:
    """The (own) network in which y + eps and max(y, eps) are the op "guard" where they divide, or a root or logarithm is taken.

    As codes of 8 bits they would be 0 where y is, and the quotient infinite, or NaN.

    >>> from qfunc.frontend.capture import capture
    >>> made = match_epsilon_guards(capture()(fx.symbolic_trace(lambda x, y: x / (y + 1e-5))))
    >>> [kind_of(n) for n in made.graph.nodes]
    ['input', 'input', 'guard', 'div', 'output']
    """
    positions = position_nodes(network)
    changed = False
    for node in network.graph.nodes:
        found = _guard(node) if node not in positions else None
        if found is not None and _divides(node):
            value, least, target = found
            node.target, node.args, changed = target, (value, least), True
    if changed:
        network.recompile()
    return network


def _guard(node: fx.Node) -> tuple[fx.Node, float, object] | None:
    match kind_of(node):
        case "add":
            tensors, numbers = _split(node.args[:2])
            target: object = guarded
        case "clip" if attribute(node, "max") is None:
            tensors, numbers = _split((attribute(node, "input"), attribute(node, "min")))
            target = at_least
        case _:
            return None
    small = len(tensors) == len(numbers) == 1 and 0 < numbers[0] <= SMALL
    return (tensors[0], numbers[0], target) if small else None


def _split(values: tuple[object, ...]) -> tuple[list[fx.Node], list[float]]:
    numbers = [float(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    return [v for v in values if isinstance(v, fx.Node)], numbers


def _divides(node: fx.Node) -> bool:
    # Whether each reader divides by it, perhaps behind moves.
    def divided(user: fx.Node) -> bool:
        kind = kind_of(user)
        if has(user, Trait.VIEW) or kind == "cast":
            return _divides(user)
        return kind in _DIVIDE or (kind == "div" and user.args[1] is node and user.args[0] is not node)

    return bool(node.users) and all(divided(u) or kind_of(u) == "size" for u in node.users)


__all__ = ["SMALL", "match_epsilon_guards"]
