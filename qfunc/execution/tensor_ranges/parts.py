"""The parts of tensors that one op puts together: inputs of a concat or stack, and slices that are written."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen
from torch import fx

from qfunc.graph.record import path_of
from qfunc.graph.selectors import Context, is_created, matches
from qfunc.graph.sites import QuantizerNode
from qfunc.graph.view import QuantizedModel
from qfunc.ops.node import attribute, op_of
from qfunc.ops.traits import Trait

_MOVES = frozenset(
    {"channel_shuffle", "detach", "expand", "flatten", "flip", "pixel_shuffle", "pixel_unshuffle", "repeat"}
    | {"repeat_interleave", "reshape", "roll", "squeeze", "tile", "transpose", "unsqueeze"}
)
"""Kinds whose results consist of all values of the input."""


@frozen
class Join:
    """An op that puts parts together, and the quantizer with the scale that they share.

    Attributes:
        op: The path of the op.
        parts: The tensors of the parts, each with the name for messages.
        quantizer: The path of the quantizer.
        tied: True if the target ties the parts to one scale, which they would not share otherwise.
        returned: True if the model returns the result.
        users: The paths of the ops that keep the scale if only others are left in float: the op, if it is one, and its readers.
    """

    op: str
    parts: tuple[tuple[str, str], ...]
    quantizer: str
    tied: bool
    returned: bool
    users: tuple[str, ...]


def joins(view: QuantizedModel) -> tuple[Join, ...]:
    """Return the ops of a quantized model that put parts together under one static scale."""
    network, target = view.float_network, view.record.target
    context = Context(network, () if target is None else target.ops)
    static = {q.tensor: q for q in view.quantizers if not (q.module.site.constant or q.module.site.dynamic)}
    nodes, found = {n.name: n for n in network.graph.nodes}, dict[fx.Node, Join]()
    for quantizer in static.values():
        origin = _origin(nodes[quantizer.tensor], context)
        if origin not in found and (parts := _parts(origin, static, context)):
            found[origin] = _join(origin, quantizer, parts, static, context, tied=_tied(parts, static) is not None)
    for node in nodes.values():  # an op whose inputs share a scale, and whose output has none
        tied = (
            node not in found and target and any("input" in t.slots and matches(t.select, node, context) for t in target.ties)
        )
        if tied and (leader := _tied(parts := _parts(node, static, context), static)):
            found[node] = _join(node, leader, parts, static, context, tied=True)
    return tuple(found[node] for node in nodes.values() if node in found)


def _join(
    node: fx.Node,
    quantizer: QuantizerNode,
    parts: list[fx.Node],
    static: Mapping[str, QuantizerNode],
    context: Context,
    *,
    tied: bool,
) -> Join:
    network = context.model
    named = {n.name: static[n.name].module.site.name if n.name in static else path_of(network, n) for n in parts}
    path, readers = path_of(network, node), _readers(node, context)
    returned = any(user.op == "output" for user in readers)
    op = quantizer.module.site.op
    read_by = [path_of(network, n) for n in readers if n.op != "output"]
    users: dict[str, None] = dict.fromkeys([op, *read_by] if op == path else read_by)
    return Join(path, tuple(named.items()), quantizer.path, tied, returned, tuple(users) or (op,))


def _parts(node: fx.Node, static: Mapping[str, QuantizerNode], context: Context) -> list[fx.Node]:
    # The tensors that a node puts together, each at the place where it gets a scale or a value.
    found, pending = dict[fx.Node, None](), [*reversed(_inputs(node, context))]
    while pending:
        part = pending.pop()
        while part.name not in static and context.kind(part) in _MOVES:
            part = context.slots(part)[0][1]
        inner = [] if part.name in static else _inputs(part, context)
        pending += reversed(inner)
        found.update({} if inner else {part: None})
    return list(found) if len(found) > 1 else []


def _inputs(node: fx.Node, context: Context) -> list[fx.Node]:
    kind = context.kind(node)
    written = kind == "where" and op_of(node) is not None and isinstance(attribute(node, "condition"), fx.Node)
    if written and not is_created(attribute(node, "condition"), context):
        written = False  # a condition on values makes a function of them, not parts
    if kind not in ("concat", "stack", "index_put") and not written:
        return []
    return [n for slot, n in context.slots(node) if slot in ("input", "weight") and not context.fact(n).is_integer]


def _origin(node: fx.Node, context: Context) -> fx.Node:
    # The tensor whose values, or functions of them that widen no range, a node has.
    while (len(tensors := [n for _, n in context.slots(node)])) == 1 and _widens_no_range(node, context):
        node = tensors[0]
    return node


def _widens_no_range(node: fx.Node, context: Context) -> bool:
    op = op_of(node)
    if op is None or context.kind(node) in _MOVES:
        return op is not None
    local = Trait.ELEMENTWISE in op.traits or (op.spatial is not None and Trait.WEIGHTED not in op.traits)
    local = local and Trait.ARITHMETIC not in op.traits
    return Trait.CLAMPS in op.traits or (Trait.HOMOGENEOUS in op.traits and local)


def _tied(parts: list[fx.Node], static: Mapping[str, QuantizerNode]) -> QuantizerNode | None:
    # The first quantizer of the parts, if they are of one tie; a slice has the codes of the whole tensor.
    found = []
    for part in parts:
        while part.name not in static and len(part.all_input_nodes) == 1:
            part = part.all_input_nodes[0]
        found += [static[part.name]] if part.name in static else []
    ties = {q.module.site.tie for q in found}
    return found[0] if len(found) > 1 and len(ties) == 1 and None not in ties else None


def _readers(node: fx.Node, context: Context) -> list[fx.Node]:
    # The ops that compute with the values of a node, also after ops of one tensor that only move them.
    found, pending = dict[fx.Node, None](), [node]
    while pending:
        for user in pending.pop(0).users:
            moves = context.has(user, Trait.MOVES_VALUES) and len(context.slots(user)) == 1
            pending += [user] if moves else []
            found.update({} if moves else {user: None})
    return list(found)
