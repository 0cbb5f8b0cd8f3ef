"""Mixtures of experts among linear layers: the sums that a runtime with an op for them computes as one unit."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from attrs import frozen
from torch import Tensor, fx

from qfunc.graph.constants import read_attr
from qfunc.graph.selectors import Context
from qfunc.numerics.sums.blocks import stored_bits
from qfunc.ops.node import attribute, channel_axis, slots
from qfunc.specs import Int, PerBlock, Scheme


@frozen
class Expert:
    """The linear layers of an expert, and all nodes from the first to its result times its shares."""

    up: fx.Node
    down: fx.Node
    nodes: tuple[fx.Node, ...]


@frozen
class Mixture:
    """Experts in the order of their shares [T, E]; `nodes` begin with the first layer and end with the sum."""

    input: fx.Node
    shares: fx.Node
    experts: tuple[Expert, ...]
    nodes: tuple[fx.Node, ...]


def mixtures(context: Context, nodes: Sequence[fx.Node]) -> tuple[Mixture, ...]:
    """Return the mixtures of a graph: sums of down(silu(g) l) s_e over all E columns s_e of the shares, with g, l = up(x).

    The shares are a sum of one-hot rows of E numbers.  Nothing else reads a node of a mixture but its sum.
    """
    sums = [n for n in nodes if context.kind(n) == "add"]
    whole = (n for n in sums if not any(context.kind(r) == "add" and r.args[0] is n for r in n.users))
    found = (_mixture(context, node) for node in whole)
    return tuple(m for m in found if m is not None)


def stacked_mixtures(context: Context, scheme: Callable[[fx.Node, fx.Node], Scheme | None]) -> dict[fx.Node, Mixture]:
    """Return the mixtures by their sums whose layers all have weights of one form, which can be stacked.

    The block divides the inputs of each layer, and weights with zero points have two blocks or more.  `scheme` is that of
    `of_one_form`.

    Source: ONNX Runtime, contrib_ops/cpu/moe/moe_quantization_cpu.cc, QNBitGemmEligible.
    """
    found = mixtures(context, list(context.model.graph.nodes))
    return {m.nodes[-1]: m for m in found if of_one_form(m, scheme, lambda weight: read_attr(context.model, weight))}


def of_one_form(
    mixture: Mixture, scheme: Callable[[fx.Node, fx.Node], Scheme | None], value: Callable[[fx.Node], Tensor]
) -> bool:
    """Return True if all layers of a mixture have weights of one form, which can be stacked.

    Args:
        mixture: The mixture.
        scheme: (weight, layer) -> the scheme of the weight, or None if it is float.
        value: The tensor of a weight.
    """
    forms = set[Any]()
    for role, node in ((role, n) for e in mixture.experts for role, n in (("up", e.up), ("down", e.down))):
        weight = dict(slots(node)).get("weight")
        held = None if weight is None else scheme(weight, node)
        if weight is None or held is None or channel_axis(node) % 2 or not isinstance(held.format, Int):
            return False
        shared, bits, shape = held.scale.shared, stored_bits(held.format.bits), tuple(value(weight).shape)
        if not isinstance(shared, PerBlock) or shape[1] % shared.size or bits < 4:
            return False
        if not held.format.signed and shape[1] < 2 * shared.size:
            return False
        forms |= {(shared.size, bits, held.format.signed), (role, shape, "bias" in dict(slots(node)))}
    return len(forms) == 3


def _mixture(context: Context, total: fx.Node) -> Mixture | None:
    terms, sums = _terms(context, total)
    each = [_expert(context, term) for term in terms]
    if len(each) < 2 or any(e is None for e in each):
        return None
    experts = [e for e in each if e is not None]
    shares, count = experts[0][1], len(experts)
    inputs = {attribute(e.up, "input") for e, _, _ in experts}
    in_order = all(s is shares and column == i for i, (_, s, column) in enumerate(experts))
    if not in_order or len(inputs) > 1 or not _one_hot(context, shares, count):
        return None
    inside = {*chain.from_iterable(e.nodes for e, _, _ in experts), *sums}
    if any(reader not in inside for node in inside if node is not total for reader in node.users):
        return None
    (read,) = inputs
    members = [e for e, _, _ in experts]
    ordered = [members[0].up, *(n for n in total.graph.nodes if n in inside and n not in (members[0].up, total)), total]
    return Mixture(read, shares, tuple(members), tuple(ordered))


def _terms(context: Context, node: fx.Node) -> tuple[list[fx.Node], list[fx.Node]]:
    # ((t0 + t1) + t2) + ...: the terms in order, and the sums.
    sums, terms = [], []
    while context.kind(node) == "add" and len(node.args) == 2 and not node.kwargs:
        left, right = node.args
        if not isinstance(left, fx.Node) or not isinstance(right, fx.Node):
            return [], []
        sums.append(node)
        terms.append(right)
        node = left
    return [node, *reversed(terms)], sums


def _expert(context: Context, term: fx.Node) -> tuple[Expert, fx.Node, int] | None:
    # down(silu(g) l) times a column of the shares: the expert, the shares and the number of the column.
    if context.kind(term) != "mul" or len(term.args) != 2:
        return None
    down, column = term.args
    shares = _column(column)
    if shares is None or not _is_linear(context, down):
        return None
    product = down.args[0]  # type: ignore[union-attr]
    if not isinstance(product, fx.Node) or context.kind(product) != "mul":
        return None
    curve, factor = product.args[:2]
    gate = curve.args[0] if isinstance(curve, fx.Node) and context.kind(curve) == "silu" else None
    parts = [_part(context, n) for n in (gate, factor)]
    if parts[0] is None or parts[1] is None or parts[0][0] is not parts[1][0] or (parts[0][1], parts[1][1]) != (0, 1):
        return None
    chunk = parts[0][0]
    up = chunk.args[0]
    if not _is_linear(context, up):
        return None
    taken = () if column.args[0] is shares[0] else (column.args[0],)  # type: ignore[union-attr]
    nodes = (up, chunk, gate, factor, curve, product, down, *taken, column, term)
    return Expert(up, down, nodes), *shares  # type: ignore[arg-type]


def _is_linear(context: Context, node: Any) -> bool:
    return isinstance(node, fx.Node) and context.kind(node) == "linear" and isinstance(node.args[0], fx.Node)


def _part(context: Context, node: Any) -> tuple[fx.Node, int] | None:
    # A half of a chunk of the last axis in two.
    if not isinstance(node, fx.Node) or node.target is not operator.getitem:
        chunk = node.args[0] if isinstance(node, fx.Node) and context.kind(node) == "getitem" else None
    else:
        chunk = node.args[0]
    if not isinstance(chunk, fx.Node) or context.kind(chunk) != "chunk":
        return None
    whole = (attribute(chunk, "chunks"), attribute(chunk, "dim")) == (2, -1)
    index = node.args[1]
    return (chunk, index) if whole and type(index) is int else None


def _rows(node: Any) -> Any:
    # The tensor whose rows, all of them, a node takes: t of t[0:], as torch.export writes the first index of t[:, e].
    indexed = isinstance(node, fx.Node) and len(node.args) == 2 and isinstance(node.args[1], tuple)
    return node.args[0] if indexed and node.args[1] in ((slice(0, None, 1),), (slice(None),)) else node


def _column(node: Any) -> tuple[fx.Node, int] | None:
    # shares[:, e : e + 1]
    if not isinstance(node, fx.Node) or len(node.args) != 2 or not isinstance(node.args[1], tuple):
        return None
    index, everything = node.args[1], slice(None, None, None)
    if len(index) != 2 or index[0] != everything or not isinstance(index[1], slice):
        return None
    first, end = index[1].start, index[1].stop
    good = isinstance(node.args[0], fx.Node) and type(first) is int and end == first + 1 and index[1].step in (None, 1)
    return (_rows(node.args[0]), first) if good else None


def _one_hot(context: Context, shares: fx.Node, count: int) -> bool:
    # sum(one_hot(chosen, E) * weights, -2), of E columns.
    node: Any = shares
    for kind in ("sum", "mul", "cast", "one_hot"):
        if not isinstance(node, fx.Node) or context.kind(node) != kind:
            return False
        if kind == "sum" and attribute(node, "dim") not in (-2, [-2], (-2,)):
            return False
        if kind == "one_hot":
            return len(node.args) > 1 and bool(node.args[1] == count)
        node = node.args[0]
    return False
