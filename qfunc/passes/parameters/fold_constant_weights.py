"""Fold weights that a model computes from its parameters, such as weight norms or slices of a joint projection."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from qfunc.graph.constants import store
from qfunc.graph.evaluation_form import evaluate
from qfunc.graph.record import path_of
from qfunc.ops.node import attribute, kind_of, op_of, slots
from qfunc.passes.parameters.insert_weight_formulas import WeightFormula, formula_of

_RANDOM = ("rand", "bernoulli", "normal", "multinomial", "dropout", "poisson", "exponential")


def fold_constant_weights(network: fx.GraphModule) -> tuple[WeightFormula, ...]:
    """Replace each weight and bias that is computed from constants by one constant, in place, and return the formulas.

    Its value is that of evaluation; two ops that share a weight still share it.  The tensors that it was computed from
    stay in the state_dict.

    >>> from qfunc.frontend.capture import capture
    >>> class Twice(torch.nn.Linear):
    ...     def forward(self, x): return torch.nn.functional.linear(x, self.weight * 2)
    >>> network = capture()(Twice(2, 3))
    >>> [formula.path for formula in fold_constant_weights(network)]
    ['weight_of_linear']
    >>> [n.target for n in network.graph.nodes if n.op == "get_attr"]
    ['weight_of_linear']
    """
    constants = constant_nodes(network.graph)
    paths: dict[fx.Node, str] = {}
    values: dict[fx.Node, Any] = {}
    formulas: list[WeightFormula] = []
    for node in list(network.graph.nodes):
        if node.op != "call_function" or op_of(node) is None:
            continue
        for slot, producer in _weight_slots(node):
            if slot == "input" or producer.op == "get_attr" or producer not in constants:
                continue
            if producer not in paths:
                value = evaluate(network, producer, values)
                trained = value.is_floating_point() and any(p.requires_grad for p in network.parameters())
                paths[producer] = store_folded(network, node, slot, value, trained)
                formulas.append(formula_of(producer, paths[producer]))
            with network.graph.inserting_before(node):
                node.replace_input_with(producer, network.graph.get_attr(paths[producer]))
    if paths:
        network.graph.eliminate_dead_code(is_impure_node=lambda n: n.op in ("placeholder", "output"))
        network.recompile()
    return tuple(formulas)


def _weight_slots(node: fx.Node) -> list[tuple[str, fx.Node]]:
    # A constant second operand of a matmul is its weight.
    other = attribute(node, "other") if kind_of(node) == "matmul" else None
    return [("weight" if n is other else slot, n) for slot, n in slots(node)]


def store_folded(network: fx.GraphModule, node: fx.Node, slot: str, value: Tensor, trained: bool) -> str:
    """Store a tensor in the module around the op that reads it, and return its path.

    The weight of "attention.linear" is "attention.weight_of_linear".
    """
    owner, _, name = path_of(network, node).rpartition(".")
    while owner and not _is_module(network, owner):
        owner, _, prefix = owner.rpartition(".")
        name = f"{prefix}_{name}"
    reader = store(network, node, f"{owner}.{slot}_of_{name}".lstrip("."), value, trained)
    path = str(reader.target)
    network.graph.erase_node(reader)
    return path


def _is_module(network: fx.GraphModule, path: str) -> bool:
    try:
        return isinstance(network.get_submodule(path), torch.nn.Module)
    except AttributeError:
        return False


def constant_nodes(graph: fx.Graph) -> set[fx.Node]:
    """Return the nodes that are computed from tensors of the model alone, without random numbers."""
    constants: set[fx.Node] = set()
    for node in graph.nodes:
        inputs = node.all_input_nodes
        name = str(getattr(node.target, "__name__", node.target))
        random = any(part in name for part in _RANDOM) and "normalize" not in name
        pure = node.op in ("call_function", "call_method") and not random
        if node.op == "get_attr" or (pure and bool(inputs) and constants.issuperset(inputs)):
            constants.add(node)
    return constants
