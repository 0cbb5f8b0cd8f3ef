"""Refuse rules and overrides that match an op but have no effect on it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from torch import fx

from qfunc.errors import SpecError
from qfunc.graph.data_movement import TRANSPARENT
from qfunc.graph.selectors import Context, matches
from qfunc.placement.fusion import FusedGroup
from qfunc.placement.place import Plan
from qfunc.placement.ties import leader_of
from qfunc.placement.unmatched_selectors import atoms, require_matches
from qfunc.specs import (
    Constant,
    Everything,
    GraphInput,
    KeepFloat,
    ModuleType,
    Name,
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


_CONSTANT_SLOTS = "weight", "bias"


def _may_match_nothing(selector: Selector) -> bool:
    # `Everything() & s` may match nothing: edits that do not depend on a model are written like this.
    return isinstance(selector, Everything) or (isinstance(selector, AllOf) and Everything() in selector.of)


def _names_something(selector: Selector) -> bool:
    return any(isinstance(leaf, Name | ModuleType | Where) for leaf in atoms(selector))


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
    said = [slot for slot in SLOTS if getattr(rule, slot) is not None]
    if found and not set(said) & set().union(*found):
        what, do = f"has a value only for their {', '.join(said)}", f"Use one of: {', '.join(sorted(set().union(*found)))}."
        raise _error(target, rule.select, f"matches ops, but {what}", "a slot that one of them has", do)
    if found:
        return
    matched = [(p, n) for p in plans for n in p.context.model.graph.nodes if matches(rule.select, n, p.context)]
    inputs = [(p, n) for p, n in matched if n.op == "placeholder"]
    if matched and not inputs:
        raise _error(target, rule.select, "matches only weights", _AN_OP, "Name the ops that read them.")
    # A rule may set the output of a graph input, unless an op that reads it requires another value.
    for plan, node in inputs:
        name = plan.context.fact(node).path
        if rule.output is None:
            found_ = f"matches only the input {name!r}, which has no slot except its output"
            raise _error(target, rule.select, found_, _AN_OP, f"Name an op that reads it: {_some(_paths(node.users, plan))}.")
        asking = _paths(
            (reader for p in plan.placed if _asked(p.site.slot, p.tensor, node, plan, target) for reader in p.readers), plan
        )
        if isinstance(rule.output, KeepFloat) and asking and (rule.input is not None or _names_something(rule.select)):
            read = f"matches only the input {name!r}, which {_some(asking)} {'read' if len(asking) > 1 else 'reads'} as codes"
            them = " | ".join(f"edit.name({path!r})" for path in asking[:3])
            do = f"Leave its readers in float: edit.skip({them}); or only their inputs: edit.inputs({them}, KeepFloat())."
            raise _error(target, rule.select, read, _AN_OP, do)


def _asked(slot: str, tensor: fx.Node, source: fx.Node, plan: Plan, target: Target) -> bool:
    return slot == "input" and source in _carried(tensor, plan, target)


def _paths(nodes: Iterable[fx.Node], plan: Plan) -> list[str]:
    return list(dict.fromkeys(plan.context.fact(n).path for n in nodes if n.op != "output"))


def _some(paths: Sequence[str]) -> str:
    return ", ".join(repr(path) for path in paths[:3]) or "there is none"


def _require_edge(rule: Rule, edges: Selector, plans: Sequence[Plan], target: Target) -> None:
    selected = _selected(rule, plans, target)
    read = [
        (plan, n)
        for plan, g in selected
        for node in g.nodes
        for slot, n in plan.context.slots(node)
        if slot == "input" and n not in g.nodes
    ]
    if selected and not any(matches(edges, t, plan.context) for plan, n in read for t in _carried(n, plan, target)):
        paths = sorted({plan.context.fact(n).path for plan, n in read})
        found, do = (
            "matches no input of the ops of its rule",
            f"Use one of: {', '.join(paths[:6]) or 'none, they read nothing'}.",
        )
        raise _error(target, edges, found, "inputs of these ops", do)


def _carried(tensor: fx.Node, plan: Plan, target: Target) -> Iterator[fx.Node]:
    # Yield a tensor, and the tensors with the same codes before it.
    yield tensor
    while plan.context.kind(tensor) in (*target.commuting, *TRANSPARENT):
        inputs = [n for slot, n in plan.context.slots(tensor) if slot == "input"]
        if len(inputs) != 1:
            return
        (tensor,) = inputs
        yield tensor


def _require_site(change: Override, plans: Sequence[Plan], target: Target) -> None:
    others, following = [], dict[str, str]()
    for plan in plans:
        groups = {plan.context.fact(g.root).path: g.nodes for g in plan.groups.groups}
        placed = [p for p in plan.placed if (p.site.slot if p.site.slot in _CONSTANT_SLOTS else "activation") == change.role]
        chosen = [any(matches(change.select, n, plan.context) for n in (*groups.get(p.site.op, ()), p.tensor)) for p in placed]
        sites = [p.site for p, is_meant in zip(placed, chosen, strict=True) if is_meant]
        leaders = {site.name: leader_of(site, [p.site for p in placed]) for site in sites}
        if any(leader in sites for leader in leaders.values()):
            return
        following |= {name: leader.name for name, leader in leaders.items()}
        others += [(p.site, any(matches(change.select, n, plan.context) for n in p.readers)) for p in placed]
    if following:
        name, leader = list(following.items())[-1]
        found = f"matches {name!r}, which the target ties to {leader!r} and its estimator and function"
        raise _error(target, change.select, found, "the leader of the tie", f"Name {leader!r}, too.", "overrides")
    do = f"Use one of: {', '.join(site.name for site, _ in others[:6])}." if others else "Edit the target's rules: edit.add."
    if read := [site for site, reads in others if reads]:
        do = f"Name {read[0].op!r}, for which their input {read[0].name!r} was placed."
    raise _error(target, change.select, f"matches no quantized {change.role}", "a selector that matches one", do, "overrides")


def _error(target: Target, selector: Selector, found: str, wanted: str, do: str, part: str = "rules") -> SpecError:
    return SpecError(where=f"target {target.name!r}, {part}", found=f"{selector!r}, which {found}", wanted=wanted, do=do)


__all__ = ["require_used"]
