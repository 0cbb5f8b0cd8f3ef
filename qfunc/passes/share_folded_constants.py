"""Share the folded weights and biases of ops that shared a module before folding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, fx, nn

from qfunc.graph.constants import model_path, read_attr
from qfunc.graph.linear_op import LinearOp
from qfunc.ops.node import attribute, kind_of

_SLOTS = ("weight", "bias")


class SharedConstants:
    """The constants folded into each op of a graph.  Ops with the same constants share one weight and one bias.

    >>> from qfunc.frontend.capture import capture
    >>> from qfunc.passes.fold_batch_norm import fold_batch_norms
    >>> block = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3))
    >>> folded = fold_batch_norms(capture()(nn.Sequential(block, block).eval()))
    >>> sorted({str(n.target) for n in folded.graph.nodes if n.op == "get_attr"})
    ['0.0.bias', '0.0.weight']
    """

    def __init__(self, model: fx.GraphModule, constant: set[fx.Node]) -> None:
        self.model, self.constant = model, constant
        self.values = {node: read_attr(model, node) for node in model.graph.nodes if node.op == "get_attr"}
        self.paths = {str(node.target) for node in self.values}
        called = (str(node.target) for node in model.graph.nodes if node.op == "call_module")
        self.modules = {path: model.get_submodule(path) for path in called}
        self.signatures: dict[fx.Node, list[Any]] = {}
        self.bases: dict[fx.Node, tuple[str, str]] = {}

    def put(self, op: LinearOp, folded: Sequence[fx.Node], weight: Tensor, bias: Tensor | None) -> None:
        """Store a weight and a bias in an op (None: it keeps the bias), and record the nodes that were folded into it."""
        if op.node not in self.signatures:
            nodes = [attribute(op.node, slot) for slot in _SLOTS]
            path = model_path(nodes[0])
            self.bases[op.node] = path, path.removesuffix("weight") + "bias" if nodes[1] is None else model_path(nodes[1])
            self.signatures[op.node] = [op.kind, op.groups, *map(self._signature, nodes)]
        self.signatures[op.node] += [self._signature(node, inside=True) for node in folded]
        shifts = [s for node in folded if (s := self._shift(node)) is not None]
        op.put(weight, bias, any(s.requires_grad for s in shifts) if shifts else None)

    def _shift(self, node: fx.Node) -> nn.Parameter | None:
        # The parameter that a folded op adds.
        if node.op == "call_module":
            shift: Any = getattr(self.model.get_submodule(str(node.target)), "bias", None)
        else:
            added = node.all_input_nodes if kind_of(node) == "add" else ()
            shift = next((self.values[n] for n in added if n in self.values), None)
        return shift if isinstance(shift, nn.Parameter) else None

    def create(self, norm: fx.Node, op: fx.Node, base: str) -> None:
        """Record an op that replaces a norm, with constants at `base`.weight and `base`.bias."""
        self.bases[op] = f"{base}.weight", f"{base}.bias"
        self.signatures[op] = [self._signature(norm, inside=True)]

    def _signature(self, node: Any, inside: bool = False) -> Any:
        # Return the target and the constants of a node, as a value to compare; any tensor that is not constant is "value".
        if not isinstance(node, fx.Node) or (node not in self.constant and not inside):
            return node if node is None else "value"
        if node in self.values:
            return id(self.values[node])
        target = self.modules[str(node.target)] if node.op == "call_module" else node.target
        return id(target), str(fx.map_arg((node.args, node.kwargs), self._signature))

    def run(self) -> None:
        """Let ops with equal signatures read the tensors of the first of them, with paths in the graph's order."""
        ops = [node for node in self.model.graph.nodes if node in self.signatures]
        first: dict[tuple[Any, ...], fx.Node] = {}
        representatives = {op: first.setdefault(tuple(self.signatures[op]), op) for op in ops}
        for index, slot in enumerate(_SLOTS):
            groups: dict[str, list[fx.Node]] = {}
            having = [op for op in ops if attribute(op, slot) is not None]
            for op in having:
                groups.setdefault(self.bases[op][index], []).append(op)
            unused = {n: group[0] for group in groups.values() for n in self._assign_paths(group, slot, representatives)}
            for op in having:
                if representatives[op] is not op:
                    op.replace_input_with(attribute(op, slot), attribute(representatives[op], slot))
            for node, op in unused.items():
                self._release(node, read_attr(self.model, attribute(op, slot)))

    def _assign_paths(self, ops: list[fx.Node], slot: str, representatives: dict[fx.Node, fx.Node]) -> list[fx.Node]:
        # Give the representatives the first paths, in the graph's order; return the nodes of the other paths.
        constants = {op: attribute(op, slot) for op in ops}
        sources = sorted(constants.values(), key=lambda n: (len(str(n.target)), str(n.target)))
        first = [op for op in ops if representatives[op] is op]
        values = [read_attr(self.model, constants[op]) for op in first]
        for op, source, value in zip(first, sources, values, strict=False):
            op.replace_input_with(constants[op], source)
            op.prepend(source)
            owner, name = self._owner(source.target)
            setattr(owner, name, value)
        return sources[len(first) :]

    def _release(self, node: fx.Node, value: Tensor) -> None:
        # A path of the original model stays valid: it refers to the tensor that replaced its own.
        owner, name = self._owner(node.target)
        self.model.graph.erase_node(node)
        if str(node.target) in self.paths:
            setattr(owner, name, value)
        else:
            delattr(owner, name)

    def _owner(self, path: Any) -> tuple[nn.Module, str]:
        owner, _, name = str(path).rpartition(".")
        return self.model.get_submodule(owner), name
