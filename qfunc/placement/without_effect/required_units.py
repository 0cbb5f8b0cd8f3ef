"""Refuse a model without the units for which a target has a setting, such as a cache in codes."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve
from torch import fx

from qfunc.errors import SpecError
from qfunc.graph.constants import read_attr
from qfunc.graph.selectors import matches
from qfunc.placement.mixtures import mixtures, of_one_form
from qfunc.placement.place import Plan
from qfunc.specs import RequireUnit, Scheme, Selector, Target
from qfunc.specs.protocols import MixtureArithmetic


def require_units(target: Target, plans: Sequence[Plan]) -> None:
    """Raise if a `RequireUnit` of the target finds no unit in any of the plans of one model.

    Raises:
        SpecError: there is none.
    """
    for rule in target.legality:
        if isinstance(rule, RequireUnit) and not any(_has(plan, target, rule.unit) for plan in plans):
            raise SpecError(
                where=f"target {target.name!r}",
                found=f"a model without a unit of {rule.unit!r}",
                wanted=f"at least one: {rule.because}",
                do=rule.do,
            )


def without_required_units(target: Target) -> Target:
    """Return the target without its `RequireUnit`s, for networks that are drawn."""
    return evolve(target, legality=tuple(rule for rule in target.legality if not isinstance(rule, RequireUnit)))


def _has(plan: Plan, target: Target, unit: object) -> bool:
    nodes = list(plan.context.model.graph.nodes)
    if isinstance(unit, MixtureArithmetic):
        schemes = {(p.tensor, reader): p.site.scheme for p in plan.placed for reader in p.readers}

        def scheme(weight: fx.Node, reader: fx.Node) -> Scheme | None:
            return schemes.get((weight, reader))

        found = mixtures(plan.context, nodes)
        return any(of_one_form(m, scheme, lambda weight: read_attr(plan.context.model, weight)) for m in found)
    selectors = [unit] if isinstance(unit, Selector) else [k.unit for k in target.kernels if k.arithmetic == unit]
    return any(matches(select, g.root, plan.context) for select in selectors for g in plan.groups.groups)
