"""Fold operands that a model computes from its parameters, such as the square of a gain or the exponential of a scale."""

from __future__ import annotations

from typing import Any

from torch import Tensor, fx, nn

from qfunc.graph.constants import read_attr
from qfunc.graph.evaluation_form import evaluate
from qfunc.ops.definition import Trait
from qfunc.ops.node import has, op_of, slots
from qfunc.passes.parameters.fold_constant_weights import constant_nodes, store_folded
from qfunc.passes.parameters.insert_weight_formulas import WeightFormula, formula_of


def fold_constant_operands(network: fx.GraphModule) -> tuple[WeightFormula, ...]:
    """Replace each real tensor that is computed from constants alone by one constant, in place, and return the formulas.

    Its value is that of evaluation.  What only moves the values of a constant, such as a view, stays.  The tensors that it
    was computed from stay in the state_dict.

    >>> import torch
    >>> from qfunc.frontend.capture import capture
    >>> class Scaled(torch.nn.Linear):
    ...     def forward(self, x): return x * self.bias.exp().view(1, -1)
    >>> network = capture()(Scaled(2, 3))
    >>> [formula.path for formula in fold_constant_operands(network)]
    ['operand_of_mul']
    >>> [n.target for n in network.graph.find_nodes(op="get_attr")]
    ['operand_of_mul']
    """
    constants, values, formulas = constant_nodes(network.graph), dict[fx.Node, Any](), list[WeightFormula]()
    for node in [n for n in network.graph.nodes if n in constants and n.op == "call_function"]:
        readers = [user for user in node.users if user not in constants and user.op != "output"]
        if not readers or not _computes(node):
            continue
        value = evaluate(network, node, values)
        if not isinstance(value, Tensor) or not value.is_floating_point():
            continue
        formula = formula_of(node, "")
        sources = [read_attr(network, n) for n in formula.graph.find_nodes(op="get_attr")]
        path = store_folded(network, readers[0], "operand", value, any(s.requires_grad for s in sources))
        if not any(isinstance(s, nn.Parameter) for s in sources):
            _make_buffer(network, path)
        formulas.append(WeightFormula(path, formula.graph))
        with network.graph.inserting_before(node):
            constant = network.graph.get_attr(path)
        node.replace_all_uses_with(constant, delete_user_cb=lambda user: user not in constants)
    if formulas:
        network.graph.eliminate_dead_code(is_impure_node=lambda n: n.op in ("placeholder", "output"))
        network.recompile()
    return tuple(formulas)


def _make_buffer(network: fx.GraphModule, path: str) -> None:
    # What is computed from buffers is a buffer: files that list the parameters of a model do not have it.
    owner, _, name = path.rpartition(".")
    module = network.get_submodule(owner)
    value = getattr(module, name).detach()
    delattr(module, name)
    module.register_buffer(name, value)


def _computes(node: fx.Node) -> bool:
    # False if all ops from the constants to a node move values only, or if one has a weight, which targets quantize.
    pending, seen, computes = [node], {node}, False
    while pending:
        current = pending.pop()
        if current.op == "get_attr":
            continue
        if any(slot == "weight" for slot, _ in slots(current)):
            return False
        computes |= op_of(current) is None or not has(current, Trait.MOVES_VALUES)
        new = [n for n in current.all_input_nodes if n not in seen]
        seen.update(new)
        pending += new
    return computes
