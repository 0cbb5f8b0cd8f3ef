"""Regions with one entry and one exit: dominators, and what lies between a fork and the op that joins it."""

from __future__ import annotations

from attrs import frozen
from torch import fx

from qfunc.graph.vocabulary import kind_of
from qfunc.reconstruction.flow import Flow


@frozen(eq=False)
class Region:
    """The ops between `entry` (outside; None: the inputs of the model) and `exit` (inside), in graph order."""

    entry: fx.Node | None
    exit: fx.Node
    nodes: tuple[fx.Node, ...]


def dominators(flow: Flow) -> dict[fx.Node, fx.Node | None]:
    """The immediate dominator of each node: the last one through which every path from the inputs to it goes.

    None stands before all inputs.  The graph has no cycle, so that one pass in order is enough.

    Source: Cooper, Harvey, Kennedy: A simple, fast dominance algorithm (2001).
    """
    found: dict[fx.Node, fx.Node | None] = {}
    depth: dict[fx.Node | None, int] = {None: 0}
    for node in flow.nodes:
        before = flow.before[node]
        common: fx.Node | None = before[0] if before else None
        for other in before[1:]:
            right: fx.Node | None = other
            while common is not right:  # None, before all, has depth 0
                if common is not None and depth[common] >= depth[right]:
                    common = found[common]
                elif right is not None:
                    right = found[right]
        found[node] = common
        depth[node] = depth[common] + 1
    return found


def regions(flow: Flow) -> list[Region]:
    """For each op that joins several values, the region between it and its immediate dominator, if only it is read outside.

    Nothing enters such a region but by its entry, for a path beside it would contradict the dominator.

    >>> import torch
    >>> from qfunc.graph.capture import capture
    >>> class Net(torch.nn.Module):
    ...     def forward(self, x):
    ...         x = torch.tanh(x)
    ...         return torch.relu(x + torch.sigmoid(torch.exp(x)))
    >>> [(r.entry.name, [n.name for n in r.nodes]) for r in regions(Flow(capture()(Net())))]
    [('tanh', ['exp', 'sigmoid', 'add'])]
    """
    above, found = dominators(flow), []
    for join in flow.nodes:
        if len(flow.before[join]) < 2:
            continue
        inside = _between(above[join], join, flow)
        inner = inside - {join}
        if all(user in inside for node in inner for user in flow.behind[node]) and not inner & flow.returned:
            ordered = sorted((n for n in inside if n.op != "placeholder"), key=flow.order.__getitem__)
            found.append(Region(above[join], join, tuple(ordered)))
    return found


def is_gate(region: Region, flow: Flow) -> bool:
    """Whether a region multiplies the value of its entry by what it makes of it: x * f(x)."""
    return kind_of(region.exit) == "mul" and region.entry is not None and region.entry in flow.before[region.exit]


def _between(entry: fx.Node | None, exit_: fx.Node, flow: Flow) -> set[fx.Node]:
    inside, todo = {exit_}, [exit_]
    while todo:
        for node in flow.before[todo.pop()]:
            if node is not entry and node not in inside:
                inside.add(node)
                todo.append(node)
    return inside


__all__ = ["Region", "dominators", "is_gate", "regions"]
