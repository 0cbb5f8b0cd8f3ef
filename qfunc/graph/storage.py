"""Which traced values share storage, so that writes in place can be made pure."""

from __future__ import annotations

from torch import fx

from qfunc.errors import CaptureError
from qfunc.graph.sources import source_line

VIEWS = frozenset((
    "view", "reshape", "flatten", "ravel", "transpose", "permute", "swapaxes", "swapdims", "movedim", "moveaxis", "t",
    "T", "mT", "H", "mH", "numpy_T", "matrix_H", "adjoint", "squeeze", "unsqueeze", "getitem", "slice", "select",
    "narrow", "unbind", "split", "split_with_sizes", "tensor_split", "hsplit", "vsplit", "dsplit", "chunk", "expand",
    "expand_as", "broadcast_to", "view_as", "reshape_as", "unflatten", "diagonal", "unfold", "as_strided", "real",
    "imag", "view_as_real", "view_as_complex", "detach", "data", "to", "type", "type_as", "float", "double", "half",
    "bfloat16", "cpu", "cuda", "contiguous", "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout",
    "feature_dropout", "feature_alpha_dropout", "positive", "alias", "requires_grad_", "lift_fresh",
))  # fmt: skip
"""Short names of ops whose result may share storage with their first argument."""


class Storage:
    """The views and aliases met so far in a traced graph, in order."""

    def __init__(self, traced: fx.Graph) -> None:
        self.order = {n: i for i, n in enumerate(traced.nodes)}
        self.base: dict[fx.Node, fx.Node] = {}  # a value -> the one whose storage it may share
        self.same: dict[fx.Node, fx.Node] = {}  # a value -> the very tensor that it is

    def view(self, node: fx.Node, of: fx.Node) -> None:
        """Notes that `node` may look into `of`."""
        self.base[node] = of

    def identical(self, node: fx.Node, to: fx.Node) -> None:
        """Notes that `node` is `to`, the same tensor under another name."""
        self.same[node] = self.base[node] = to

    def write(self, node: fx.Node, target: fx.Node) -> set[fx.Node]:
        """All names of the tensor that `node` writes into; from here on they mean the value of `node`.

        Raises:
            CaptureError: a value that shares storage with it, but is not it, is read later; or it is a
                parameter or buffer.
        """
        names = self._names(target) | {node}
        family = self._family(target)
        if any(relative.op == "get_attr" for relative in family):
            raise refused(
                node,
                "an in-place write to a parameter or buffer",
                "a forward that leaves the model as it is",
                "Return the new value instead of storing it.",
            )
        late = self.order[node]
        for relative in sorted(family - names, key=self.order.__getitem__):
            if any(self.order[user] > late for user in relative.users):
                raise refused(
                    node,
                    f"an in-place write to {target.name!r}, which shares storage with {relative.name!r} that is read later",
                    "a pure operation",
                    "Write it without the in-place op, or clone() what is read later.",
                )
        self.identical(node, target)
        return names

    def _names(self, node: fx.Node) -> set[fx.Node]:
        while node in self.same:
            node = self.same[node]
        names = {node}
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


def refused(node: fx.Node, found: str, wanted: str, do: str) -> CaptureError:
    """The error for a traced call that has no pure form."""
    return CaptureError(where=source_line(node) or f"node {node.name!r}", found=found, wanted=wanted, do=do)
