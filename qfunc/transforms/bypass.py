"""bypass: selected sites pass their values through unquantized."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, TypeVar

from attrs import evolve
from torch import fx, nn

from qfunc.errors import SpecError
from qfunc.graph.record import attach
from qfunc.graph.selectors import Context, matches
from qfunc.graph.sites import QuantizerNode
from qfunc.graph.stages import require_stage
from qfunc.graph.submodules import require_submodules, with_submodules
from qfunc.graph.view import QuantizedModel
from qfunc.passes.unfold_batch_norm import unquantized
from qfunc.placement.derived_scales import derivations
from qfunc.placement.fusion import FusedGroups, match_fusions, with_roots
from qfunc.placement.unmatched_selectors import require_match
from qfunc.specs import Selector
from qfunc.specs.selectors import require_selector

ROLES = ("weight", "activation", "bias")
Model = TypeVar("Model", bound=nn.Module)


def bypass(selector: Selector, roles: tuple[str, ...] = ROLES) -> Callable[[Model], Model]:
    """Return a transform of a quantized model that removes the selected sites; their tensors stay float.

    The result is a copy. As in `edit.override`, a site is selected if its tensor is selected, or an op of the (fused)
    op whose rule placed it. A bias whose scale is a product loses its site if either factor does. The other sites keep
    their qparams. `explain`, `emulate` and `deploy` treat the tensors as float.

    `qfunc.load` builds a model from its target, so save the model before `bypass`. `edit.skip` makes the same choice in
    the target.

    Args:
        selector: A value of qfunc.specs.edit: name("layer4.*"), op("conv"), module("Head"), or `|`, `&`, `~` of them.
        roles: Any of "weight", "activation", "bias".
    Raises:
        SpecError: the selector matches nothing (the error lists similar names) or nothing that is quantized, or a role
            is unknown.
        CalibrationError: the model is not quantized.

    >>> import qfunc, torch
    >>> from qfunc import targets
    >>> from qfunc.specs import edit
    >>> quantized = qfunc.quantize(targets.onnxruntime)(torch.nn.Linear(3, 2))
    >>> [s.slot for s in qfunc.explain(bypass(edit.op("linear"), roles=("weight",))(quantized)).sites]
    ['input', 'output']
    """
    require_selector("bypass", selector)
    wrong = [r for r in roles if r not in ROLES] if isinstance(roles, tuple) and roles else [roles]
    if wrong:
        do = "Write roles=('weight',)."
        raise SpecError(where="bypass, roles", found=repr(wrong[0]), wanted=f"a tuple of {', '.join(map(repr, ROLES))}", do=do)

    def transform(quantized: Model) -> Model:
        each = require_submodules(quantized, "quantized", "bypass")
        views = {path: QuantizedModel(part) for path, part in each.items()}
        scenes = {path: _scene(view) for path, view in views.items()}
        require_match(selector, [context for context, _ in scenes.values()], "bypass")
        chosen = {path: _chosen(view, selector, roles, *scenes[path]) for path, view in views.items()}
        if not any(chosen.values()):
            raise SpecError(
                where="bypass",
                found=f"{selector!r}, which matches no quantized {' or '.join(roles)}",
                wanted="a selector that matches a site",
                do="Print qfunc.explain(quantized).",
            )
        made: Any = with_submodules(quantized, {path: _without(part, chosen[path]) for path, part in each.items()}, "bypass")
        return made  # type: ignore[no-any-return]

    return transform


def _without(model: fx.GraphModule, chosen: list[QuantizerNode]) -> fx.GraphModule:
    record = require_stage(model, "quantized", "bypass")
    made = copy.deepcopy(model)
    paths = {seat.path for seat in chosen}
    for node in list(made.graph.nodes):
        if node.op == "call_module" and node.target in paths:
            node.replace_all_uses_with(unquantized(made, node))
            made.graph.erase_node(node)
            made.delete_submodule(str(node.target))
    made.recompile()
    names = {n.name for n in made.graph.nodes}
    return attach(made, evolve(record, facts={k: v for k, v in record.facts.items() if k in names}))


def _scene(view: QuantizedModel) -> tuple[Context, FusedGroups]:
    target = view.record.target
    assert target is not None
    bare = Context(view.float_network, target.ops)
    found = match_fusions(bare, target.fusions)
    return with_roots(bare, found), found


def _chosen(
    view: QuantizedModel, selector: Selector, roles: tuple[str, ...], context: Context, found: FusedGroups
) -> list[QuantizerNode]:
    nodes = {n.name: n for n in context.model.graph.nodes}
    groups = {context.fact(g.root).path: g.nodes for g in found.groups}

    def touched(seat: QuantizerNode) -> bool:
        site = seat.module.site
        role = site.slot if site.slot in ROLES else "activation"
        return role in roles and any(matches(selector, n, context) for n in (*groups.get(site.op, ()), nodes[seat.tensor]))

    chosen = [s for s in view.quantizers if touched(s)]
    paths = {s.path for s in chosen}
    followers = {path for path, sources in derivations(view).items() if paths & set(sources.values())}
    return [*chosen, *(s for s in view.quantizers if s.path in followers - paths)]
