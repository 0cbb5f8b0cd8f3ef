"""Refuse rules that keep in float only what is float without them.

Such a rule is one of `edit.skip`, or of `edit.inputs` or `edit.outputs` with `KeepFloat()`.  It is judged by its effect on the
plan of the whole model: one effect, on any op, suffices.  A rule that matches no op is no error, so that an edit serves several
networks, and `Everything() & s` may have no effect at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from attrs import evolve
from torch import fx

from qfunc.errors import SpecError
from qfunc.graph.data_movement import keeps_codes
from qfunc.graph.gates import divides_silu
from qfunc.graph.selectors import Context, matches
from qfunc.ops.sizes import is_number
from qfunc.placement.legality.constraints import violations
from qfunc.placement.legality.sizes import limits_sizes_of
from qfunc.placement.place import Plan, plans
from qfunc.specs import KeepFloat, Rule, Target
from qfunc.specs._check import SLOTS

_DECOMPOSED = "sdpa"
"""The kind that the passes decompose before placement, unless a rule names it."""


def require_effects(target: Target, made: Sequence[Plan], exempt: Callable[[Rule], bool]) -> None:
    """Raise if a rule keeps ops in float, and the target quantizes and refuses the same without it.

    Two rules that have an effect only together are both kept, as are two of which one suffices.

    Args:
        target: The target.
        made: The plans of the graphs of one model.
        exempt: rule -> True if it may have no effect.
    Raises:
        SpecError: a rule has no effect; the message names the ops that it matches.
    """
    # A rule may name an op that is an island as well, or slower on integers.
    builds = tuple(evolve(build, slower=()) for build in target.runtime.builds)
    rules = tuple(evolve(rule, beside_integers=False) for rule in target.rules)
    target = evolve(target, rules=rules, runtime=evolve(target.runtime, builds=builds))
    for index, rule in enumerate(target.rules):
        if exempt(rule) or not _keeps_only_float(rule):
            continue
        nodes = [(p.context, n) for p in made for n in _ops(p.context) if matches(rule.select, n, p.context)]
        if not nodes or any(_acts_elsewhere(n, context, target) for context, n in nodes):
            continue
        base = [r for r in target.rules if not _keeps_only_float(r)]
        alone = [r for i, r in enumerate(target.rules) if i == index or r in base]
        others = [r for i, r in enumerate(target.rules) if i != index]
        with_and_without = [(list(target.rules), others), *([(alone, base)] if len(base) < len(others) else [])]
        if any(_effects(target, a, made) != _effects(target, b, made) for a, b in with_and_without):
            continue
        if any(violations(plan, target) for plan in made):
            continue  # the hardware refuses the model, which is the more useful error
        raise _error(target, rule, nodes, made)


def _keeps_only_float(rule: Rule) -> bool:
    values = {slot: value for slot in SLOTS if (value := getattr(rule, slot)) is not None}
    return set(values) in ({"input"}, {"output"}, set(SLOTS)) and all(isinstance(v, KeepFloat) for v in values.values())


def _ops(context: Context) -> Iterator[fx.Node]:
    for node in context.model.graph.nodes:
        if node.op in ("call_function", "call_module") and not is_number(node):
            yield node


def _acts_elsewhere(node: fx.Node, context: Context, target: Target) -> bool:
    # Such a rule decides what the passes do, or which sizes the target takes, which are known with an example only.
    kind = context.kind(node)
    return kind == _DECOMPOSED or (kind == "silu" and divides_silu(target)) or limits_sizes_of(node, context, target)


def _effects(target: Target, rules: Sequence[Rule], made: Sequence[Plan]) -> list[Any]:
    # What is quantized, by which values, and what is refused.  The index of its rule in a site is no effect.
    target = evolve(target, rules=tuple(rules))
    found = plans([p.context.model for p in made], target)
    return [
        (
            [g.nodes for g in plan.groups.groups],
            [(evolve(p.site, rule=-1), p.tensor, p.readers) for p in plan.placed],
            violations(plan, target),
        )
        for plan in found
    ]


def _error(target: Target, rule: Rule, nodes: Sequence[tuple[Context, fx.Node]], made: Sequence[Plan]) -> SpecError:
    paths = [c.fact(n).path for c, n in nodes]
    sides = {"input": "whose inputs are float", "output": "whose outputs are float"}
    side = next((words for slot, words in sides.items() if rule.weight is None and getattr(rule, slot) is not None), "")
    one = len(paths) == 1
    if all(keeps_codes(n, c, target) for c, n in nodes):
        state = "that only moves codes" if one else "that only move codes"
    else:
        state = f"{side or ('that is float' if one else 'that are float')} already"
    more = ", ..." if len(paths) > 3 else ""
    quantized = list(dict.fromkeys(p.site.op for plan in made for p in plan.placed if p.site.slot == "weight"))
    count = "1 op" if one else f"{len(paths)} ops"
    return SpecError(
        where=f"target {target.name!r}, rules",
        found=f"{rule.select!r}, which changes nothing: it matches {count} {state}: {', '.join(map(repr, paths[:3]))}{more}",
        wanted="a selector that matches an op with a quantizer",
        do=f"Drop this edit, or use one of: {', '.join(quantized[:6])}." if quantized else "Drop this edit.",
    )
