"""Make one op of a clamp of a clamp, as runtimes do: min(max(min(max(x, a), b), c), d) = min(max(x, l), h).

With l and h the ends a and b, clamped to [c, d]; an end that is absent is that of the other op.
"""

from __future__ import annotations

import torch
from torch import fx

from qfunc.graph.data_movement import value_readers
from qfunc.ops.node import attribute, kind_of
from qfunc.ops.sizes import is_number

Bounds = tuple[float | None, float | None]


def merge_clamps(network: fx.GraphModule) -> fx.GraphModule:
    """Merge each relu or clip whose input is another one, in place, if it changes nothing or nothing else reads the input.

    >>> from qfunc.frontend.capture import capture
    >>> made = merge_clamps(capture()(torch.nn.Sequential(torch.nn.ReLU(), torch.nn.ReLU6(), torch.nn.ReLU())))
    >>> [(kind_of(n), n.args[1:]) for n in made.graph.nodes if n.op == "call_function"]
    [('clip', (0.0, 6.0))]
    """
    changed = False
    for node in list(network.graph.nodes):
        outer = _bounds(node)
        inner = None if outer is None else node.args[0]
        given = _bounds(inner) if isinstance(inner, fx.Node) else None
        if outer is None or given is None or not isinstance(inner, fx.Node):
            continue
        low, high = _end(given[0], outer, outer[0]), _end(given[1], outer, outer[1])
        if (low, high) == given:
            node.replace_all_uses_with(inner)
            network.graph.erase_node(node)
        elif len(value_readers(inner)) == 1:
            node.replace_input_with(inner, inner.args[0])
            if (low, high) != outer:
                node.target, node.args = torch.clamp, (node.args[0], low, high)
        else:
            continue
        changed = True
    if changed:
        network.graph.eliminate_dead_code(is_impure_node=lambda n: n.op in ("placeholder", "output"))
        network.recompile()
    return network


def _bounds(node: fx.Node) -> Bounds | None:
    # The ends of a clamp with constant ends; None for other ops.
    kind = kind_of(node) if node.op == "call_function" else ""
    if kind == "relu":
        return 0.0, None
    ends = (attribute(node, "min"), attribute(node, "max")) if kind == "clip" else (node,)
    return None if any(isinstance(end, fx.Node) for end in ends) or is_number(node) else ends  # type: ignore[return-value]


def _end(value: float | None, outer: Bounds, absent: float | None) -> float | None:
    if value is None:
        return absent
    low, high = outer
    value = value if low is None else max(value, low)
    return value if high is None else min(value, high)
