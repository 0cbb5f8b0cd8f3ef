"""Fusion: group the nodes that run as one unit, by the structure of the graph alone, before calibration."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve, field, frozen
from torch import fx

from qfunc.graph.data_movement import value_readers
from qfunc.graph.selectors import Context, arguments, matches
from qfunc.ops.definition import Trait
from qfunc.ops.node import attribute, kind_of, op_of
from qfunc.specs import Fusion, FusionStep, KeepFloat, Rule


@frozen
class FusedGroup:
    """The nodes of one unit, root first, and the fusion that joined them (None for a single node)."""

    nodes: tuple[fx.Node, ...]
    fusion: Fusion | None = None
    root: fx.Node = field(init=False, eq=False, repr=False)
    """The op that names the unit."""
    output: fx.Node = field(init=False, eq=False, repr=False)
    """The node whose value the unit produces."""

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "root", self.nodes[0])
        object.__setattr__(self, "output", self.nodes[-1])


@frozen
class NearMiss:
    """A fusion that almost joined a node, and the reason why it did not."""

    node: fx.Node
    step: fx.Node
    reason: str


@frozen
class FusedGroups:
    """All groups in topological order, and the near misses."""

    groups: tuple[FusedGroup, ...]
    misses: tuple[NearMiss, ...] = field(default=(), eq=False)


def match_fusions(context: Context, fusions: tuple[Fusion, ...], rules: tuple[Rule, ...] = ()) -> FusedGroups:
    """Return the groups of a graph: for each root in topological order, apply the first fusion that joins any node.

    A group ends before an op that one of the `rules` keeps in float, if no earlier rule selects the root.

    >>> from qfunc.frontend.capture import capture
    >>> from qfunc.specs import FusionStep, Op
    >>> from torch import nn
    >>> model = capture()(nn.Sequential(nn.Conv2d(3, 3, 3), nn.ReLU()))
    >>> found = match_fusions(Context(model), (Fusion(Op("conv"), (FusionStep(Op("relu")),)),))
    >>> [[n.name for n in g.nodes] for g in found.groups]
    [['_0', '_1']]
    """
    nodes = [n for n in context.model.graph.nodes if n.op in ("call_function", "call_method", "call_module")]
    order = {n: i for i, n in enumerate(context.model.graph.nodes)}
    fused: set[fx.Node] = set()
    groups: list[FusedGroup] = []
    misses: list[NearMiss] = []
    for node in nodes:
        if node in fused:
            continue
        group = FusedGroup((node,))
        for fusion in fusions:
            if not matches(fusion.root, node, context):
                continue
            if fusion.when is not None and not matches(fusion.when, node, context):
                if rest := (_match_chain(node, fusion, context, rules, order, fused, []) or ())[1:]:
                    misses.append(NearMiss(node, rest[0], f"the fusion requires {fusion.when!r}"))
                continue
            chain = _match_chain(node, fusion, context, rules, order, fused, misses)
            if chain is not None and len(chain) > 1:
                group = FusedGroup(chain, fusion)
                break
        fused.update(group.nodes)
        groups.append(group)
    groups.sort(key=lambda g: order[g.output])
    root = {n: g.root for g in groups for n in g.nodes}
    return FusedGroups(tuple(groups), tuple(dict.fromkeys(m for m in misses if root.get(m.step) is not m.node)))


def _match_chain(
    root: fx.Node,
    fusion: Fusion,
    context: Context,
    rules: tuple[Rule, ...],
    order: dict[fx.Node, int],
    fused: set[fx.Node],
    misses: list[NearMiss],
) -> tuple[fx.Node, ...] | None:
    # Return the root and the ops that a fusion joins to it, or None; append near misses to `misses`.
    chain = [root]
    steps = [s for s in fusion.then if s.fold is None]  # the other steps are folded
    for place, step in enumerate(steps):
        readers = value_readers(chain[-1])
        users = list(readers)
        matching = [u for u in users if matches(step.op, u, context)]
        reason = ""
        if matching and len(users) > 1:
            reason = f"{chain[-1].name!r} is read {len(users)} times, and a fused op may be read only once"
        elif matching and matching[0] in fused:
            reason = f"{matching[0].name!r} is part of another unit"
        elif matching and not _can_join(matching[0], (chain[-1], *readers[matching[0]])[-1], order[root], order, context):
            reason = f"another input of {matching[0].name!r} is not computed before {root.name!r}"
        elif matching and (rule := _float_rule(matching[0], root, rules, context)) is not None:
            misses.append(NearMiss(root, matching[0], f"{rule.select!r} keeps {matching[0].name!r} in float"))
            return tuple(chain)
        if matching and not reason:
            chain += [*readers[matching[0]], matching[0]]  # in evaluation a dropout between them is nothing
            continue
        # A node that does not join is a near miss only if the chain cannot go on without it.
        near = matching or ([] if step.optional else [u for u in users if _matches_any(u, steps[place:], context)])
        if near:
            misses.append(NearMiss(root, near[0], reason or f"{step.op!r} must stand between them"))
        if not step.optional:
            return None
    return tuple(chain)


def _float_rule(node: fx.Node, root: fx.Node, rules: tuple[Rule, ...], context: Context) -> Rule | None:
    # Return the rule that keeps the input and the output of a step in float, or None if an earlier rule selects the root.
    if not any(_keeps_float(rule) for rule in rules):
        return None
    for rule in rules:
        if rule.edges is not None or rule.output is None or rule.input is None:
            continue
        if matches(rule.select, root, context):
            return None
        if matches(rule.select, node, context):
            return rule if _keeps_float(rule) else None
    return None


def _keeps_float(rule: Rule) -> bool:
    return isinstance(rule.input, KeepFloat) and isinstance(rule.output, KeepFloat)


def _matches_any(node: fx.Node, steps: Sequence[FusionStep], context: Context) -> bool:
    return any(matches(step.op, node, context) for step in steps)


def _can_join(node: fx.Node, producer: fx.Node, root: int, order: dict[fx.Node, int], context: Context) -> bool:
    # A binary step joins only the later of its producers, because its other input must be computed before.
    inputs = [n for _, n in context.slots(node)]
    others = [_origin(n, context) for n in inputs if n is not producer and n.op != "get_attr"]
    twice = sum(n is producer for n in inputs) > 1
    return not twice and all(order[n] < root for n in others)


def _origin(tensor: fx.Node, context: Context) -> fx.Node:
    # Ops that only move values take no time, and padding almost none, so the position of their input counts.
    while context.has(tensor, Trait.VIEW) or kind_of(tensor) == "pad":
        inputs = [n for s, n in context.slots(tensor) if s == "input"]
        if len(inputs) != 1:
            break
        tensor = inputs[0]
    return tensor


def with_roots(context: Context, fused_groups: FusedGroups) -> Context:
    """Return the context with the root of each fused node."""
    return evolve(context, roots={n: g.root for g in fused_groups.groups for n in g.nodes})


def clamp_bounds(context: Context, node: fx.Node) -> tuple[float | None, float | None] | None:
    """Return the bounds (low, high) of an op that clamps, either of which may be absent, or None for another op.

    >>> from qfunc.frontend.capture import capture
    >>> from torch import nn
    >>> model = capture()(nn.Sequential(nn.ReLU6(), nn.Tanh()))
    >>> [clamp_bounds(Context(model), n) for n in model.graph.nodes if n.op == "call_function"]
    [(0.0, 6.0), None]
    """
    if not context.has(node, Trait.CLAMPS):
        return None
    own = context.user_op(node)
    if (context.kind(node) if own is None or own.behaves_like is None else own.behaves_like) == "relu":
        return 0, None
    if own is None or op_of(node) is not None:
        return attribute(node, "min"), attribute(node, "max")
    given = dict(arguments(own, node))
    return given.get("min"), given.get("max")
