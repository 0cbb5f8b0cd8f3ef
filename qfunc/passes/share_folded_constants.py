"""Tensors of shared modules after folding: what the same constants were folded into twice is one tensor again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, fx, nn

from qfunc.graph.constants import model_path, read_attr
from qfunc.graph.linear_op import LinearOp
from qfunc.ops.node import attribute

_SLOTS = ("weight", "bias")


class SharedConstants:
    """Remembers what is folded into which op of one graph, so that ops share their tensors where all of that is the same.

    >>> from qfunc.frontend.capture import capture
    >>> from qfunc.passes.fold_batch_norm import fold_batch_norms
    >>> block = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3))
    >>> folded = fold_batch_norms(capture()(nn.Sequential(block, block).eval()))
    >>> sorted({str(n.target) for n in folded.graph.nodes if n.op == "get_attr"})
    ['0.0.bias', '0.0.weight']
    """

    def __init__(self, model: fx.GraphModule, constant: set[fx.Node]) -> None:
        self.model, self.constant = model, constant
        self.held = {node: read_attr(model, node) for node in model.graph.nodes if node.op == "get_attr"}
        self.own = {str(node.target) for node in self.held}
        self.made: dict[fx.Node, list[Any]] = {}
        self.bases: dict[fx.Node, tuple[str, str]] = {}

    def put(self, op: LinearOp, folded: Iterable[fx.Node], weight: Tensor, bias: Tensor) -> None:
        """As `op.put`, of the nodes that are folded into the op."""
        if op.node not in self.made:
            nodes = [attribute(op.node, slot) for slot in _SLOTS]
            path = model_path(nodes[0])
            self.bases[op.node] = path, path.removesuffix("weight") + "bias" if nodes[1] is None else model_path(nodes[1])
            self.made[op.node] = [op.kind, op.groups, *map(self._spelt, nodes)]
        self.made[op.node] += [self._spelt(node, inside=True) for node in folded]
        op.put(weight, bias)

    def _spelt(self, node: Any, inside: bool = False) -> Any:
        # A node by the constants that it reads and what it does; what is no constant is the tensor that is normed.
        if not isinstance(node, fx.Node) or (node not in self.constant and not inside):
            return node if node is None else "value"
        if node in self.held:
            return id(self.held[node])
        target = self.model.get_submodule(str(node.target)) if node.op == "call_module" else node.target
        return id(target), str(fx.map_arg((node.args, node.kwargs), self._spelt))

    def run(self) -> None:
        """Joins them: the first op of each kind in the graph keeps its tensors, which are numbered in that order."""
        ops = [node for node in self.model.graph.nodes if node in self.made]
        first: dict[tuple[Any, ...], fx.Node] = {}
        leaders = {op: first.setdefault(tuple(self.made[op]), op) for op in ops}
        for at, slot in enumerate(_SLOTS):
            groups: dict[str, list[fx.Node]] = {}
            for op in ops:
                groups.setdefault(self.bases[op][at], []).append(op)
            left = {n: group[0] for group in groups.values() for n in self._numbered(group, slot, leaders)}
            for op in ops:
                if leaders[op] is not op:
                    op.replace_input_with(attribute(op, slot), attribute(leaders[op], slot))
            for node, op in left.items():
                self._leave(node, read_attr(self.model, attribute(op, slot)))

    def _numbered(self, ops: list[fx.Node], slot: str, leaders: dict[fx.Node, fx.Node]) -> list[fx.Node]:
        # The places that are left when the leaders have theirs, in the order of the graph.
        constants = {op: attribute(op, slot) for op in ops}
        holders = sorted(constants.values(), key=lambda n: (len(str(n.target)), str(n.target)))
        kept = [op for op in ops if leaders[op] is op]
        values = [read_attr(self.model, constants[op]) for op in kept]
        for op, holder, value in zip(kept, holders, values, strict=False):
            op.replace_input_with(constants[op], holder)
            op.prepend(holder)
            owner, name = self._owner(holder.target)
            setattr(owner, name, value)
        return holders[len(kept) :]

    def _leave(self, node: fx.Node, value: Tensor) -> None:
        # A name of the model's own stays, of the tensor that took its place.
        owner, name = self._owner(node.target)
        self.model.graph.erase_node(node)
        if str(node.target) in self.own:
            setattr(owner, name, value)
        else:
            delattr(owner, name)

    def _owner(self, path: Any) -> tuple[nn.Module, str]:
        owner, _, name = str(path).rpartition(".")
        return self.model.get_submodule(owner), name


__all__ = ["SharedConstants"]
