"""Refuse rules and overrides that match an op but have no effect on it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from torch import fx

from qfunc.errors import SpecError
from qfunc.graph.data_movement import keeps_codes
from qfunc.graph.selectors import Context, matches
from qfunc.placement.fusion import FusedGroup
from qfunc.placement.place import Plan
from qfunc.placement.ties import leader_of, tie_members
from qfunc.placement.without_effect.idle_rules import require_effects
from qfunc.placement.without_effect.required_units import require_units
from qfunc.placement.without_effect.unmatched_selectors import atoms, require_matches
from qfunc.specs import (
    Constant,
    Everything,
    GraphInput,
    KeepFloat,
    ModuleType,
    Name,
    NodeName,
    Op,
    Override,
    Rule,
    Selector,
    Target,
    Where,
)
from qfunc.specs._check import SLOTS
from qfunc.specs.selectors import AllOf, AnyOf

_AN_OP = "a selector that matches an op"


def require_used(target: Target, plans: Sequence[Plan], unfolded: Sequence[fx.GraphModule]) -> None:
    """Raise unless every user selector matches, every named rule affects a slot, and every override affects a site.

    A rule of `edit.skip`, or another that keeps only float, must change something: see `idle_rules`.  A setting of the
    target must have units: see `required_units`.

    Args:
        target: The target with the rules and overrides.
        plans: The plans of the graphs of one model.
        unfolded: The graphs before their BatchNorms were folded.
    Raises:
        SpecError: a rule or override has no effect; the message names a selector that has one.
    """
    require_matches(target, [p.context for p in plans], [Context(graph, target.ops) for graph in unfolded])
    for rule in target.rules:
        if _names_something(rule.select) or _matches_no_op(rule.select):
            _require_slot(rule, plans, target)
        if rule.edges is not None and _names_something(rule.edges):
            _require_edge(rule, rule.edges, plans, target)
    for change in target.overrides:
        if not _may_match_nothing(change.select):
            _require_site(change, plans, target)
    require_units(target, plans)
    require_effects(target, plans, lambda rule: _may_match_nothing(rule.select))


_CONSTANT_SLOTS = "weight", "bias"


def _may_match_nothing(selector: Selector) -> bool:
    # `Everything() & s` may match nothing: edits that do not depend on a model are written like this.
    return isinstance(selector, Everything) or (isinstance(selector, AllOf) and Everything() in selector.of)


def _names_something(selector: Selector) -> bool:
    return any(isinstance(leaf, Name | NodeName | ModuleType | Where) for leaf in atoms(selector))


def _matches_no_op(selector: Selector) -> bool:
    # Return True if a selector can only match graph inputs and constants.
    match selector:
        case GraphInput() | Constant():
            return True
        case Op(kinds):
            return set(kinds) <= {"input", "constant"}
        case AllOf(of):
            return any(_matches_no_op(one) for one in of)
        case AnyOf(of):
            return all(_matches_no_op(one) for one in of)
    return False


def _selected(rule: Rule, plans: Sequence[Plan], target: Target) -> list[tuple[Plan, FusedGroup]]:
    index = target.rules.index(rule)
    return [(plan, group) for plan in plans for group in plan.groups.groups if plan.rules.applies(index, group)]


def _require_slot(rule: Rule, plans: Sequence[Plan], target: Target) -> None:
    found = [
        {"output", *(slot for node in g.nodes for slot, _ in p.context.slots(node))} for p, g in _selected(rule, plans, target)
    ]
    rule_slots = [slot for slot in SLOTS if getattr(rule, slot) is not None]
    op_slots = set[str]().union(*found)
    if found and not set(rule_slots) & op_slots:
        found_ = f"matches ops, but has a value only for their {', '.join(rule_slots)}"
        do = f"Use one of: {', '.join(sorted(op_slots))}."
        raise _error(target, rule.select, found_, "a slot that one of them has", do)
    if found:
        _require_outside_of_units(rule, plans, target)
        return
    matching = [(p, n) for p in plans for n in p.context.model.graph.nodes if matches(rule.select, n, p.context)]
    inputs = [(p, n) for p, n in matching if n.op == "placeholder"]
    if matching and not inputs:
        raise _error(target, rule.select, "matches only weights", _AN_OP, "Name the ops that read them.")
    # A rule may set the output of a graph input, unless an op that reads it requires another value.
    for plan, node in inputs:
        name = plan.context.fact(node).path
        if rule.output is None:
            found_ = f"matches only the input {name!r}, which has no slot except its output"
            readers = _paths(node.users, plan)
            do = f"Name an op that reads it: {_first_names(readers)}." if readers else "Name an op."
            raise _error(target, rule.select, found_, _AN_OP, do)
        readers = _paths(_readers_of_codes(node, plan, target), plan)
        if isinstance(rule.output, KeepFloat) and readers and (rule.input is not None or _names_something(rule.select)):
            verb = "read" if len(readers) > 1 else "reads"
            found_ = f"matches only the input {name!r}, which {_first_names(readers)} {verb} as codes"
            selector = " | ".join(f"edit.name({path!r})" for path in readers[:3])
            inputs_only = f"edit.inputs({selector}, KeepFloat())"
            do = f"Leave its readers in float: edit.skip({selector}); or only their inputs: {inputs_only}."
            raise _error(target, rule.select, found_, _AN_OP, do)


def _require_outside_of_units(rule: Rule, plans: Sequence[Plan], target: Target) -> None:
    # Raise if a rule for inputs selects only edges inside of units, or one that keeps outputs float only tensors of codes.
    units = [(plan, group) for plan, group in _selected(rule, plans, target) if _names_something(rule.select)]
    if not units or (rule.input is not None and rule.output is not None):
        return
    plan, group = units[0]
    if rule.input is not None and not any(_reads_outside(rule, p, g) for p, g in units):
        (inner,) = _paths([n for n in group.nodes if matches(rule.select, n, plan.context)], plan)[:1]
        found = f"matches {inner!r}, whose input is inside of {_unit(plan, group)}"
        do = f"Name {plan.context.fact(group.root).path!r}; or leave {inner!r} in float: edit.skip(edit.name({inner!r}))."
        raise _error(target, rule.select, found, "an op with an input from outside of its unit", do)
    readers = [set(_readers_of_codes(g.output, p, target)) for p, g in units]
    read = [set(g.output.users) <= r for (_, g), r in zip(units, readers, strict=True)]
    if isinstance(rule.output, KeepFloat) and all(read):
        paths = _paths([n for n in group.output.users if n in readers[0]], plan)
        verb = "read" if len(paths) > 1 else "reads"
        found = f"matches {_unit(plan, group)}, and {_first_names(paths)} {verb} its output as codes"
        selector = " | ".join(f"edit.name({path!r})" for path in paths[:3])
        do = f"Leave the inputs of its readers in float, too: edit.inputs({selector}, KeepFloat())."
        raise _error(target, rule.select, found, "an output that is read in float", do)


def _reads_outside(rule: Rule, plan: Plan, group: FusedGroup) -> bool:
    matching = [n for n in group.nodes if matches(rule.select, n, plan.context)] or [group.root]
    return any(source not in group.nodes for n in matching for slot, source in plan.context.slots(n) if slot == "input")


def _unit(plan: Plan, group: FusedGroup) -> str:
    return f"the unit {' + '.join(repr(plan.context.fact(n).path) for n in group.nodes)}"


def _readers_of_codes(source: fx.Node, plan: Plan, target: Target) -> Iterator[fx.Node]:
    # Yield the ops that read the codes of a tensor, directly or after ops that only move them.
    for placed in plan.placed:
        if placed.site.slot == "input" and source in _same_codes(placed.tensor, plan, target):
            yield from placed.readers


def _paths(nodes: Iterable[fx.Node], plan: Plan) -> list[str]:
    return list(dict.fromkeys(plan.context.fact(n).path for n in nodes if n.op != "output"))


def _first_names(paths: Sequence[str]) -> str:
    return ", ".join(repr(path) for path in paths[:3])


def _require_edge(rule: Rule, edges: Selector, plans: Sequence[Plan], target: Target) -> None:
    selected = _selected(rule, plans, target)
    inputs = [
        (plan, n)
        for plan, g in selected
        for node in g.nodes
        for slot, n in plan.context.slots(node)
        if slot == "input" and n not in g.nodes
    ]
    if selected and not any(matches(edges, t, plan.context) for plan, n in inputs for t in _same_codes(n, plan, target)):
        paths = sorted({plan.context.fact(n).path for plan, n in inputs})
        do = f"Use one of: {', '.join(paths[:6])}." if paths else "Drop the edges, because these ops have no inputs."
        raise _error(target, edges, "matches no input of the ops of its rule", "inputs of these ops", do)


def _same_codes(tensor: fx.Node, plan: Plan, target: Target) -> Iterator[fx.Node]:
    # Yield a tensor, and the tensors with the same codes before it.
    yield tensor
    while keeps_codes(tensor, plan.context, target):
        inputs = [n for slot, n in plan.context.slots(tensor) if slot == "input"]
        if len(inputs) != 1:
            return
        (tensor,) = inputs
        yield tensor


def _require_site(change: Override, plans: Sequence[Plan], target: Target) -> None:
    others, followers = [], dict[str, str]()  # followers: name of a tied site -> name of its leader
    for plan in plans:
        groups = {plan.context.fact(g.root).path: g.nodes for g in plan.groups.groups}
        placed = [p for p in plan.placed if (p.site.slot if p.site.slot in _CONSTANT_SLOTS else "activation") == change.role]
        sites = [
            p.site
            for p in placed
            if any(matches(change.select, n, plan.context) for n in (*groups.get(p.site.op, ()), p.tensor))
        ]
        members = tie_members([p.site for p in placed])
        leaders = {site.name: leader_of(site, members) for site in sites}
        if any(leader in sites for leader in leaders.values()):
            return
        followers |= {name: leader.name for name, leader in leaders.items()}
        others += [(p.site, any(matches(change.select, n, plan.context) for n in p.readers)) for p in placed]
    if followers:
        name, leader = list(followers.items())[-1]
        found = f"matches {name!r}, which the target ties to {leader!r} and its estimator and function"
        raise _error(target, change.select, found, "the leader of the tie", f"Name {leader!r}, too.", "overrides")
    if not followers and _are_skipped(change, plans, target):
        return
    do = f"Use one of: {', '.join(site.name for site, _ in others[:6])}." if others else "Edit the target's rules: edit.add."
    if inputs := [site for site, is_input in others if is_input]:
        do = f"Name {inputs[0].op!r}, because its rule quantizes their input {inputs[0].name!r}."
    raise _error(target, change.select, f"matches no quantized {change.role}", "a selector that matches one", do, "overrides")


def _are_skipped(change: Override, plans: Sequence[Plan], target: Target) -> bool:
    # Return True if an override selects only ops that `edit.skip` keeps in float: then its sites would exist without the skip.
    ops = [(p, g) for p in plans for g in p.groups.groups if any(matches(change.select, n, p.context) for n in g.nodes)]
    slot = change.role if change.role in _CONSTANT_SLOTS else "output"
    skips = [i for i, rule in enumerate(target.rules) if _names_something(rule.select) and _is_skip(rule)]
    return bool(ops) and all(p.rules.keep_float(g, slot) and any(p.rules.applies(i, g) for i in skips) for p, g in ops)


def _is_skip(rule: Rule) -> bool:
    return all(isinstance(getattr(rule, slot), KeepFloat) for slot in ("input", "weight", "output"))


def _error(target: Target, selector: Selector, found: str, wanted: str, do: str, part: str = "rules") -> SpecError:
    return SpecError(where=f"target {target.name!r}, {part}", found=f"{selector!r}, which {found}", wanted=wanted, do=do)
