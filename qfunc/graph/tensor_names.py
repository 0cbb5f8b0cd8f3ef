"""Names of a network's tensors that no two tensors share, nor the tensors that are written beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain, count

from torch import fx

BESIDE = frozenset(("codes", "real", "scale", "zero_point", "rows", "rows_in", "inner", "nhwc", "columns"))
"""The parts that are appended to a tensor's name for the tensors beside it, such as its codes."""


def tensor_names(paths: Mapping[fx.Node, str]) -> dict[fx.Node, str]:
    """Return the name of each node's tensor, by which artifacts, runners and reports find it and its codes.

    It is the node's path, where no other tensor has it.  An input keeps its name, then a constant does; an op whose path is
    taken has the name "PATH.value", or else one with a number.  An op whose path could be that of a tensor beside another, as
    "x.codes" beside "x", has underscores in its name.

    >>> graph = fx.Graph()
    >>> layer = graph.call_function(abs, (graph.placeholder("x"),))
    >>> list(tensor_names(dict.fromkeys(graph.nodes, "x")).values()), list(tensor_names({layer: "x"}).values())
    (['x', 'x.value'], ['x'])
    """
    order = {"placeholder": 0, "get_attr": 1}
    names, attributes = _Names(), dict[str, str]()
    found: dict[fx.Node, str] = {}
    waiting: list[tuple[fx.Node, str]] = []
    for node, path in sorted(paths.items(), key=lambda item: order.get(item[0].op, 2)):
        if node.op == "get_attr" and path in attributes:  # one tensor, which several nodes read
            found[node] = attributes[path]
        elif names.add(path):
            found[node] = path
        else:
            waiting.append((node, path))
            continue
        if node.op == "get_attr":
            attributes[path] = found[node]
    for node, path in waiting:
        if path in attributes and node.op == "get_attr":
            found[node] = attributes[path]
            continue
        found[node] = next(name for name in _others(path) if names.add(name))
        if node.op == "get_attr":
            attributes[path] = found[node]
    return {node: found[node] for node in paths}


def _others(path: str) -> Iterator[str]:
    plain = path.replace(".", "_")
    return chain([f"{path}.value", plain], (f"{plain}_{i}" for i in count(1)))


class _Names:
    def __init__(self) -> None:
        self.taken: set[str] = set()
        self.stems: set[str] = set()  # what is before a part of BESIDE in a name

    def add(self, name: str) -> bool:
        """Return True if a name is free; it is taken from then on."""
        parts = name.split(".")
        stems = [".".join(parts[:i]) for i, part in enumerate(parts) if i and part in BESIDE]
        if name in self.taken or name in self.stems or any(stem in self.taken for stem in stems):
            return False
        self.taken.add(name)
        self.stems.update(stems)
        return True
