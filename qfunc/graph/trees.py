"""Nested inputs and outputs as flat lists."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from torch import fx


def leaves(value: Any) -> list[Any]:
    """The leaves of nested tuples, lists, dicts and dataclasses, in order; named tuples count as tuples, None as a leaf.

    >>> leaves({"a": 1, "b": (2, [3])})
    [1, 2, 3]
    """
    if isinstance(value, Mapping):
        return [leaf for v in value.values() for leaf in leaves(v)]
    if isinstance(value, tuple | list):
        return [leaf for v in value for leaf in leaves(v)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [leaf for f in dataclasses.fields(value) for leaf in leaves(getattr(value, f.name))]
    return [value]


def returned(output: fx.Node) -> list[fx.Node]:
    """The nodes of the tensors that a graph returns, in order; those inside the user's tuples and dataclasses, too.

    >>> g = fx.symbolic_trace(lambda x: (x, {"y": [x.relu(), None]})).graph
    >>> [n.name for n in returned(list(g.nodes)[-1])]
    ['x', 'relu']
    """
    found: list[fx.Node] = []
    for leaf in leaves(output.args[0] if output.op == "output" else (output.args, output.kwargs)):
        if isinstance(leaf, fx.Node):
            found += returned(leaf) if isinstance(leaf.target, type) else [leaf]
    return found
