"""The values of attention, whose channels may be rotated within each head: o(A v(x)) = o'(A (R v(x))) for o' = o R^T.

The product with the probabilities A acts on positions, and R on the channels of a head, so that they commute.  All heads get
the same R, so that it does not matter how heads are ordered, or repeated for groups of queries.
"""

from __future__ import annotations

from attrs import evolve, frozen
from torch import fx

from qfunc.graph.constants import read_attr
from qfunc.ops.node import attribute, kind_of, parameters_of


@frozen(eq=False)
class Heads:
    """A linear layer that computes values, the one that reads the result of the attention, and the channels of a head."""

    values: fx.Node
    output: fx.Node
    size: int


@frozen
class _Last:
    """The size of the last axis, and the rank; None if unknown."""

    size: int | None
    rank: int | None


def heads(model: fx.GraphModule) -> tuple[Heads, ...]:
    """Return the attentions whose values come from one linear layer, and whose results only another one reads.

    Between them are only the attention, and ops that move whole heads.
    """
    layers = [n for n in model.graph.nodes if kind_of(n) == "linear" and _is_constant(n)]
    return tuple(found for node in layers if (found := _from(model, node)) is not None)


def _from(model: fx.GraphModule, values: fx.Node) -> Heads | None:
    node, last, sizes = values, _Last(_shape(model, values)[0], None), [_shape(model, values)[0]]
    size: int | None = None
    while len(readers := [n for n in node.users if kind_of(n) != "size"]) == 1:
        (reader,) = readers
        if kind_of(reader) == "linear":
            if size is None or attribute(reader, "input") is not node or not _is_constant(reader):
                return None
            fits = all(s % size == 0 for s in (*sizes, _shape(model, reader)[1]))
            return Heads(values, reader, size) if fits else None
        after: _Last | None
        if size is None and _mixes_positions(reader, node):
            size, after = last.size, last
        else:
            after = _moved(reader, node, last) if last.size is not None else None
        if after is None:
            return None
        sizes += [] if after.size is None else [after.size]
        node, last = reader, after
    return None


def _mixes_positions(reader: fx.Node, values: fx.Node) -> bool:
    # Attention, or the product of probabilities with values.
    match kind_of(reader):
        case "sdpa":
            return attribute(reader, "value") is values and values not in reader.args[:2]
        case "matmul":
            return len(reader.args) == 2 and reader.args[1] is values and reader.args[0] is not values
    return False


def _moved(reader: fx.Node, node: fx.Node, last: _Last) -> _Last | None:
    # The last axis after an op that moves whole vectors along it, or cuts and joins them in order; None for other ops.
    if not reader.args or reader.args[0] is not node:
        return None
    names = parameters_of(reader)
    match kind_of(reader):
        case "reshape" if "shape" in names:
            shape = attribute(reader, "shape")
            size = shape[-1] if isinstance(shape[-1], int) and shape[-1] > 0 else None
            return _Last(size, len(shape))
        case "flatten":
            return _Last(None, None) if attribute(reader, "end_dim") == -1 else None
        case "transpose" if "dim0" in names:
            moved = {_axis(attribute(reader, name), last) for name in ("dim0", "dim1")}
            return None if moved & {-1, None} else last
        case "transpose" if "dims" in names:
            dims = attribute(reader, "dims")
            return last if dims[-1] in (-1, len(dims) - 1) else None
        case "unsqueeze":
            rank = last.rank
            axis = attribute(reader, "dim")
            inside = axis < -1 or (axis >= 0 and rank is not None and axis < rank)
            return evolve(last, rank=None if rank is None else rank + 1) if inside else None
        case "expand" if "shape" in names:
            shape = attribute(reader, "shape")
            return _Last(last.size, len(shape)) if shape[-1] in (-1, last.size) else None
        case "repeat_interleave":
            axis = attribute(reader, "dim")
            return None if axis is None or _axis(axis, last) in (-1, None) else last
        case "identity" | "dropout" | "detach":
            return last
    return None


def _axis(dim: int, last: _Last) -> int | None:
    return dim if dim < 0 else None if last.rank is None else dim - last.rank


def _is_constant(node: fx.Node) -> bool:
    constants = (attribute(node, "weight"), attribute(node, "bias"))
    return all(n is None or n.op == "get_attr" for n in constants)


def _shape(model: fx.GraphModule, node: fx.Node) -> tuple[int, ...]:
    return tuple(read_attr(model, attribute(node, "weight")).shape)
