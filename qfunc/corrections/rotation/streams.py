"""Residual streams: sums of the outputs of embeddings and linear layers, read through RMSNorms, whose channels may be rotated.

With an orthogonal Q, x' = x Q has the same norm as x. So RMSNorms without gains commute with it, and so do sums.
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen
from torch import fx

from qfunc.graph.constants import read_attr
from qfunc.graph.record import path_of
from qfunc.ops.node import attribute, kind_of

_SUMS = ("add", "dropout", "identity", "detach")


@frozen(eq=False)
class Residual:
    """A stream: its tensors, the ops that write it, its norms, and the linear layers that read it or one of the norms."""

    size: int
    values: frozenset[fx.Node]
    writers: tuple[fx.Node, ...]
    norms: tuple[fx.Node, ...]
    readers: tuple[fx.Node, ...]


@frozen
class Kept:
    """A stream that cannot be rotated: the op that prevents it, and the reason."""

    op: str
    why: str

    def __str__(self) -> str:
        """Return both in one line."""
        return f"{self.op!r} {self.why}"


class _Stop(Exception):
    def __init__(self, at: fx.Node, why: str) -> None:
        super().__init__(why)
        self.at, self.why = at, why


def residuals(model: fx.GraphModule) -> tuple[tuple[Residual, ...], tuple[Kept, ...]]:
    """Return the streams of a captured model that can be rotated, and the reasons why others cannot."""
    found, kept, seen = list[Residual](), list[Kept](), set[fx.Node]()
    for node in model.graph.nodes:
        if kind_of(node) != "rms_norm" or attribute(node, "input") in seen:
            continue
        values = _Values()
        try:
            values.follow(attribute(node, "input"))
            found.append(_residual(model, values))
        except _Stop as stop:
            kept.append(Kept(path_of(model, stop.at), stop.why))
        seen |= values.members
    return tuple(found), tuple(kept)


class _Values:
    """The tensors of a stream, and the ops around them."""

    def __init__(self) -> None:
        self.members: set[fx.Node] = set()
        self.writers: list[fx.Node] = []
        self.norms: list[fx.Node] = []
        self.readers: list[fx.Node] = []

    def follow(self, start: fx.Node) -> None:
        """Find all tensors that sums connect with one of them."""
        pending = [start]
        while pending:
            node = pending.pop()
            if node in self.members:
                continue
            self.members.add(node)
            pending += [*self._before(node), *self._after(node)]

    def _before(self, node: fx.Node) -> list[fx.Node]:
        kind = kind_of(node)
        if kind in ("embedding", "linear"):
            self.writers.append(node)
            return []
        if kind in _SUMS or _is_multiple(node) or _is_part(node):
            return [n for n in node.all_input_nodes if kind_of(n) != "size"]
        raise _Stop(node, f"({kind}) computes a residual stream, and rotations do not pass through it")

    def _after(self, node: fx.Node) -> Iterator[fx.Node]:
        for reader in node.users:
            kind = kind_of(reader)
            if kind == "rms_norm" and reader not in self.norms:
                self.norms.append(reader)
                self.readers += _linear_readers(reader)
            elif kind == "linear" and attribute(reader, "input") is node:
                self.readers.append(reader)
            elif (kind in _SUMS and not _adds_number(reader)) or _is_multiple(reader) or _is_part(reader):
                yield reader
            elif kind not in ("size", "rms_norm"):
                raise _Stop(reader, f"({kind}) reads a residual stream, and rotations do not pass through it")


def _linear_readers(norm: fx.Node) -> Iterator[fx.Node]:
    pending = [norm]
    while pending:
        node = pending.pop()
        for reader in node.users:
            if kind_of(reader) == "linear" and attribute(reader, "input") is node:
                yield reader
            elif _is_slice(reader) or kind_of(reader) in ("dropout", "identity", "detach"):
                pending.append(reader)
            elif kind_of(reader) != "size":
                raise _Stop(reader, f"({kind_of(reader)}) reads a norm of a residual stream, where only linear layers may")


def _residual(model: fx.GraphModule, values: _Values) -> Residual:
    sizes = {s for n in values.norms for s in (tuple(attribute(n, "normalized_shape")),)}
    if len(sizes) != 1 or len(next(iter(sizes))) != 1:
        raise _Stop(values.norms[0], f"is one of norms over {sorted(sizes)}, where one axis of channels is wanted")
    for norm in values.norms:
        weight = attribute(norm, "weight")
        if weight is not None and weight.op != "get_attr":
            raise _Stop(norm, "has a computed weight")
    for op in (*values.writers, *values.readers):
        constants = [attribute(op, name) for name in ("weight", "bias") if name == "weight" or kind_of(op) == "linear"]
        if any(n is not None and n.op != "get_attr" for n in constants):
            raise _Stop(op, "has a computed weight or bias")
    (size,) = next(iter(sizes))
    for ops, axes in ((values.writers, {"embedding": 1, "linear": 0}), (values.readers, {"linear": 1})):
        for op in ops:
            if read_attr(model, attribute(op, "weight")).shape[axes[kind_of(op)]] != size:
                raise _Stop(op, f"has a weight for other channels than the {size} of the norms")
    return Residual(int(size), frozenset(values.members), tuple(values.writers), tuple(values.norms), tuple(values.readers))


def _adds_number(node: fx.Node) -> bool:
    return kind_of(node) == "add" and len(node.all_input_nodes) < 2 and node.args[0] is not node.args[1]


def _is_multiple(node: fx.Node) -> bool:
    # A product or quotient with a number.
    numbers = [a for a in node.args if isinstance(a, int | float)]
    return kind_of(node) in ("mul", "div") and len(numbers) == 1 and isinstance(node.args[0], fx.Node)


def _is_slice(node: fx.Node) -> bool:
    index = node.args[1] if kind_of(node) == "slice" else None
    return all(isinstance(i, slice) for i in index) if isinstance(index, tuple) else isinstance(index, slice)


def _is_part(node: fx.Node) -> bool:
    # Some of the tokens: the ops that read it have weights for all channels, so that no channel was left out.
    return _is_slice(node) and all(kind_of(reader) in ("rms_norm", "linear", "size") for reader in node.users)
