"""Insert the formulas of weights that a model computes from its parameters, in place of the folded constants.

A weight standardisation is an example: conv(x, (w - mean(w)) / std(w)).  In training the formula stays in the graph, so
that the user's parameter w trains.  The node of `computed` ends it, and the quantizer of the weight reads this node.
"""

from __future__ import annotations

import torch
from attrs import frozen
from torch import Tensor, fx

from qfunc.graph.constants import read_attr
from qfunc.graph.evaluation_form import computed, evaluate


@frozen(eq=False)
class WeightFormula:
    """The path of a folded weight, and the graph that computes it from tensors of the model."""

    path: str
    graph: fx.Graph


def formula_of(node: fx.Node, path: str) -> WeightFormula:
    """Return the formula that computes a node from constants alone."""
    needed, pending = {node}, [node]
    while pending:  # without recursion, because chains may be long
        inputs = [n for n in pending.pop().all_input_nodes if n not in needed]
        needed.update(inputs)
        pending += inputs
    graph, env = fx.Graph(), dict[fx.Node, fx.Node]()
    for each in node.graph.nodes:
        if each in needed:
            env[each] = graph.node_copy(each, env.__getitem__)
    graph.output(env[node])
    return WeightFormula(path, graph)


def insert_formulas(network: fx.GraphModule, formulas: tuple[WeightFormula, ...]) -> None:
    """Replace each constant that a formula of trained parameters computes by this formula, in place.

    If a BatchNorm was folded into the constant, the formula is multiplied by one constant factor per channel, a buffer.
    A constant that has changed in another way stays.
    """
    for formula in formulas:
        nodes = [n for n in network.graph.nodes if n.op == "get_attr" and n.target == formula.path]
        if not nodes or not any(read_attr(network, n).requires_grad for n in formula.graph.find_nodes(op="get_attr")):
            continue
        (result,) = formula.graph.find_nodes(op="output")
        value, found = evaluate(network, result.all_input_nodes[0], {}), read_attr(network, nodes[0]).detach()
        factor = None if torch.equal(value, found) else _channel_factor(value.double(), found.double())
        if factor is None and not torch.equal(value, found):
            continue
        owner, _, name = formula.path.rpartition(".")
        delattr(network.get_submodule(owner), name)
        if factor is not None:
            network.get_submodule(owner).register_buffer(f"{name}_factor", factor.to(found.dtype))
        for node in nodes:
            _replace(network.graph, node, formula, None if factor is None else f"{formula.path}_factor")


def _channel_factor(value: Tensor, found: Tensor) -> Tensor | None:
    # Return f with f value = found and one f for each index of an axis, or None.
    for axis in range(value.ndim if value.shape == found.shape else 0):
        others = [a for a in range(value.ndim) if a != axis]
        factor = torch.nan_to_num((value * found).sum(others, keepdim=True) / (value * value).sum(others, keepdim=True))
        error = (factor * value - found).abs().amax(others, keepdim=True)
        if bool((error <= _ROUNDINGS * found.abs().amax(others, keepdim=True)).all()):
            return factor
    return None


_ROUNDINGS = 2.0**-22
"""Of `found`, relative to the largest value of a channel: it was computed in float64 and rounded to float32 once."""


def _replace(graph: fx.Graph, node: fx.Node, formula: WeightFormula, factor: str | None) -> None:
    env: dict[fx.Node, fx.Node] = {}
    with graph.inserting_before(node):
        for each in formula.graph.nodes:
            if each.op != "output":
                env[each] = graph.node_copy(each, env.__getitem__)
                continue
            value = env[each.all_input_nodes[0]]
            value = value if factor is None else graph.call_function(torch.mul, (value, graph.get_attr(factor)))
            node.op, node.target, node.args = "call_function", computed, (value, formula.path)
