"""bypass: remove the quantizers of selected sites."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from attrs import evolve
from torch import fx, nn

from qfunc._transform import Transform
from qfunc.errors import SpecError
from qfunc.graph.record import attach
from qfunc.graph.selectors import Context, matches
from qfunc.graph.sites import QuantizerNode
from qfunc.graph.submodules import require_submodules, with_submodules
from qfunc.graph.view import QuantizedModel
from qfunc.passes.unfold_batch_norm import replacement
from qfunc.placement.fusion import FusedGroups, match_fusions, with_roots
from qfunc.placement.ties import derivations
from qfunc.placement.without_effect.unmatched_selectors import require_match
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
        parts = require_submodules(quantized, "quantized", "bypass")
        views = {path: QuantizedModel(part) for path, part in parts.items()}
        groups = {path: _fused_groups(view) for path, view in views.items()}
        require_match(selector, [context for context, _ in groups.values()], "bypass")
        selected = {path: _select(view, selector, roles, *groups[path]) for path, view in views.items()}
        if not any(selected.values()):
            raise SpecError(
                where="bypass",
                found=f"{selector!r}, which matches no quantized {' or '.join(roles)}",
                wanted="a selector that matches a site",
                do="Print qfunc.explain(quantized).",
            )
        copies = {path: remove_quantizers(views[path], selected[path]) for path in parts}
        bypassed: Any = with_submodules(quantized, copies, "bypass")
        return bypassed  # type: ignore[no-any-return]

    return Transform(bypass, {"selector": selector, "roles": roles}, transform)


def remove_quantizers(view: QuantizedModel, quantizers: Sequence[QuantizerNode]) -> fx.GraphModule:
    """Return a copy of a model without these quantizers, and without those of biases whose scale is a product of theirs."""
    record, paths = view.record, {q.path for q in quantizers}
    paths |= {path for path, factors in derivations(view).items() if paths & set(factors.values())}
    model = copy.deepcopy(view.model)
    for node in list(model.graph.nodes):
        if node.op == "call_module" and node.target in paths:
            node.replace_all_uses_with(replacement(model, node))
            model.graph.erase_node(node)
            model.delete_submodule(str(node.target))
    model.recompile()
    names = {n.name for n in model.graph.nodes}
    return attach(model, evolve(record, facts={k: v for k, v in record.facts.items() if k in names}))


def _fused_groups(view: QuantizedModel) -> tuple[Context, FusedGroups]:
    target = view.record.target
    assert target is not None
    bare = Context(view.float_network, target.ops)
    groups = match_fusions(bare, target.fusions, target.rules)
    return with_roots(bare, groups), groups


def _select(
    view: QuantizedModel, selector: Selector, roles: tuple[str, ...], context: Context, fused: FusedGroups
) -> list[QuantizerNode]:
    nodes = {n.name: n for n in context.model.graph.nodes}
    groups = {context.fact(g.root).path: g.nodes for g in fused.groups}

    def is_selected(quantizer: QuantizerNode) -> bool:
        site = quantizer.module.site
        role = site.slot if site.slot in ROLES else "activation"
        candidates = (*groups.get(site.op, ()), nodes[quantizer.tensor])
        return role in roles and any(matches(selector, n, context) for n in candidates)

    return [q for q in view.quantizers if is_selected(q)]
