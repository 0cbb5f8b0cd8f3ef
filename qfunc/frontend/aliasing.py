"""Alias analysis of a traced graph: find the values that share storage, so that in-place writes become pure ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import fx

from qfunc.errors import CaptureError
from qfunc.frontend.source_location import source_line
from qfunc.ops.canonicalize import DROPOUTS
from qfunc.ops.definition import Trait
from qfunc.ops.opset import names

# Views that no record has: those that always become another op or remain outside the op set.
_OTHER_VIEWS = (
    "T", "H", "mH", "matrix_H", "adjoint", "tensor_split", "hsplit", "vsplit", "dsplit", "diagonal", "as_strided", "real",
    "imag", "view_as_real", "view_as_complex", "data", "cpu", "cuda", "contiguous", "positive", "alias", "requires_grad_",
    "lift_fresh", "to", "type", "type_as", "float", "double", "half", "bfloat16",
)  # fmt: skip
VIEWS = names(Trait.VIEW) - {"getattr"} | {*_OTHER_VIEWS, *DROPOUTS}
"""Short names of ops whose result may share storage with their first argument."""

SPLITS = names(results=(None,)) | {"tensor_split", "hsplit", "vsplit", "dsplit"}
"""Short names of ops that return as many parts as their arguments request."""

SEVERAL = names(results=(2, 3)) | {
    "median", "mode", "kthvalue", "aminmax", "unique", "max_pool1d_with_indices", "max_pool2d_with_indices", "lstm", "gru",
    "rnn_tanh", "rnn_relu",
}  # fmt: skip
"""Short names of ops with several results that are not slices of a tensor; the last ones have no record."""


class Storage:
    """The views and aliases among the nodes of a traced graph that were visited so far."""

    def __init__(self, traced: fx.Graph) -> None:
        self.order = {n: i for i, n in enumerate(traced.nodes)}
        self.base: dict[fx.Node, fx.Node] = {}  # value -> the value with which it may share storage
        self.same: dict[fx.Node, fx.Node] = {}  # value -> another name of the same tensor
        self.part: dict[fx.Node, Any] = {}  # view -> the index such that view = base[index]
        self.results: dict[tuple[fx.Node, Any], fx.Node] = {}  # op with several results, index -> the first that reads it

    def view(self, node: fx.Node, of: fx.Node, part: Any = None) -> None:
        """Record that `node` may be a view of `of`; with an index `part`, that it is `of[part]`."""
        self.base[node] = of
        if part is not None:
            self.part[node] = part

    def wholes(self, node: fx.Node) -> list[tuple[fx.Node, Any]]:
        """Return pairs (whole, index) from the inside out, as far as the indices are known; each part is whole[index]."""
        pairs = []
        while (node := self._first(node)) in self.part:
            pairs.append((self.base[node], self.part[node]))
            node = self.base[node]
        return pairs

    def is_part(self, node: fx.Node, of: fx.Node, index: Any) -> bool:
        """Return True if `node` is the view `of[index]`."""
        node = self._first(node)
        return self.part.get(node) == index and node in self.part and self._first(self.base[node]) is self._first(of)

    def identical(self, node: fx.Node, to: fx.Node) -> None:
        """Record that `node` and `to` are the same tensor."""
        self.same[node] = self.base[node] = to

    def result(self, node: fx.Node, of: fx.Node, index: Any) -> fx.Node:
        """Record that `node` is the result `index` of an op, which shares no storage with the others; return its first name."""
        first = self.results.setdefault((of, index), node)
        if first is not node:
            self.identical(node, first)
        return first

    def write(self, node: fx.Node, target: fx.Node, through: Sequence[fx.Node]) -> dict[fx.Node, set[fx.Node]]:
        """Return all names of each tensor that `node` writes into: of `target`, and of the tensors that it is a part of.

        Raises:
            CaptureError: a different tensor that shares storage with `target` is read later, or `target` belongs to a
                parameter or buffer.
        """
        names = {tensor: self._names(tensor) for tensor in through}
        names[target].add(node)
        known = set().union(*names.values())
        family = self._family(target)
        if any(relative.op == "get_attr" for relative in family):
            raise aliasing_error(
                node,
                "an in-place write to a parameter or buffer",
                "a forward that does not change the model",
                "Return the new value instead of storing it.",
            )
        position = self.order[node]
        for relative in sorted(family - known, key=self.order.__getitem__):
            if any(self.order[user] > position for user in relative.users):
                raise aliasing_error(
                    node,
                    f"an in-place write to {target.name!r}, which shares storage with {relative.name!r} that is read later",
                    "a pure operation",
                    "Use an out-of-place op, or clone() the tensor that is read later.",
                )
        self.identical(node, target)
        return names

    def _first(self, node: fx.Node) -> fx.Node:
        while node in self.same:
            node = self.same[node]
        return node

    def _names(self, node: fx.Node) -> set[fx.Node]:
        names = {self._first(node)}
        for name, other in self.same.items():  # in the order of the graph
            if other in names:
                names.add(name)
        return names

    def _family(self, node: fx.Node) -> set[fx.Node]:
        while node in self.base:
            node = self.base[node]
        family = {node}
        for view, base in self.base.items():
            if base in family:
                family.add(view)
        return family


def aliasing_error(node: fx.Node, found: str, wanted: str, do: str) -> CaptureError:
    """Return the error for a traced call that has no pure form."""
    return CaptureError(where=source_line(node) or f"node {node.name!r}", found=found, wanted=wanted, do=do)
