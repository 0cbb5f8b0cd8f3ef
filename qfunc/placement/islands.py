"""Groups that run in float although a rule selects them: because nothing would gain, or the processor is slower on integers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set

from attrs import evolve
from torch import fx

from qfunc.graph.data_movement import keeps_codes, reads_values
from qfunc.graph.dtypes import node_types
from qfunc.graph.selectors import Context, matches, names_one_op
from qfunc.ops.definition import Trait
from qfunc.placement.fusion import FusedGroup, match_fusions, with_roots
from qfunc.placement.rules import GroupRules
from qfunc.specs import Everything, FixedQParams, KeepFloat, Rule, Scheme, Target


def with_islands(rules: GroupRules, groups: Sequence[FusedGroup], context: Context, target: Target) -> GroupRules:
    """Return rules of which those `beside_integers` select no group of an island.

    An island is a set of groups that such rules alone quantize and that ops on codes connect.  It has a float unit beside it,
    or joins tensors, and no unit that runs on integers by another rule reads its values, directly or through other such groups:
    the quantizers around it would cost accuracy and time, and nothing would gain.  Kinds and formats decide, before there are
    qparams.  A network of such groups alone has no islands.  Overrides that name an op keep it on integers, and rules that
    keep ops in float move no others.
    """
    if not any(rule.beside_integers for rule in target.rules):
        return rules
    given = tuple(rule for rule in target.rules if not _keeps_float(rule))
    if len(given) < len(target.rules):
        plain, made = evolve(target, rules=given), match_fusions(context, target.fusions, given)
        context, groups = with_roots(context, made), made.groups
    else:
        plain = target
    islands = _Islands(GroupRules(context, plain, slower=rules.slower), groups, context, plain).nodes()
    return GroupRules(rules.context, target, islands, rules.slower)


def rules_of(groups: Sequence[FusedGroup], context: Context, target: Target) -> GroupRules:
    """Return the rules of a target for the groups of a graph, without those for what its processor is slower on integers.

    Where no product would be left on integers, all of them stay.
    """
    rows = [(g.root, row) for row in reversed(target.runtime.slower) for g in groups if matches(row.select, g.root, context)]
    slower = {root: row for root, row in rows if not _is_asked(root, context, target)}
    if slower:
        products = {group.root for group in groups if _is_product(group, GroupRules(context, target))}
        if products <= slower.keys():
            slower = {root: row for root, row in slower.items() if root not in products}
    return GroupRules(context, target, slower=slower)


def _is_product(group: FusedGroup, rules: GroupRules) -> bool:
    # A group of a rule that is not for ops beside integers.
    heavy = (i for i, rule in enumerate(rules.rules) if isinstance(rule.input, Scheme) and not rule.beside_integers)
    return any(rules.applies(index, group) for index in heavy)


def _keeps_float(rule: Rule) -> bool:
    return isinstance(rule.input, KeepFloat) or isinstance(rule.output, KeepFloat)


def _is_asked(node: fx.Node, context: Context, target: Target) -> bool:
    # Of an override that names the op, not of one for all ops, or of a rule for this very op.
    selects = [change.select for change in target.overrides if not isinstance(change.select, Everything)]
    selects += [rule.select for rule in target.rules if names_one_op(rule.select) and not _keeps_float(rule)]
    return any(matches(select, node, context) for select in selects)


class _Islands:
    def __init__(self, rules: GroupRules, groups: Sequence[FusedGroup], context: Context, target: Target) -> None:
        self.rules, self.groups, self.context, self.target = rules, groups, context, target
        self.group_of = {n: g for g in groups for n in g.nodes}
        types = node_types(context.model, context)
        self.numbers = {*types.positions, *types.integers}
        self.kinds = {g: self._kind(g) for g in groups}

    def nodes(self) -> frozenset[fx.Node]:
        integers = [g for g, kind in self.kinds.items() if kind == "integer"]
        left = {g for g, kind in self.kinds.items() if kind == "light"} if integers else set()
        moves, found = {g for g, kind in self.kinds.items() if kind == "moves"}, set[fx.Node]()
        left -= self._reached(integers, left | moves, self._written)
        free = left | moves
        while left:
            start = left.pop()
            island = self._reached([start], free, self._neighbours) | {start}
            left -= island
            beside = (self.kinds[g] for inside in island for g in self._neighbours(inside))
            if "float" in beside or any(map(self._joins, island)):
                found.update(n for g in island if self.kinds[g] == "light" for n in g.nodes)
        return frozenset(found)

    def _joins(self, group: FusedGroup) -> bool:
        # The parts of a joined tensor have one scale on integers, and scales of their own in float.
        parts = [slot for slot, _ in self.context.slots(group.root)]
        return len(parts) > 1 and self.context.has(group.root, Trait.MOVES_VALUES)

    def _reached(
        self,
        starts: Sequence[FusedGroup],
        through: Set[FusedGroup],
        step: Callable[[FusedGroup], Iterator[FusedGroup]],
    ) -> set[FusedGroup]:
        # The groups to which steps lead through such groups.
        found, pending = set[FusedGroup](), list(starts)
        while pending:
            for group in step(pending.pop()):
                if group in through and group not in found:
                    found.add(group)
                    pending.append(group)
        return found

    def _written(self, group: FusedGroup) -> Iterator[FusedGroup]:
        # The groups that write what a group reads; constants and inputs have no group.
        for node in group.nodes:
            for slot, producer in self.context.slots(node):
                if slot == "input" and producer in self.group_of and self.group_of[producer] is not group:
                    yield self.group_of[producer]

    def _neighbours(self, group: FusedGroup) -> Iterator[FusedGroup]:
        yield from self._written(group)
        for reader in group.output.users:
            if reader in self.group_of and reads_values(reader, group.output):
                yield self.group_of[reader]

    def _kind(self, group: FusedGroup) -> str:
        if group.output in self.numbers:
            return "numbers"
        if keeps_codes(group.root, self.context, self.target):
            return "moves"
        indices = [self._index(group, "input", group.root), self._index(group, "output", group.output)]
        given = [self.target.rules[index] for index in indices if index is not None]
        if not given or not self._has_kernel(group) or self._reads_reals(group):
            return "float"
        return "light" if self._is_light(given, group) else "integer"

    def _reads_reals(self, group: FusedGroup) -> bool:
        # A kernel that quantizes its input at run time gains nothing from codes before it.
        value, _ = self.rules.value(group, "input", group.root)
        return isinstance(value, Scheme) and value.scale.dynamic

    def _is_light(self, given: Sequence[Rule], group: FusedGroup) -> bool:
        asked = any(_is_asked(node, self.context, self.target) for node in group.nodes)
        return not asked and all(rule.beside_integers for rule in given)

    def _index(self, group: FusedGroup, slot: str, tensor: fx.Node) -> int | None:
        value, index = self.rules.value(group, slot, tensor)
        return index if isinstance(value, Scheme | FixedQParams) else None

    def _has_kernel(self, group: FusedGroup) -> bool:
        kernels = self.target.kernels
        return not kernels or any(not k.in_float and matches(k.unit, group.root, self.context) for k in kernels)
